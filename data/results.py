"""What a run of the hidden tests says, by R2E-Gym's published rule."""

import re

_MARKER = "short test summary info"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\r")
_LINE = re.compile(r"^(PASSED|FAILED|ERROR) (\S.*)$", re.MULTILINE)


def parse_log(log: str) -> dict[str, str]:
    """Status by test key from the last summary of a pytest log; empty if it has none.

    A key is the test's id without its file, with "." for "::". Ids of parametrised tests are kept whole,
    blanks, dashes and all; only the reason of a failure, which follows the id, is cut off.
    """
    _, marker, summary = _COLOUR.sub("", log).rpartition(_MARKER)
    if not marker:
        return {}
    results: dict[str, str] = {}
    for status, node in _LINE.findall(summary):
        name = _without_reason(node).partition("::")[2]
        results[name.replace("::", ".")] = status
    return results


def _without_reason(node: str) -> str:
    depth = 0
    for at, character in enumerate(node):
        depth += (character == "[") - (character == "]")
        if depth == 0 and node.startswith(" - ", at):
            return node[:at]
    return node
