"""Reading the end of a test log: the short test summary and the line of final counts.

The code under test writes into the same log, so nothing here is trusted by its looks alone. A log may
hold several endings (a test that prints one, a forged one at exit); all are read, and `r2e.py` decides.
"""

import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

STATUSES = ("PASSED", "FAILED", "ERROR", "XFAIL", "XPASS", "SKIPPED")

_TITLE = "short test summary info"
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
_HEADING = re.compile(rf"[\s=_*#-]*{_TITLE}[\s=_*#:-]*")
_ENTRY = re.compile(rf"({'|'.join(STATUSES)})[ \t]+(.+)")
_SUBTEST = re.compile(r"SUB(FAILED|XFAIL)(?:[\[(].*?[\])])? ([^\s\[\]()]+::.+)")
_FOLDED = re.compile(r"SKIPPED[ \t]+\[\d+\] ")
_UNITTEST_TOTAL = re.compile(r"FAILED \([a-z ]+=\d+(?:, [a-z ]+=\d+)*\)")
_PHASE = re.compile(r"at (?:setup|call|teardown) of ")
_MOST_CUTS = 20
_LONGEST_LINE = 8192
"""Characters of a line that are looked at: more than any id has. The code under test may print lines of megabytes."""
_COUNT = r"[0-9]{1,9} [a-z]+(?: [a-z]+)?"
_TOTALS = re.compile(rf"=* ?(no tests ran|{_COUNT}(?:, {_COUNT})*) in \d+(?:\.\d+)? ?s(?:econds)?(?: \([^()]*\))? ?=*")


@dataclass
class Ending:
    """One summary: what stands between its heading and the first line of final counts."""

    entries: list[tuple[str, str]] = field(default_factory=list)
    """(status, text after it) per summary line, in log order: a test id, perhaps with " - reason".
    The text is empty for skipped tests that pytest folds into a place in a file."""
    totals: list[Counter[str]] = field(default_factory=list)
    """Each line of final counts after the heading: one in a sound pytest log, none from unittest runners."""

    def contradiction(self) -> str | None:
        """Where the summary and the final counts disagree, or None."""
        if not self.totals:
            return None
        total = self.totals[0]
        if any(other != total for other in self.totals):
            return "the log ends with several lines of final counts that disagree"
        listed = Counter(status for status, _ in self.entries)
        for status, word in (("PASSED", "passed"), ("FAILED", "failed"), ("ERROR", "error")):
            if listed[status] != total[word]:
                return f"the summary lists {listed[status]} {status}, the final counts say {total[word]}"
        for status, word in (("XFAIL", "xfailed"), ("XPASS", "xpassed")):
            # Fewer is a matter of pytest's -r option; more means that something else printed them.
            if listed[status] > total[word]:
                return f"the summary lists {listed[status]} {status}, the final counts say {total[word]}"
        return None


def plain(text: str) -> str:
    """`text` without terminal colours and carriage returns."""
    return _ANSI.sub("", text).replace("\r", "")


def read_endings(log: str) -> list[Ending]:
    """Every summary in the log, in order; empty if there is no heading."""
    endings: list[Ending] = []
    # Line by line: a list of all would take many times the log's own size.
    for line in io.StringIO(plain(log), newline="\n"):
        line = line[:_LONGEST_LINE].removesuffix("\n")
        if _TITLE in line and _HEADING.fullmatch(line):
            endings.append(Ending())
        elif endings:
            _add(endings[-1], line)
    return endings


def readings(text: str) -> Iterator[str]:
    """The ids that "id - reason" can mean, most likely first.

    The reason is cut at a " - " outside the brackets of a parametrised id. More than one reading is possible
    because an id may hold "]" as well: `t[x] - y] - boom`. Of very many " - " only the first are looked at.
    """
    cuts = [match.start() for match in islice(re.finditer(" - ", text), _MOST_CUTS)] + [len(text)]
    ids = [text[:cut] for cut in cuts]
    well_formed = [name for name in ids if "[" not in name or name.endswith("]")]
    yield from well_formed or ids[:1]


def _add(ending: Ending, line: str) -> None:
    if match := _TOTALS.fullmatch(line):
        ending.totals.append(_counts(match[1]))
    elif ending.totals or _UNITTEST_TOTAL.fullmatch(line):
        return
    elif _FOLDED.match(line):
        ending.entries.append(("SKIPPED", ""))
    elif match := _SUBTEST.match(line) or _ENTRY.match(line):
        status, text = match[1], match[2].rstrip()
        ending.entries.append((status, _PHASE.sub("", text, count=1) if status == "XFAIL" else text))


def _counts(text: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    if text != "no tests ran":
        for part in text.split(", "):
            number, word = part.split(" ", 1)
            counts["error" if word == "errors" else word] += int(number)
    return counts
