"""The paths a patch in git's form speaks of, read from its headers. Never decides what a patch does: git does."""

import re
from collections.abc import Iterator

_SIDES = re.compile(r'(?:---|\+\+\+) ("?)[ab]/(.+)')
_BOTH = re.compile(r"diff --git (?:a/(.+) b/\1|(\"a/.+\") (\"b/.+\"))")
_MOVED = re.compile(r'(?:rename|copy) (?:from|to) ("?)(.+)')
_ESCAPE = re.compile(r'\\([0-7]{3}|[abtnvfr"\\])')
_LETTERS = dict(zip('abtnvfr"\\', '\a\b\t\n\v\f\r"\\', strict=True))


def paths_of(patch: str) -> frozenset[str]:
    """Paths below the tree that the headers of `patch` name.

    The patch may stand within other text, such as the script that applies it. A line of a hunk that looks like a
    header adds a path that is not touched, which must do no harm.
    """
    return frozenset(path for line in patch.splitlines() for path in _named(line))


def _named(line: str) -> Iterator[str]:
    if match := _SIDES.match(line):
        # Git puts a tab behind a name with blanks, other tools a date.
        yield _plain(match[1] + match[2].partition("\t")[0])
    elif match := _MOVED.match(line):
        yield _plain(match[1] + match[2])
    elif match := _BOTH.match(line):
        if match[1]:
            yield match[1]
        else:
            yield from (_plain(name).partition("/")[2] for name in (match[2], match[3]))


def _plain(name: str) -> str:
    """`name` without git's quotes and escapes (git-config, core.quotePath)."""
    if not name.startswith('"'):
        return name.rstrip()
    raw = _ESCAPE.sub(lambda match: _LETTERS.get(match[1]) or chr(int(match[1], 8)), name.strip('"'))
    try:
        return raw.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return raw
