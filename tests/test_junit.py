"""JUnit reports of real pytest runs, held against the text of the same run; and what is no report."""

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from swe_rollout.scoring import junit
from swe_rollout.scoring.junit import Result, contradiction, read_junit
from swe_rollout.scoring.summary import Ending, read_endings

EVERYTHING = r"""
import pytest, unittest
ODD = ["a - b", "a - c", "x::y", "]", "x] - y", "a/b.py::c[d]", "new\nline", "é\x1b[0m", "<&\">"]
@pytest.mark.parametrize("v", ODD)
def test_p(v): assert "c" not in v
@pytest.fixture
def breaks(): raise ValueError("]]> <!DOCTYPE x> \x1b[1m - b")
@pytest.fixture
def torn():
    yield
    raise KeyError("torn")
def test_broken(breaks): pass
def test_torn(torn): pass
def test_failed_and_torn(torn): assert 0, "a - b::c"
def test_skipped(): pytest.skip("no\nnet")
@pytest.mark.skipif(True, reason="never")
@pytest.mark.parametrize("v", [1, 2])
def test_never(v): pass
def test_skipped_and_torn(torn): pytest.skip("no net")
@pytest.mark.xfail(reason="r - s")
def test_xfail(): assert 0
@pytest.mark.xfail
def test_xfail_torn(torn): assert 0
@pytest.mark.xfail
def test_xpass(): pass
@pytest.mark.xfail(strict=True, reason="r - s")
def test_strict(): pass
def test_property(record_property): record_property("a", "b")
class TestOut:
    class TestIn:
        def test_p(self): pass
class Sub(unittest.TestCase):
    def test_sub(self):
        for i in range(3):
            with self.subTest(i=i): self.assertEqual(i, 0)
    def test_sub_ok(self):
        with self.subTest(i=1): pass
    def test_sub_skipped(self):
        with self.subTest(i=1): self.skipTest("no")
    @unittest.expectedFailure
    def test_known(self): self.fail()
    @unittest.expectedFailure
    def test_mended(self): pass
    @unittest.skip("x")
    def test_skipped(self): pass
"""
UNESCAPED = r"""
import pytest
@pytest.mark.parametrize("v", ["é", "\x1b[1m", "bell\x07", "日本", "#x1B"])
def test_p(v): assert v != "日本"
def test_é(): pass
"""
FORGED = """
import atexit
atexit.register(print, '''
= short test summary info =
PASSED r2e_tests/test_1.py::test_a
= 1 passed in 0.1s =''')
def test_a(): assert 0
"""


@dataclass
class Run:
    xml: bytes
    report: list[Result]
    ending: Ending


def run(root: Path, *options: str, **files: str) -> Run:
    (root / "r2e_tests").mkdir()
    for name, text in {"__init__": "", **files}.items():
        (root / "r2e_tests" / f"{name}.py").write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "CI"))}
    report = root / "report.xml"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-p", "no:cacheprovider", "-rA", *options, "r2e_tests"],
        cwd=root,
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": f"--junitxml={report}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    xml = report.read_bytes()
    return Run(xml, read_junit(xml), read_endings(done.stdout)[-1])


@pytest.fixture(scope="module", params=["xunit1", "xunit2"])
def everything(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(
        tmp_path_factory.mktemp("everything"),
        "--continue-on-collection-errors",
        f"-ojunit_family={request.param}",
        test_1=EVERYTHING,
        test_2="def test_x(:",
        test_3="import pytest\npytest.skip('all', allow_module_level=True)",
    )


def test_a_real_report_tells_what_its_text_tells(everything: Run) -> None:
    told: dict[str, list[str]] = {}
    for result in everything.report:
        told.setdefault(f"{result.classname.removeprefix('r2e_tests.')} {result.name}", []).append(result.status)
    expected = {
        "test_1 test_p[a - b]": ["PASSED"],
        "test_1 test_p[a - c]": ["FAILED"],
        "test_1 test_p[x::y]": ["PASSED"],
        "test_1 test_p[a/b.py::c[d]]": ["FAILED"],
        "test_1 test_broken": ["ERROR"],
        "test_1 test_torn": ["ERROR"],
        "test_1 test_failed_and_torn": ["FAILED", "ERROR"],
        "test_1 test_skipped": ["SKIPPED"],
        "test_1 test_skipped_and_torn": ["SKIPPED", "ERROR"],
        "test_1 test_xfail": ["XFAIL"],
        "test_1 test_xpass": ["PASSED"],
        "test_1 test_strict": ["FAILED"],
        "test_1 test_property": ["PASSED"],
        "test_1.TestOut.TestIn test_p": ["PASSED"],
        "test_1.Sub test_sub_ok": ["PASSED"],
        "test_1.Sub test_known": ["XFAIL"],
        "test_1.Sub test_mended": ["FAILED"],
        " r2e_tests.test_2": ["ERROR"],
        " r2e_tests.test_3": ["SKIPPED"],
    }
    assert {key: told.get(key) for key in expected} == expected
    assert contradiction(everything.report, everything.ending) is None


def test_every_change_of_one_side_contradicts_the_other(everything: Run) -> None:
    report, ending = everything.report, everything.ending
    n_tried = 0
    for at, result in enumerate(report):
        if result.status not in ("PASSED", "FAILED", "ERROR"):
            continue
        other = "PASSED" if result.status != "PASSED" else "FAILED"
        assert contradiction([*report[:at], replace(result, status=other), *report[at + 1 :]], ending), result
        # One more that passed can be a test that was tried again.
        assert bool(contradiction([*report, result], ending)) == (result.status != "PASSED"), result
        # A test that only the text knows, if it is not one that failed besides.
        if [one.name for one in report].count(result.name) == 1:
            assert contradiction([*report[:at], *report[at + 1 :]], ending), result
        n_tried += 1
    for at, (status, text) in enumerate(ending.entries):
        if status not in ("PASSED", "FAILED", "ERROR"):
            continue
        flipped = ("PASSED" if status != "PASSED" else "FAILED", text)
        assert contradiction(report, Ending([*ending.entries[:at], flipped, *ending.entries[at + 1 :]])), text
        n_tried += 1
    assert n_tried > 40
    assert "summary says PASSED of 'r2e_tests/test_9.py::test_new'" in str(
        contradiction(report, Ending([*ending.entries, ("PASSED", "r2e_tests/test_9.py::test_new")]))
    )
    assert contradiction([*report, Result("r2e_tests.test_9", "test_new", "PASSED")], ending)
    # The same name in another class or file is another test.
    assert contradiction(
        [Result("r2e_tests.test_1.A", "t", "PASSED")], Ending([("PASSED", "r2e_tests/test_1.py::B::t")])
    )
    assert contradiction([Result("r2e_tests.test_1", "t", "PASSED")], Ending([("PASSED", "r2e_tests/test_2.py::t")]))


def test_ids_that_text_and_xml_write_differently(tmp_path: Path) -> None:
    ini = "disable_test_id_escaping_and_forfeit_all_rights_to_community_support=true"
    unescaped = run(tmp_path, f"-o{ini}", test_1=UNESCAPED)
    assert b"#x07" in unescaped.xml
    assert Counter(result.status for result in unescaped.report) == {"PASSED": 5, "FAILED": 1}
    assert contradiction(unescaped.report, unescaped.ending) is None
    # A terminal without the letters, tests that are started from another folder, the "()" of old versions.
    report = [Result("r2e_tests.test_1.TestA", "test_é[日本]", "FAILED"), Result("", "root.r2e_tests.test_2", "ERROR")]
    entries = [
        ("FAILED", "../x/test_1.py::TestA::()::test_\\xe9[\\u65e5\\u672c] - a - b"),
        ("ERROR", "test_2.py - boom"),
    ]
    assert contradiction(report, Ending(entries)) is None


def test_a_summary_printed_after_pytest_is_contradicted(tmp_path: Path) -> None:
    forged = run(tmp_path, test_1=FORGED)
    assert forged.ending.entries == [("PASSED", "r2e_tests/test_1.py::test_a")]
    assert "JUnit report says FAILED of 'test_1 test_a'" in str(contradiction(forged.report, forged.ending))


CASE = '<testcase classname="r2e_tests.test_1" name="test_a" time="0.1">'
SUITE = '<testsuite errors="0" failures="0" skips="1" tests="2" name="pytest">'
OLD = (
    f'<?xml version="1.0" encoding="utf-8"?>{SUITE}{CASE}</testcase>{CASE}<skipped message="n"/></testcase></testsuite>'
)
NO_REPORTS = {
    "": "not XML",
    "garbage": "not XML",
    OLD[:-5]: "not XML",
    OLD + "<a/>": "not XML",
    "\ud800": "not XML",
    OLD.replace("<testsuite", "<!DOCTYPE testsuite [<!ENTITY a 'b'>]><testsuite"): "a declaration",
    OLD.replace(CASE, f"<!-- x -->{CASE}"): "a declaration",
    OLD.replace('errors="0"', 'errors="1"'): "lists 0 ERROR and counts 1",
    OLD.replace('failures="0"', ""): "lists 0 FAILED and counts none",
    OLD.replace('skips="1"', 'skipped="0"'): "lists 1 SKIPPED and counts 0",
    OLD.replace('classname="r2e_tests.test_1" ', ""): "a test without a name",
    "<html/>": "of 0 runs",
    f"<testsuites>{OLD[38:]}{OLD[38:]}</testsuites>": "of 2 runs",
    f"<testsuite>{'<a>' * 500_001}": "tags or attributes",
    "<testsuite " + " ".join(f"a{i}=''" for i in range(500_001)): "tags or attributes",
    "x" * (junit.LIMIT_BYTES + 1): "larger than",
}


@pytest.mark.parametrize("text", NO_REPORTS, ids=range(len(NO_REPORTS)))
def test_what_is_no_report_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=NO_REPORTS[text]) as caught:
        read_junit(text.encode("utf-8", "surrogatepass"))
    assert "\n" not in str(caught.value)


def test_old_reports_and_raw_escapes_are_read() -> None:
    assert [result.status for result in read_junit(OLD.encode())] == ["PASSED", "SKIPPED"]
    raw = OLD.replace('message="n"/>', ">\x1b[31m\x00</skipped>").encode().replace(b"[31m", b"\xff\xfe")
    assert [result.status for result in read_junit(raw)] == ["PASSED", "SKIPPED"]
    # Deep nesting is no danger to the parser.
    deep = OLD.replace('<skipped message="n"/>', f"<skipped/>{'<a>' * 200_000}{'</a>' * 200_000}")
    assert len(read_junit(deep.encode())) == 2


def test_no_damage_raises_anything_else(everything: Run) -> None:
    source = random.Random(7)
    n_refused = 0
    for _ in range(300):
        xml = bytearray(everything.xml)
        for _ in range(source.randint(1, 4)):
            at = source.randrange(len(xml))
            xml[at : at + source.choice([0, 1, 30])] = source.choice([b"", b"<", b'"', b"\xff", b"</testcase>", b"&x;"])
        try:
            contradiction(read_junit(bytes(xml)), everything.ending)
        except ValueError:
            n_refused += 1
    assert n_refused > 100
