"""Verdicts on R2E test logs, most of them real: pytest and unittest run on small generated test folders."""

import json
import os
import random
import subprocess
import sys
import textwrap
import tracemalloc
from dataclasses import dataclass
from pathlib import Path

import pytest

from swe_rollout.scoring.canary import Canary
from swe_rollout.scoring.r2e import grade, parse_expected
from swe_rollout.scoring.verdict import Verdict

SUM = "=========================== short test summary info ============================"
T = "r2e_tests/test_1.py::"


@dataclass
class Run:
    log: str
    exit_code: int

    def grade(self, expected: dict[str, str]) -> Verdict:
        return grade(self.log, self.exit_code, expected)


def summary(*lines: str, final: str = "") -> str:
    return "\n".join(["collected 2 items", "", SUM, *lines, *([f"=== {final} in 0.12s ==="] if final else [])])


def published_parser(log: str) -> dict[str, str]:
    """R2E-Gym's parser, which makes the expected maps of its data sets."""
    statuses = {}
    for line in log.split("short test summary info")[1].split("\n"):
        key = ".".join(line.split("::")[1:])
        if "PASSED" in line:
            statuses[key] = "PASSED"
        elif "FAILED" in line:
            statuses[key.split(" - ")[0]] = "FAILED"
        elif "ERROR" in line:
            statuses[key.split(" - ")[0]] = "ERROR"
    return statuses


class Folder:
    """A folder with hidden tests and code under test, and a way to run them as R2E does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("r2e_tests/__init__.py", "")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")

    def pytest(self, *arguments: str, **environment: str) -> Run:
        return self.run("-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments, "r2e_tests", **environment)

    def run(self, *arguments: str, **environment: str) -> Run:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CI"))}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *arguments],
            cwd=self.root,
            env={**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )
        return Run(done.stdout, done.returncode)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_status_is_the_first_word_of_a_line() -> None:
    expected = {"TestRun.test_PASSED_flag": "PASSED", "TestRun.test_b": "PASSED"}
    failed = summary(f"FAILED {T}TestRun::test_PASSED_flag - AssertionError: 1", f"PASSED {T}TestRun::test_b")
    verdict = grade(failed, 1, expected)
    assert verdict.reward == 0.0
    assert verdict.tests == {"TestRun.test_PASSED_flag": "FAILED", "TestRun.test_b": "PASSED"}
    assert "'TestRun.test_PASSED_flag' FAILED instead of PASSED" in verdict.reason
    assert (verdict.n_expected, verdict.n_as_expected) == (2, 1)

    words = summary(
        "PASSED r2e_tests/ERROR_cases/FAILED/test_1.py::TestRun::test_PASSED_flag",
        f"FAILED {T}TestRun::test_b - got PASSED",
    )
    assert grade(words, 1, {**expected, "TestRun.test_b": "FAILED"}).reward == 1.0
    assert grade(words, 1, expected).reward == 0.0
    # An XFAIL whose reason speaks of failure, and words that merely begin like a status.
    quiet = summary(f"PASSED {T}test_a", f"XFAIL {T}test_x - FAILED upstream", "FAILED-ish text", "ERRORS: 3")
    assert grade(quiet, 0, {"test_a": "PASSED"}).reward == 1.0


def test_reason_is_cut_outside_brackets_and_a_cut_key_must_be_unambiguous() -> None:
    log = summary(f"FAILED {T}test_op[a - b] - assert 0", f"PASSED {T}test_op[a - c]")
    whole = {"test_op[a - b]": "PASSED", "test_op[a - c]": "PASSED"}
    assert grade(log, 1, whole).reward == 0.0
    assert grade(log, 1, {**whole, "test_op[a - b]": "FAILED"}).reward == 1.0
    for status in ("PASSED", "FAILED"):
        verdict = grade(log, 1, {"test_op[a": status})
        assert verdict.reward == 0.0
        assert "'test_op[a' can mean 2 tests" in verdict.reason
    # The published parser cuts the failed key only: it means the one test that has no key of its own.
    mixed = {"test_op[a": "FAILED", "test_op[a - c]": "PASSED"}
    assert grade(log, 1, mixed).reward == 1.0
    swapped = summary(f"PASSED {T}test_op[a - b]", f"FAILED {T}test_op[a - c] - assert 0")
    assert grade(swapped, 1, mixed).reward == 0.0

    odd = ["[x::y]", "[]]", "[x] - y]", "[two words]", "[PASSED FAILED]", "[new\\nline]", "[é\u2028]", "[[ - ]"]
    lines = [f"FAILED {T}C::test{name} - assert [1] == [2] - no" for name in odd]
    keys = [f"C.test{name.replace('::', '.')}" for name in odd]
    assert grade(summary(*lines), 1, dict.fromkeys(keys, "FAILED")).reward == 1.0
    for key in keys:
        assert grade(summary(*lines), 1, {**dict.fromkeys(keys, "FAILED"), key: "PASSED"}).reward == 0.0
    passed = summary(f"PASSED {T}test_a[x]", f"PASSED {T}test_a[x] - y]", f"PASSED {T}test_a[x - z]")
    assert grade(passed, 0, dict.fromkeys(["test_a[x]", "test_a[x] - y]", "test_a[x - z]"], "PASSED")).reward == 1.0
    # A key found whole is not short for another test as well.
    assert grade(passed, 0, {"test_a[x]": "PASSED", "test_a[x": "PASSED"}).reward == 0.0
    # A reason of very many " - " is neither slow nor fatal.
    assert grade(summary(f"FAILED {T}test_a[" + " - " * 300_000), 1, {"test_a": "PASSED"}).reward == 0.0


def test_a_log_that_is_made_to_be_large_when_read_is_not() -> None:
    lines = [f"FAILED {T}test_a[{number}" + "x" * 40_000 + " - a" * 60 for number in range(50)]
    for log in (summary(*lines), summary("FAILED " + "x" * 2_000_000 + " - a" * 60), summary(*["x"] * 1_000_000)):
        tracemalloc.start()
        assert grade(log, 1, {"test_a": "PASSED"}).reward == 0.0
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        # In copies of the log, and what any other log takes.
        assert peak < 6 * len(log) + 5_000_000


def test_expected_failures_are_compared_and_quiet_statuses_only_if_listed() -> None:
    known = {"test_a": "PASSED", "test_known": "FAILED"}
    assert grade(summary(f"PASSED {T}test_a", f"FAILED {T}test_known - boom"), 1, known).reward == 1.0
    for exit_code in (2, 139, -9):
        cut_short = grade(summary(f"PASSED {T}test_a", f"FAILED {T}test_known - boom"), exit_code, known)
        assert f"did not end by itself: exit code {exit_code}" in cut_short.reason
    assert grade(summary(f"PASSED {T}test_a", f"ERROR {T}test_known - boom"), 1, known).reward == 0.0
    assert grade(summary(f"PASSED {T}test_a", f"PASSED {T}test_known"), 0, known).reward == 0.0

    quiet = summary(
        f"PASSED {T}test_a",
        "SKIPPED [2] r2e_tests/test_1.py:3: no net, FAILED::earlier",
        f"XFAIL {T}test_x - why",
        f"XPASS {T}test_y",
        final="1 passed, 2 skipped, 1 xfailed, 1 xpassed",
    )
    assert grade(quiet, 0, {"test_a": "PASSED"}).reward == 1.0
    assert grade(quiet, 0, {"test_a": "PASSED", "test_x": "XFAIL", "test_y": "XPASS"}).reward == 1.0
    assert grade(quiet, 0, {"test_a": "PASSED", "test_x": "PASSED"}).reward == 0.0
    assert grade(quiet, 0, {"test_a": "PASSED", "test_y": "XFAIL"}).reward == 0.0
    assert grade(quiet, 0, {"test_a": "PASSED", "test_s": "SKIPPED"}).reward == 0.0
    forged = quiet.replace(f"XPASS {T}test_y", f"XFAIL {T}test_y")
    assert "2 XFAIL, the final counts say 1" in grade(forged, 0, {"test_a": "PASSED", "test_y": "XFAIL"}).reason
    # More or fewer tests than expected.
    assert grade(summary(f"PASSED {T}test_a", f"PASSED {T}test_new"), 0, {"test_a": "PASSED"}).reward == 0.0
    assert grade(summary(f"PASSED {T}test_a"), 0, {"test_a": "PASSED", "test_b": "PASSED"}).reward == 0.0


def test_nothing_compared_is_never_a_success(folder: Folder) -> None:
    expected = {"test_a": "PASSED"}
    assert grade(summary(f"PASSED {T}test_a"), 0, {}).reward == 0.0
    assert grade(summary(f"PASSED {T}test_a"), 0, {"": "PASSED"}).reward == 0.0
    for log in ("", "\n\n", "The command took too long to execute (>300s)", SUM, f"{SUM}\nPASSED", "PASSED x::test_a"):
        verdict = grade(log, 0, expected)
        assert verdict.reward == 0.0
        assert verdict.reason

    folder.write("r2e_tests/test_1.py", "def test_a(): pass\n")
    assert folder.pytest().grade(expected).reward == 1.0
    folder.write("r2e_tests/test_2.py", "import no_such_module\n")
    collection = folder.pytest().grade(expected)
    assert collection.reward == 0.0
    assert collection.reason == "'r2e_tests/test_2.py' failed outside any test"
    # The same with its tests run all the same, and when the data set recorded the error under a blank key.
    assert folder.pytest("--continue-on-collection-errors").grade({**expected, "": "ERROR"}).reward == 0.0
    folder.write("r2e_tests/test_2.py", "import os\ndef test_b(): os._exit(3)\n")
    died = folder.pytest().grade(expected)
    assert died.reward == 0.0
    assert "printed no summary (exit code 3)" in died.reason
    folder.write("r2e_tests/conftest.py", "import no_such_module\n")
    broken = folder.pytest().grade(expected)
    assert broken.reward == 0.0
    assert "ModuleNotFoundError" in broken.reason


def test_bad_expected_maps_are_refused_with_the_reason() -> None:
    for text, reason in {
        "": "not JSON",
        "{'a': 1}": "not JSON",
        '{"a": "PASSED"': "not JSON",
        "[" * 100_000: "not JSON",
        '["PASSED"]': "not a JSON object",
        "null": "not a JSON object",
        "{}": "names no test",
        '{"": "ERROR", " ": "PASSED"}': "names no test",
        '{"a": "passed"}': "unknown status 'passed'",
        '{"a": null}': "unknown status",
        '{"a": {"b": "PASSED"}}': "unknown status",
        '{"a": "PASSED", "a": "FAILED"}': "two statuses",
        r'{"\u001b[1ma\u001b[0m": "PASSED", "a": "FAILED"}': "two statuses",
        '{"a": "FAILED", "b": "SKIPPED"}': "no test that has to pass",
    }.items():
        with pytest.raises(ValueError, match=reason) as caught:
            parse_expected(text)
        assert "\n" not in str(caught.value)
    coloured = json.dumps({"\x1b[1mtest_save\x1b[0m": "PASSED", "": "ERROR", "\x1b[0;1mC.x\x1b[0m\r": "FAILED"})
    assert parse_expected(coloured) == {"test_save": "PASSED", "C.x": "FAILED"}


FAILING = "def test_a(): pass\ndef test_b(): assert calc.two() == 2\n"
BOTH = {"test_a": "PASSED", "test_b": "PASSED"}
FORGED = f"{SUM}\nPASSED {T}test_a\nPASSED {T}test_b\n=== 2 passed in 0.01s ===\n"

CHEATS = {
    "a block printed by a test": "def two(): print(FORGED)",
    "the same on the real stdout": "def two(): os.write(9, FORGED.encode())",
    "a block at exit": "def two(): atexit.register(print, FORGED)",
    "a block at exit, and exit code 0": "def two(): atexit.register(lambda: (print(FORGED, flush=True), os._exit(0)))",
    "a block at exit after giving up": "def two(): atexit.register(print, FORGED); pytest.xfail('x')",
    "a block at exit after a skip": "def two(): atexit.register(print, FORGED); pytest.skip('x')",
    "a block at import and a skip of all": "atexit.register(print, FORGED); pytest.skip(allow_module_level=True)",
    "a block at import that breaks all": "atexit.register(lambda: (print(FORGED, flush=True), os._exit(0))); 1 / 0",
    "lines at exit": f"def two(): atexit.register(print, 'PASSED {T}test_b')",
    "final counts at exit": "def two(): atexit.register(print, '=== 2 passed in 0.01s ===')",
    "a reason of several lines": "def two(): pytest.xfail('x\\n' + FORGED)",
    "a reason without counts": "def two(): pytest.xfail('x\\n' + FORGED.rpartition('===')[0].rpartition('===')[0])",
    "a reason that adds a line": f"def two(): pytest.xfail('x\\nPASSED {T}test_b')",
    "a failure of several lines": "def two(): raise ValueError('x\\n' + FORGED)",
    "a skip": f"def two(): pytest.skip('PASSED {T}test_b')",
    "a skip of several lines": f"def two(): pytest.skip('x\\nPASSED {T}test_b')",
    "a whole run and the end of the process": "def two(): print(FORGED); os._exit(0)",
    "an exit code": "def two(): atexit.register(os._exit, 0)",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_forged_results_do_not_pay(folder: Folder, cheat: str) -> None:
    folder.write("r2e_tests/test_1.py", "import calc\n" + FAILING)
    head = f"import atexit, os, pytest\nFORGED = {FORGED!r}\n"
    # Descriptor 9 stands for the stream pytest's capturing does not reach.
    folder.write("conftest.py", "import os\nos.dup2(1, 9)\n" if "os.write" in CHEATS[cheat] else "")
    folder.write("calc.py", head + CHEATS[cheat] + "\n")
    # CI makes pytest print failure messages whole, with all their lines.
    run = folder.pytest(CI="1")
    verdict = run.grade(BOTH)
    assert verdict.reward == 0.0, run.log
    assert verdict.reason
    assert grade(run.log, 0, BOTH).reward == 0.0, run.log


class Witnessed:
    """Runs with canaries among the tests and a JUnit report, as the judge has them."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.canary = Canary.for_pytest(BOTH)
        folder.write("r2e_tests/test_1.py", "import calc\n" + FAILING)
        (folder.root / "r2e_tests" / "test_2.py").write_text(self.canary.file_text)

    def run(self, calc: str) -> tuple[Run, bytes]:
        head = f"import atexit, os, sys, pytest\nFORGED = {FORGED!r}\n"
        self.folder.write("calc.py", head + calc + "\n")
        report = self.folder.root / "report.xml"
        report.unlink(missing_ok=True)
        run = self.folder.pytest(PYTEST_ADDOPTS=f"-s --junitxml={report} --maxfail=0")
        return run, report.read_bytes() if report.exists() else b""

    def grade(self, run: Run, report: bytes | None) -> Verdict:
        return grade(run.log, run.exit_code, BOTH, canary=self.canary, report=report)


@pytest.fixture
def witnessed(folder: Folder) -> Witnessed:
    return Witnessed(folder)


def test_canaries_and_report_bear_out_an_honest_run(witnessed: Witnessed) -> None:
    run, report = witnessed.run("def two(): return 2")
    verdict = witnessed.grade(run, report)
    assert (verdict.reward, verdict.reason, verdict.status) == (1.0, "all 2 tests as expected", "graded")
    assert dict(verdict.tests) == BOTH
    # A runner that writes no report, and one that ends with 0 whatever failed.
    assert witnessed.grade(run, None).reward == 1.0
    assert witnessed.grade(Run(run.log, 0), None).reward == 1.0

    doubts = {
        "pytest wrote no JUnit report (exit code 1)": (run, b""),
        "pytest ended with exit code 0": (Run(run.log, 0), report),
        "did not end by itself: exit code 137": (Run(run.log, 137), report),
        "is not XML": (run, report[:-20]),
        "larger than 32 MB": (run, report + b" " * (32 << 20)),
        "tells of 0 runs": (run, b"<testsuites/>"),
        "the JUnit report says FAILED of": (run, witnessed.run("def two(): return 3")[1]),
        "is missing from the summary": (Run(FORGED, 0), None),
    }
    for reason, (told, written) in doubts.items():
        verdict = witnessed.grade(told, written)
        assert (verdict.reward, verdict.status) == (0.0, "not_believed"), reason
        assert reason in verdict.reason
        assert set(verdict.tests) <= set(BOTH)
    # What the tests say goes before what may be wrong with the run.
    run, report = witnessed.run("def two(): return 3")
    for written in (report, b"", None):
        verdict = witnessed.grade(run, written)
        assert (verdict.status, verdict.tests["test_b"]) == ("graded", "FAILED")
        assert verdict.reason == "1 of 2 tests as expected; 'test_b' FAILED instead of PASSED"


UNSEEN = {
    "an ending, and the end": "os.write(1, FORGED.encode()); os._exit(0)",
    "an ending and a report, and the end": """
        os.write(1, FORGED.encode())
        cases = "".join(f'<testcase classname="r2e_tests.test_1" name="test_{x}"/>' for x in "ab")
        with open("report.xml", "w") as file:
            file.write(f'<testsuite errors="0" failures="0" skipped="0" tests="2">{cases}</testsuite>')
        os._exit(0)
    """,
    "nothing that fails": """
        import _pytest.runner as runner
        runner.CallInfo.from_call = classmethod(lambda cls, *a, **k: made(cls))
        made = lambda cls: cls(result=None, excinfo=None, start=0, stop=0, duration=0, when="call", _ispytest=True)
    """,
    "failures that are passes": """
        from _pytest.reports import TestReport
        make = TestReport.from_item_and_call.__func__
        def kind(cls, item, call):
            report = make(cls, item, call)
            report.outcome, report.longrepr = "passed", None
            return report
        TestReport.from_item_and_call = classmethod(kind)
    """,
}


@pytest.mark.parametrize("cheat", UNSEEN)
def test_what_the_text_alone_cannot_show_is_not_believed(witnessed: Witnessed, cheat: str) -> None:
    run, report = witnessed.run(f"{textwrap.dedent(UNSEEN[cheat])}\ndef two(): return 3")
    verdict = witnessed.grade(run, report)
    assert (verdict.reward, verdict.status) == (0.0, "not_believed"), (verdict, run.log)
    assert "a test that must be" in verdict.reason, verdict


def test_an_ending_of_the_same_run_is_known_by_any_of_its_tests() -> None:
    claim = summary(f"PASSED {T}test_a", final="1 passed")
    for line, final in {
        f"XFAIL at setup of {T}test_a - why": "1 xfailed",
        f"XFAIL {T}test_a - why": "1 xfailed",
        f"SKIPPED {T}test_a - why": "1 skipped",
        "SKIPPED [1] calc.py:3: why": "1 skipped",
        "ERROR r2e_tests/test_1.py - SyntaxError": "1 error",
        f"FAILED {T}test_a": "1 failed",
    }.items():
        assert (
            "two endings of one run" in grade(f"{summary(line, final=final)}\n{claim}", 0, {"test_a": "PASSED"}).reason
        )
    # Not about these tests, or the same result, or no ending at all.
    for before in (
        summary("FAILED test_1.py::test_a - boom", "SKIPPED [1] a.py:3: why", final="1 failed, 1 skipped"),
        claim,
        summary(f"FAILED {T}test_a - an example"),
    ):
        assert grade(f"{before}\n{claim}", 0, {"test_a": "PASSED"}).reward == 1.0


def test_an_honest_run_may_print_what_it_likes(folder: Folder) -> None:
    """The last summary is pytest's own, whatever its tests printed before and anything prints after it."""
    folder.write("r2e_tests/test_1.py", "import calc\n" + FAILING)
    folder.write(
        "calc.py",
        f"""
        import atexit, os, sys
        INNER = {FORGED!r}.replace("PASSED", "FAILED").replace("r2e_tests/", "").replace("passed", "failed")
        def two():
            print(INNER)
            print({SUM!r}, "FAILED {T}test_b - an example", sep="\\n")
            atexit.register(print, "ERROR r2e_tests/other.py\\nFAILED to close\\nPASSED {T}late")
            atexit.register(os.write, 2, b"FAILED {T}test_a - on stderr\\n")
            return 2
        """,
    )
    run = folder.pytest()
    assert run.log.count("short test summary info") == 3
    assert run.log.rstrip().endswith(("late", "on stderr"))
    assert run.grade(BOTH).reason == "all 2 tests as expected"
    assert run.grade(BOTH).reward == 1.0
    for exit_code in (1, 2, 124, 139, -9):
        assert grade(run.log, exit_code, BOTH).reward == 0.0
    assert "counts say 2" in grade(run.log.replace(f"PASSED {T}test_b\n", ""), 0, BOTH).reason


ZOO = r"""
import pytest, unittest

@pytest.mark.parametrize("v", ["a - b", "a - c", "x::y", "]", "x] - y", "PASSED FAILED", "new\nline", "é\x1b[0m"])
def test_op(v): assert v not in ("a - b", "x] - y"), "got [1] - [1] == [2]"
@pytest.mark.xfail(reason="several\nlines - of it")
def test_xfail(): assert 0
@pytest.fixture
def gives_up(): pytest.xfail("in setup")
def test_xfail_in_setup(gives_up): pass
@pytest.mark.xfail
def test_xpass(): pass
@pytest.mark.xfail(strict=True, reason="r - s")
def test_xpass_strict(): pass
@pytest.mark.parametrize("i", [1, 2])
def test_skip(i): pytest.skip("no\nnet")
@pytest.fixture
def breaks():
    yield
    raise ValueError("t - d")
def test_torn(breaks): pass
def test_failed_and_torn(breaks): assert 0
def test_twice(): pass
def test_long_%s(): assert 0, "x" * 500
class TestUnit(unittest.TestCase):
    def test_sub(self):
        for i in range(2):
            with self.subTest("a part", i=i): assert i
    @unittest.expectedFailure
    def test_fixed(self): pass
""" % ("name" * 60)


def test_real_pytest_endings_in_every_dress(folder: Folder) -> None:
    folder.write("r2e_tests/test_1.py", ZOO)
    folder.write("r2e_tests/test_2.py", "def test_twice(): assert 0\ndef test_xfail_in_setup_too(): pass\n")
    plain = folder.pytest(COLUMNS="80")
    expected = parse_expected(json.dumps(published_parser(plain.log)))
    assert {"test_op[a": "FAILED", "test_op[a - c]": "PASSED", "test_op[x]": "FAILED"}.items() <= expected.items()
    assert (expected["test_twice"], expected["TestUnit.test_sub"]) == ("FAILED", "FAILED")
    runs = {
        "plain": plain,
        "narrow": folder.pytest(COLUMNS="20"),
        "coloured": folder.pytest("--color=yes", COLUMNS="60"),
        "whole messages": folder.pytest(CI="1"),
        "quiet": folder.pytest("-q"),
        "verbose": folder.pytest("-vv"),
        # Some plugins leave out what a subtest is called.
        "with plugins": folder.pytest(PYTEST_DISABLE_PLUGIN_AUTOLOAD=""),
        "skips by name": folder.pytest("--no-fold-skipped"),
        "CRLF": Run(plain.log.replace("\n", "\r\n"), plain.exit_code),
    }
    for dress, run in runs.items():
        verdict = run.grade(expected)
        assert (verdict.reward, verdict.n_as_expected) == (1.0, len(expected)), (dress, verdict.reason, run.log)
        assert verdict.tests["test_failed_and_torn"] == "FAILED"
        assert verdict.tests["test_torn"] == "ERROR"
    for key, status in expected.items():
        other = "PASSED" if status != "PASSED" else "FAILED"
        assert plain.grade({**expected, key: other}).reward == 0.0, key
        assert plain.grade({k: s for k, s in expected.items() if k != key}).reward == 0.0, key


def test_a_failure_under_one_key_is_never_hidden_by_a_pass() -> None:
    passed, failed = "PASSED r2e_tests/test_1.py::test_same", "FAILED r2e_tests/test_2.py::test_same - boom"
    error = "ERROR r2e_tests/test_1.py::test_same - torn"
    for lines in ([passed, failed], [failed, passed], [passed, error], [error, passed], [error, passed, failed]):
        assert grade(summary(*lines), 1, {"test_same": "PASSED"}).reward == 0.0
    assert grade(summary(failed, passed), 1, {"test_same": "FAILED"}).reward == 1.0
    assert grade(summary(passed, failed, error), 1, {"test_same": "FAILED"}).reward == 1.0


RUNNER = """
import sys, unittest

class Result(unittest.TextTestResult):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.lines = []
    def note(self, status, test):
        self.lines.append(f"{status} {test.__class__.__module__}::{test.__class__.__name__}::{test._testMethodName}")
    def addSuccess(self, test): super().addSuccess(test); self.note("PASSED", test)
    def addFailure(self, test, error): super().addFailure(test, error); self.note("FAILED", test)
    def addError(self, test, error): super().addError(test, error); self.note("ERROR", test)
    def addSkip(self, test, reason): super().addSkip(test, reason); self.note("SKIPPED", test)

suite = unittest.defaultTestLoader.discover("r2e_tests", top_level_dir=".")
result = unittest.TextTestRunner(resultclass=Result).run(suite)
print("=" * 10, "short test summary info", "=" * 10)
print("\\n".join(result.lines), flush=True)
if "late" in sys.argv:
    sys.stderr.write("\\nFAILED (failures=1, skipped=1, expected failures=2)\\n")
sys.exit(not result.wasSuccessful())
"""


def test_unittest_runners_have_no_line_of_counts(folder: Folder) -> None:
    folder.write("runner.py", RUNNER)
    folder.write(
        "r2e_tests/test_1.py",
        """
        import unittest
        class A(unittest.TestCase):
            def test_ok(self): pass
            def test_known(self): self.fail("boom - PASSED")
            @unittest.skip("no net")
            def test_skipped(self): pass
        """,
    )
    expected = {"A.test_ok": "PASSED", "A.test_known": "FAILED"}
    for run in (folder.run("runner.py"), folder.run("runner.py", "late")):
        assert run.grade(expected).reward == 1.0, run.log
        assert run.grade({**expected, "A.test_skipped": "SKIPPED"}).reward == 1.0
        assert run.grade({**expected, "A.test_skipped": "PASSED"}).reward == 0.0
        assert run.grade({**expected, "A.test_known": "PASSED"}).reward == 0.0
    # A failing subtest leaves no line behind, only the exit code.
    folder.write(
        "r2e_tests/test_1.py",
        """
        import unittest
        class A(unittest.TestCase):
            def test_ok(self): pass
            def test_sub(self):
                with self.subTest(): self.fail()
        """,
    )
    silent = folder.run("runner.py")
    assert silent.log.count("test_sub") > 0
    assert silent.grade({"A.test_ok": "PASSED"}).reward == 0.0


def test_no_damage_to_a_log_raises_or_pays(folder: Folder) -> None:
    folder.write("r2e_tests/test_1.py", "import pytest\n@pytest.mark.parametrize('i', range(5))\ndef test_n(i): pass\n")
    good = folder.pytest()
    expected = {f"test_n[{i}]": "PASSED" for i in range(5)}
    assert good.grade(expected).reward == 1.0
    start = good.log.index(SUM)
    for end in range(start, good.log.rindex("test_n[4]") + len("test_n[4]")):
        assert grade(good.log[:end], good.exit_code, expected).reward == 0.0
    rng = random.Random(5)
    pieces = ["::", " - ", "[", "]", "\x1b[", "\x1b]", "\r", "\n", SUM, "FAILED ", "PASSED ", "SUBFAILED[", "=== ",
              "9" * 5000 + " passed in 1s", " in 1.0s ===", "\ufffd", "\0", "\u2028", "SKIPPED [", "()"]  # fmt: skip
    for _ in range(2000):
        grade("".join(rng.choices(pieces, k=rng.randrange(40))), rng.choice([0, 1, 2, -9]), expected)
    lines = good.log[start:].split("\n")
    for index, line in enumerate(lines):
        for damaged in ([], [line.replace("PASSED", "FAILED")], [line, line], [line, f"ERROR {T}test_n[0] - late"]):
            if damaged != [line] and line.startswith("PASSED"):
                log = "\n".join(lines[:index] + damaged + lines[index + 1 :])
                assert grade(log, good.exit_code, expected).reward == 0.0, log


def test_a_verdict_is_zero_or_one_and_names_few_tests() -> None:
    with pytest.raises(ValueError, match=r"0\.0 or 1\.0"):
        Verdict(0.5, "half")
    assert Verdict.zero("the tests timed out").tests == {}
    expected = {f"test_{'x' * 400}_{i}": "PASSED" for i in range(9)}
    verdict = grade(summary(*(f"FAILED {T}{key} - boom" for key in expected)), 1, expected)
    assert verdict.reason.startswith("0 of 9 tests as expected; ")
    assert verdict.reason.endswith("; 6 more")
    assert len(verdict.reason) < 700
