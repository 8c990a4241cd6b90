"""New modules at the top of the tree that would be imported in the place of others.

The hidden tests are started with the tree first on Python's path: a new `pytest.py` or `json/__init__.py` there is
imported instead of pytest or of the standard library, and may report what it likes. Which names that would be, only
the image's own interpreter knows. It is asked before the change is laid over the tree.

Not covered: modules that lie elsewhere in the tree, on a folder that a `.pth` file or the tests put on the path;
names that the tree had already; modules that a runner would use if they were installed.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

_MODULE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<end>(?:\.[A-Za-z0-9_-]+)?\.(?:so|pyd)|\.pyc?|\.pyw)")
_MARK = "importable elsewhere:"
_NO_NAME = "- no more names -"
"""Ends the list of names, which the agent has chosen: none of them can be this, nor hold a line of its own."""

# Every Python from 3.6 on. Finders of editable installs lead back into the tree; `.venv` is in the tree, but not of it.
_PROBE = f"""
import os, sys
from importlib.machinery import PathFinder
real = os.path.realpath
tree = real(sys.argv[1])
def inside(path, folder):
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
prefixes = [path for path in map(real, (sys.prefix, sys.exec_prefix)) if path != tree and inside(path, tree)]
def of_tree(path):
    path = real(path or os.curdir)
    return inside(path, tree) and not any(inside(path, prefix) for prefix in prefixes)
elsewhere = [path for path in sys.path if not of_tree(path)]
def importable(name):
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, elsewhere if finder is PathFinder else None)
        except Exception:
            continue
        if spec is not None:
            places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or [])
            if not places or not all(map(of_tree, places)):
                return True
    return False
names = sys.stdin.read().split()
print("\\n{_MARK}", *[name for name in names if importable(name)])
"""


def top_modules(added: Iterable[str]) -> dict[str, list[str]]:
    """The modules that new files make importable from the tree's top: by name, the top-level entries they are made of.

    `added`: paths of files that the tree did not have, relative to it. A folder counts if the file that makes it a
    package is new; one without such a file gives way to every other module of its name.
    """
    modules: dict[str, set[str]] = defaultdict(set)
    for path in map(PurePosixPath, added):
        match = _MODULE.fullmatch(path.name)
        if match and len(path.parts) == 1:
            modules[match["name"]].add(path.name)
        elif match and len(path.parts) == 2 and match["name"] == "__init__" and path.parts[0].isidentifier():
            modules[path.parts[0]].add(path.parts[0])
    return {name: sorted(entries) for name, entries in sorted(modules.items())}


def probe_script(names: Iterable[str], tree: str, python: str) -> str:
    """A shell script that asks the interpreter `python` which of `names` it finds elsewhere than in `tree`.

    It has to run in the tree, before the change is there, in the environment in which the tests will run.
    """
    asked = "\n".join(names)
    ask = shlex.join([python, "-W", "ignore", "-c", _PROBE, tree])
    return f"{ask} <<'{_NO_NAME}'\n{asked}\n{_NO_NAME}\n"


def shadowing(output: str, modules: Mapping[str, list[str]]) -> list[str]:
    """Those top-level entries of `modules` (see `top_modules`) whose name the probe found elsewhere.

    Raises `ValueError` if `output` is not that of a probe that came to its end.
    """
    line = next((line for line in reversed(output.splitlines()) if line.startswith(_MARK)), None)
    if line is None:
        raise ValueError(f"the interpreter did not tell its modules: {output.strip()[-200:] or 'no output'}")
    return [entry for name in line.removeprefix(_MARK).split() for entry in modules.get(name, [])]
