"""The JUnit XML that pytest writes about a run, and where the text summary of the same run contradicts it.

Both come from the process in which the code under test ran, so two that agree prove nothing. But what is printed after
pytest's own summary, or in place of it, is no longer enough: the XML has to tell the same.

Tests are compared by their class (or file, for a function) and name, letters and digits only: the XML writes `#x1B`
where the text has an escape, and the folder depends on where pytest was started. Passed, failed and broken tests have
to be the same ones. Not compared is what pytest itself tells differently: the XML has no "passed" for a test that
failed in its teardown or in a subtest, nor for one with a skipped subtest; it has one more for each time that a plugin
tried a test again; skipped tests have no id in the text.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element, ParseError, fromstring

from swe_rollout.scoring.summary import Ending, plain, readings

LIMIT_BYTES = 32 << 20

_STATUS = {"failure": "FAILED", "error": "ERROR", "skipped": "SKIPPED"}
_COUNTS = {"FAILED": ("failures",), "ERROR": ("errors",), "SKIPPED": ("skipped", "skips")}
"""Attributes of the suite that count a status; the second name is that of old versions."""
_SAID_AS = {"XPASS": ("PASSED",), "XFAIL": ("XFAIL", "SKIPPED")}
_COMPARED = ("PASSED", "FAILED", "ERROR")
_MOST_TAGS = 500_000
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_ESCAPED = re.compile("#x([0-9A-F]{2}|[0-9A-F]{4})(?![0-9A-F])")

_Key = tuple[str, str]


@dataclass(frozen=True)
class Result:
    """One thing the report says of a test; it says several of one that failed in its call and in its teardown."""

    classname: str
    """Dotted path of folder, file and classes; empty for a file that cannot be collected."""
    name: str
    status: str
    """PASSED (also what passed unexpectedly), FAILED, ERROR, SKIPPED or XFAIL."""


def read_junit(data: bytes) -> list[Result]:
    """What pytest's report says, in its order.

    Raises `ValueError` with one clear line for anything else than one whole report of one run: too large, not XML, with
    a document type (entities could make it huge), or with counts that are not those of its tests.
    """
    if len(data) > LIMIT_BYTES:
        raise ValueError(f"the JUnit report is larger than {LIMIT_BYTES >> 20} MB")
    # Some versions of pytest write terminal escapes as they are, which is not XML.
    text = _FORBIDDEN.sub("\ufffd", data.decode("utf-8", "replace"))
    if "<!" in text:
        raise ValueError("the JUnit report holds a declaration, as pytest writes none")
    if max(text.count("<"), text.count('="') + text.count("='")) > _MOST_TAGS:
        raise ValueError(f"the JUnit report holds more than {_MOST_TAGS} tags or attributes")
    try:
        suite = _suite(fromstring(text))
    except ParseError as error:
        raise ValueError(f"the JUnit report is not XML: {error}") from error
    results = [result for case in suite.iterfind("testcase") for result in _results(case)]
    _check_counts(suite, results)
    return results


def contradiction(report: list[Result], ending: Ending) -> str | None:
    """The first test of which the report and the text summary tell different things, or None."""
    left = Counter((result.status, _key_of_result(result)) for result in report)
    told = frozenset(left)
    named: set[_Key] = set()
    for status, text in ending.entries:
        if not text or status == "SKIPPED":
            continue
        keys = [_key_of_id(text)] if status == "PASSED" else [_key_of_id(name) for name in readings(text)]
        said = [(as_status, key) for key in keys for as_status in _SAID_AS.get(status, (status,))]
        match = next((one for one in said if left[one]), None)
        if match:
            left[match] -= 1
            named.add(match[1])
        elif status != "PASSED" or not any((other, keys[0]) in told for other in ("ERROR", "FAILED", "SKIPPED")):
            return f"the summary says {status} of {_short(text)}, the JUnit report does not"
    for (status, key), count in left.items():
        # Plugins that try a failed test again leave an entry without a result for each try.
        if count and status in _COMPARED and not (status == "PASSED" and key in named):
            return f"the JUnit report says {status} of {_short(' '.join(key).strip())}, the summary does not"
    return None


def _suite(root: Element) -> Element:
    suites = [root, *root] if root.tag == "testsuites" else [root]
    found = [element for element in suites if element.tag == "testsuite"]
    if len(found) != 1:
        raise ValueError(f"the JUnit report tells of {len(found)} runs instead of one")
    return found[0]


def _results(case: Element) -> Iterator[Result]:
    classname, name = case.get("classname"), case.get("name")
    if classname is None or name is None:
        raise ValueError("the JUnit report has a test without a name")
    said = [child for child in case if child.tag in _STATUS]
    for child in said:
        status = "XFAIL" if child.get("type") == "pytest.xfail" else _STATUS[child.tag]
        yield Result(classname, name, status)
    if not said:
        yield Result(classname, name, "PASSED")


def _check_counts(suite: Element, results: list[Result]) -> None:
    listed = Counter("SKIPPED" if result.status == "XFAIL" else result.status for result in results)
    for status, names in _COUNTS.items():
        count = next((value for name in names if (value := suite.get(name)) is not None), "none")
        if count != str(listed[status]):
            raise ValueError(f"the JUnit report lists {listed[status]} {status} and counts {count[:20]}")


def _key_of_result(result: Result) -> _Key:
    if not result.classname:
        return "", _comparable(result.name.rpartition(".")[2])
    return _comparable(result.classname.rpartition(".")[2]), _comparable(result.name)


def _key_of_id(name: str) -> _Key:
    """The key of `folder/test_1.py::TestRun::test_a[x]`, made as pytest makes class and name of it."""
    address, bracket, parameters = name.partition("[")
    file, *parts = (part for part in address.split("::") if part != "()")
    file = file.replace("/", ".").removesuffix(".py").rpartition(".")[2]
    if not parts:
        return "", _comparable(file + bracket + parameters)
    owners = [file, *parts[:-1]]
    return _comparable(owners[-1]), _comparable(parts[-1] + bracket + parameters)


def _comparable(text: str) -> str:
    unescaped = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    return re.sub(r"\W", "", plain(unescaped).encode("ascii", "backslashreplace").decode())


def _short(text: str) -> str:
    return repr(text if len(text) <= 160 else f"{text[:100]}...{text[-50:]}")
