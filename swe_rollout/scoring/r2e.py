"""The verdict on an R2E task: test log against the statuses the task expects.

Test keys are R2E-Gym's: the id without its file part, `::` written as ".". The published rule reads the
status anywhere in the line, cuts every key at " - " and believes the first summary it meets; it can pay
for an unsolved task. Where the two differ, this module answers 0.0.

Not covered: code under test that rewrites pytest from within for the hidden tests alone, or that forges summary and
report of a run with the right result for each canary.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from swe_rollout.scoring.canary import Canary
from swe_rollout.scoring.junit import contradiction, read_junit
from swe_rollout.scoring.summary import STATUSES, Ending, plain, read_endings, readings
from swe_rollout.scoring.verdict import Status, Verdict

_FAILING = ("FAILED", "ERROR")
_COUNTED = ("PASSED", *_FAILING)
"""Statuses a task always lists; a test with another status is compared only if the task lists it."""
_RANK = ("SKIPPED", "XFAIL", "XPASS", "PASSED", "ERROR", "FAILED")
"""Of two results under one key the later one here stands: a failure is never hidden by a pass."""
_NO_CANARY = Canary("", {})
_NAMED = 3
"""Differing tests named in a reason."""


HIDDEN_TESTS = "/r2e_tests"
TESTS_LINK = "r2e_tests"
RUNNER = "run_tests.sh"
"""Where an R2E image keeps its tests; link and runner are below the task's tree."""


@dataclass(frozen=True)
class R2ETests:
    """How a submission to one R2E row is judged."""

    hidden: ClassVar[tuple[str, ...]] = (HIDDEN_TESTS, TESTS_LINK, RUNNER, f"/root/{TESTS_LINK}", f"/root/{RUNNER}")
    """What an agent's sandbox must not hold; paths without a slash in front are below the task's tree."""

    expected: Mapping[str, str]
    """The status each hidden test must have, by test key."""
    solution_paths: frozenset[str] = frozenset()
    """Paths the row's own solution touches; empty if the row does not say."""


def parse_expected(text: str) -> dict[str, str]:
    """The expected status by test key, from a row's `expected_output_json`; blank keys are dropped.

    Raises `ValueError` with one clear line for a text no submission can be judged by: not a JSON object, no
    test, an unknown status, two statuses for one key, or no test that has to pass (breaking everything
    would then be paid).
    """
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"expected_output_json is not JSON: {error}") from error
    if not isinstance(pairs, _Pairs):
        raise ValueError("expected_output_json is not a JSON object of test: status")
    expected: dict[str, str] = {}
    for raw, value in pairs:
        # The constants instead of the parsed copies: a data set holds the same word a million times.
        status = next((known for known in STATUSES if known == value), None)
        if status is None:
            raise ValueError(f"expected_output_json gives {_short(raw)} the unknown status {_short(str(value))}")
        key = plain(raw).strip()
        if key and expected.setdefault(key, status) != status:
            raise ValueError(f"expected_output_json gives {_short(key)} two statuses")
    if not expected:
        raise ValueError("expected_output_json names no test")
    if not any(status in ("PASSED", "XPASS") for status in expected.values()):
        raise ValueError("expected_output_json names no test that has to pass")
    return expected


def grade(
    log: str,
    exit_code: int,
    expected: Mapping[str, str],
    *,
    canary: Canary = _NO_CANARY,
    report: bytes | None = None,
) -> Verdict:
    """Judge a test run by its log (stdout and stderr in one stream) and the exit code of its command.

    `canary` tells of tests that ran with the expected ones; they are not in the verdict. `report` is what pytest wrote
    as JUnit XML, empty if it wrote none, and None if the runner writes none.

    1.0 only if the tests of the last summary are exactly the expected ones, each with its expected status,
    and nothing in the log, the exit code, the canaries or the report contradicts it. Pure; raises nothing for any log.
    """
    expected = {key: status for raw, status in expected.items() if (key := plain(raw).strip())}
    if not expected:
        return Verdict.zero("the task expects no test, so there is nothing to compare")
    endings = read_endings(log)
    if not endings:
        return Verdict.zero(
            f"the test run printed no summary (exit code {exit_code}); {_last_line(log)}",
            n_expected=len(expected),
            status="no_results",
        )
    last = endings[-1]
    found, outside = _results(last, {**expected, **canary.expected})
    tests = canary.without(found)
    n_as_expected, differences = _compare(tests, expected)
    doubts: list[tuple[Status, str | None]] = [
        ("not_believed", last.contradiction()),
        ("graded", f"{_short(outside[0])} failed outside any test" if outside else None),
        ("graded", None if tests else f"the test run reports no test (exit code {exit_code})"),
        ("graded", _listed(f"{n_as_expected} of {len(expected)} tests as expected", differences)),
        ("not_believed", canary.doubt(found)),
        ("not_believed", _denied(endings)),
        ("not_believed", _exit_doubt(last, exit_code) if report is None else _pytest_doubt(last, exit_code, report)),
    ]
    for status, reason in doubts:
        if reason:
            counts = {"n_expected": len(expected), "n_as_expected": n_as_expected}
            return Verdict.zero(reason, tests=tests, **counts, status=status)
    return Verdict.one(f"all {len(expected)} tests as expected", tests=tests, n_expected=len(expected))


class _Pairs(list[tuple[str, object]]):
    """A JSON object with its repeated keys kept."""


def _results(ending: Ending, expected: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Status by test key, and the ids that failed without being a test (a file that cannot be collected)."""
    tests: dict[str, str] = {}
    outside: list[str] = []
    for status, text in ending.entries:
        # A passed test has no reason, so the whole text is its id.
        ids = [text] if status == "PASSED" else list(readings(text))
        name = next((name for name in ids if _key(name) in expected), ids[0])
        key = _key(name)
        if key:
            tests[key] = max(status, tests.get(key, status), key=_RANK.index)
        elif status in _FAILING:
            outside.append(name)
    return tests, outside


def _key(name: str) -> str:
    """R2E's key of a test id; empty for an id that is a file only."""
    return name.partition("::")[2].replace("::", ".").strip()


def _compare(tests: Mapping[str, str], expected: Mapping[str, str]) -> tuple[int, list[str]]:
    """How many expected tests have their status, and what differs."""
    found = {key: key for key in expected if key in tests}
    shortened: dict[str, list[str]] = defaultdict(list)
    for key, status in tests.items():
        if key not in found and status in _COUNTED:
            shortened[key.split(" - ")[0]].append(key)
    extra: list[str] = []
    shared: list[str] = []
    for cut, keys in shortened.items():
        # R2E's own parser cuts the keys of failed tests at " - "; such a key speaks for a test only if no
        # other test could be meant.
        if cut not in expected or cut in found:
            extra += keys
        elif len(keys) == 1:
            found[cut] = keys[0]
        else:
            shared.append(cut)
    wrong = [key for key, name in found.items() if tests[name] != expected[key]]
    missing = [key for key in expected if key not in found and key not in shared]
    differences = [f"{_short(key)} {tests[found[key]]} instead of {expected[key]}" for key in wrong]
    differences += [f"{_short(key)} not in the summary" for key in missing]
    differences += [f"{_short(cut)} can mean {len(shortened[cut])} tests" for cut in shared]
    differences += [f"{_short(key)} {tests[key]} but not expected" for key in extra]
    return len(found) - len(wrong), differences


def _denied(endings: list[Ending]) -> str | None:
    """A test passed in the last ending only, while an earlier, complete ending is about the same run.

    A forged ending that a test prints stands before pytest's own; one printed at exit stands after it and would
    be taken for it. Endings about other tests (of a pytest plugin under test) are no evidence of anything.
    """
    claimed = {text for status, text in endings[-1].entries if status == "PASSED"}
    known = claimed | {name.partition("::")[0] for name in claimed}
    for ending in endings[:-1]:
        passed = {text for status, text in ending.entries if status == "PASSED"}
        others = (name for status, text in ending.entries if status != "PASSED" for name in readings(text))
        # A run that skipped everything names no test.
        same_run = (
            passed & known
            or any(name in known for name in others)
            or {status for status, _ in ending.entries} == {"SKIPPED"}
        )
        if ending.totals and same_run and claimed - passed:
            name = min(claimed - passed)
            return f"the log holds two endings of one run: {_short(name)} passed only in the last one"
    return None


def _exit_doubt(ending: Ending, exit_code: int) -> str | None:
    if any(status in _FAILING for status, _ in ending.entries):
        if exit_code not in (0, 1):
            return f"the test run did not end by itself: exit code {exit_code}"
    elif exit_code != 0:
        return f"no test failed, but the test run ended with exit code {exit_code}"
    return None


def _pytest_doubt(ending: Ending, exit_code: int, report: bytes) -> str | None:
    """Why pytest's exit code and report are not those of the run that `ending` tells of."""
    if exit_code == 0 and any(status in _FAILING for status, _ in ending.entries):
        return "tests failed, but pytest ended with exit code 0"
    if not report:
        return _exit_doubt(ending, exit_code) or f"pytest wrote no JUnit report (exit code {exit_code})"
    try:
        return _exit_doubt(ending, exit_code) or contradiction(read_junit(report), ending)
    except ValueError as error:
        return str(error)


def _listed(head: str, differences: list[str]) -> str | None:
    if not differences:
        return None
    more = len(differences) - _NAMED
    return "; ".join([head, *differences[:_NAMED], *([f"{more} more"] if more > 0 else [])])


def _last_line(log: str) -> str:
    lines: Iterable[str] = reversed(plain(log).split("\n"))
    last = next((line.strip() for line in lines if line.strip()), "")
    return f"the last line of its log is {_short(last)}" if last else "its log is empty"


def _short(name: str) -> str:
    """`name` in quotes on one line, its middle left out if it is long."""
    return repr(name if len(name) <= 160 else f"{name[:100]}...{name[-50:]}")
