"""SWE-bench scoring: real rows by the real harness in its own process, and submissions in real sandboxes."""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from swebench_rows import eval_log, real_rows, results
from waiting import until

from swe_rollout.cancellation import Cancellation
from swe_rollout.config import RolloutConfig, load_config
from swe_rollout.errors import Cancelled, ScoringError, SetupError, StartupError
from swe_rollout.sandbox import processes
from swe_rollout.sandbox.confinement import choose
from swe_rollout.sandbox.probe import open_scratch
from swe_rollout.sandbox.sandbox import Sandbox, SandboxHost, running
from swe_rollout.scoring.change import Change, capture
from swe_rollout.scoring.harness import Harness
from swe_rollout.scoring.judge import Judge
from swe_rollout.scoring.judgement import Judgement
from swe_rollout.scoring.paths import paths_of
from swe_rollout.scoring.swebench import END_MARKER, START_MARKER, SWEBenchTests, doubt, parse_tests
from swe_rollout.scoring.worker_process import WorkerLimits
from swe_rollout.tasks import Task
from swe_rollout.workspace import AgentWorkspace

ROW: dict[str, Any] = {
    "instance_id": "pallets__flask-1",
    "repo": "pallets/flask",
    "version": "2.3",
    "FAIL_TO_PASS": '["t/a.py::b"]',
    "PASS_TO_PASS": "[]",
    "docker_image": "swe-rollout-samples/flask",
}
OFFICIAL = "swebench/sweb.eval.x86_64.pallets_1776_flask-1:latest"
WORKER = b"harness_worker.py"


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def real() -> list[SWEBenchTests]:
    return [parse_tests({**row, "docker_image": "as in R2E form"}) for row in real_rows()]


def workers() -> list[int]:
    """The process ids of this process' grading processes."""
    found = []
    for pid in processes.tree(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if WORKER in command:
            found.append(pid)
    return found


def reward(harness: Harness, tests: SWEBenchTests, log: bytes) -> float:
    return harness.grade(tests, "diff --git a/x b/x\n", log, Cancellation()).reward


def test_real_rows(real: list[SWEBenchTests], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each project's own way to tell results; and the process that reads them has neither network nor secrets."""
    monkeypatch.setenv("AGENT_SERVER_TOKEN", "hunter2")
    fresh = Harness()
    assert fresh.ungradable(real) == {}
    assert [tests.repo.partition("/")[0] for tests in real] == [
        "django",
        "pylint-dev",
        "sphinx-doc",
        "sympy",
        "scikit-learn",
    ]
    for tests in real:
        everything = len(tests.fail_to_pass) + len(tests.pass_to_pass)
        solved = fresh.grade(tests, "diff", results(tests), Cancellation())
        assert (solved.reward, solved.status, solved.n_as_expected) == (1.0, "graded", everything), solved
        assert set(solved.tests) == {*tests.fail_to_pass, *tests.pass_to_pass}
        for name in (*tests.fail_to_pass, *tests.pass_to_pass):
            failed = fresh.grade(tests, "diff", results(tests, [name]), Cancellation())
            assert (failed.reward, failed.status) == (0.0, "graded"), (name, failed)
            assert repr(name) in failed.reason
        assert fresh.grade(tests, "diff", eval_log([]), Cancellation()).status == "no_results"
        empty = fresh.grade(tests, " \n", results(tests), Cancellation())
        assert (empty.reward, empty.status) == (0.0, "no_change")
        assert tests.gold_paths, tests.test_paths
        assert not tests.gold_paths & tests.test_paths
    pid = fresh.pid
    assert b"hunter2" not in Path(f"/proc/{pid}/environ").read_bytes()
    folder = Path(f"/proc/{pid}/cwd").readlink()
    open_files = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    assert not [name for name in open_files if name.startswith("socket:")]
    fresh.close()
    fresh.close()
    assert pid not in workers()
    assert not folder.exists()
    with pytest.raises(ScoringError, match="closing"):
        reward(fresh, real[0], results(real[0]))

    refused = "import sys, socket; sys.path.insert(0, sys.argv[1]); import harness_worker as w\n"
    refused += "sys.addaudithook(w.refuse_sockets); socket.create_connection(('127.0.0.1', 9))"
    source = Path(sys.modules["swe_rollout.scoring"].__path__[0])
    done = subprocess.run([sys.executable, "-c", refused, source], capture_output=True, text=True, check=False)
    assert "PermissionError: the grading process has no network" in done.stderr


def test_swebench_stays_out_of_the_server() -> None:
    look = "import sys, swe_rollout.assembly, swe_rollout.scoring.judge, swe_rollout.tasks\n"
    look += "print({name.partition('.')[0] for name in sys.modules} & {'swebench', 'datasets', 'docker', 'modal'})"
    assert subprocess.check_output([sys.executable, "-c", look], text=True, cwd=Path(__file__).parents[1]) == "set()\n"


def test_rows_that_cannot_be_judged_are_refused_by_name(harness: Harness) -> None:
    for change, reason in (
        ({"docker_image": None}, "carries no eval_script and names no image that bakes /run_tests.sh"),
        ({"docker_image": None, "eval_script": " "}, "use R2E-Gym/SWE-Bench-Verified"),
        ({"docker_image": OFFICIAL}, "carries no eval_script and names no image that bakes /run_tests.sh"),
        ({"docker_image": f"docker.io/{OFFICIAL}"}, "use R2E-Gym/SWE-Bench-Verified"),
        ({"eval_script": "pytest -rA"}, "eval_script prints no '>>>>> Start Test Output'"),
        ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS names no test"),
        ({"FAIL_TO_PASS": [], "PASS_TO_PASS": ["a"]}, "FAIL_TO_PASS names no test"),
        ({"FAIL_TO_PASS": "['a']"}, "FAIL_TO_PASS is not JSON"),
        ({"FAIL_TO_PASS": "[" * 100_000}, "FAIL_TO_PASS is not JSON"),
        ({"FAIL_TO_PASS": '"a"'}, "FAIL_TO_PASS is not a list"),
        ({"PASS_TO_PASS": [1]}, "PASS_TO_PASS is not a list"),
        ({"PASS_TO_PASS": None}, "PASS_TO_PASS is not a list"),
        ({"repo": ""}, "repo is missing"),
        ({"version": 1.0}, "version is not a text"),
    ):
        with pytest.raises(ValueError, match=re.escape(reason)) as caught:
            parse_tests({**ROW, **change})
        assert "\n" not in str(caught.value)
    tests = parse_tests(ROW)
    assert (tests.fail_to_pass, tests.pass_to_pass, tests.eval_script) == (("t/a.py::b",), (), None)
    script = "".join(f": '{marker}'\n" for marker in (START_MARKER, END_MARKER))
    assert parse_tests({**ROW, "docker_image": OFFICIAL, "eval_script": script}).eval_script == script
    bad = {
        "repo": dataclasses.replace(tests, instance_id="repo", repo="nobody/nothing"),
        "parser": dataclasses.replace(tests, instance_id="parser", log_parser="parse_log_cobol"),
        "type": dataclasses.replace(tests, instance_id="type", eval_type="sometimes"),
    }
    named = dataclasses.replace(bad["repo"], instance_id="named", log_parser="parse_log_pytest")
    reasons = harness.ungradable([tests, named, *bad.values()])
    assert reasons.keys() == bad.keys()
    assert "no log parser for nobody/nothing" in reasons["repo"]
    assert "'parse_log_cobol' is none of the harness'" in reasons["parser"]


def test_what_a_log_is_worth(harness: Harness) -> None:
    a = parse_tests({**ROW, "FAIL_TO_PASS": ["a"]})
    both = dataclasses.replace(a, pass_to_pass=("b",))
    # A skipped or missing test is not solved; one that only has to stay may be skipped.
    for tests, lines, code, expected in (
        (a, ["PASSED a"], 0, 1.0),
        (a, ["SKIPPED a"], 0, 0.0),
        (a, ["XFAIL a"], 0, 1.0),
        (a, ["ERROR a"], 1, 0.0),
        (both, ["PASSED a", "SKIPPED b"], 0, 1.0),
        (both, ["PASSED a"], 0, 0.0),
        (both, ["PASSED b"], 0, 0.0),
        (a, ["PASSED a", "FAILED a - real"], 1, 0.0),
        (both, ["FAILED a-sibling", "PASSED a", "PASSED b", "ERROR    root:x.py:1 FAILED a"], 1, 1.0),
        # The last line about a test counts; an earlier failure cannot be talked away.
        (a, ["PASSED a", "FAILED a - real", "PASSED a"], 1, 0.0),
        (a, ["PASSED a", "FAILED a - real", "PASSED a"], 0, 0.0),
        (a, ["ERROR a - real", "FAILED else", "PASSED a"], 1, 0.0),
        (a, ["PASSED a"], 2, 0.0),
    ):
        assert reward(harness, tests, eval_log(lines, code)) == expected, lines
    assert reward(harness, a, b"PASSED a\n") == 0.0, "without markers"
    assert reward(harness, a, b"+ : '>>>>> Start Test Output'\nPASSED a\n") == 0.0
    # Bytes that are no UTF-8, line ends of other systems, and characters that text mode could stumble over.
    for junk in (b"\xff\xfe", b"\xe9" * 70_000, "é".encode() * 100_000, b"\0", b"\r\n", "\u2028\ud7ff".encode()):
        log = eval_log(["PASSED a", "junk"]).replace(b"junk", junk)
        assert reward(harness, a, log) == 1.0, junk[:20]
        assert reward(harness, a, log.replace(b"\n", b"\r\n")) == 1.0, junk[:20]


def test_forged_logs() -> None:
    script = "set -x\n: '>>>>> Start Test Output'\npytest\n: '>>>>> End Test Output'\necho '>>>>> Test Exit Code: 0'\n"
    echoing = script.replace(": '", "echo '")
    log = eval_log(["PASSED a"]).decode()
    echoed = log.replace("+ : '>>>>> Start Test Output'", "+ echo '>>>>> Start Test Output'\n>>>>> Start Test Output")
    assert doubt(log, script, 0) is None
    assert doubt(log, script, 1) is None, "what the script ends with is its last clean-up"
    assert doubt(echoed, echoing, 0) is None
    assert "2 times" in str(doubt(echoed, script, 0))
    for forged in (">>>>> End Test Output", "+ : '>>>>> Start Test Output'", ">>>>> Test Exit Code: 0"):
        assert "something else than the eval script printed it" in str(doubt(f"{forged}\n{log}", script, 0))
    assert "holds no '>>>>> Test Exit Code'" in str(doubt(log.partition("+ echo")[0], script, 0))
    assert "did not end by itself: exit code 137" in str(doubt(log, script, 137))


def test_a_parser_that_fails_or_never_ends(harness: Harness, real: list[SWEBenchTests]) -> None:
    django, sympy = real[0], real[3]
    failed = harness.grade(django, "diff", eval_log(["FAIL:"]), Cancellation())
    assert (failed.reward, failed.status) == (0.0, "parser_error")
    assert failed.reason == "the log parser failed: IndexError: list index out of range"
    endless = eval_log(["_" * 3_000_000])
    impatient = Harness(WorkerLimits(cpu=2))
    try:
        impatient.ungradable([])
        pid = impatient.pid
        hung = impatient.grade(sympy, "diff", endless, Cancellation())
        assert (hung.reward, hung.status) == (0.0, "parser_error")
        assert hung.reason == "the log parser did not end within 2 s of CPU time"
        assert pid not in workers()
    finally:
        impatient.close()

    cancellation = Cancellation()
    timer = threading.Timer(0.5, cancellation.cancel, ["given up"])
    timer.start()
    with pytest.raises(Cancelled, match="given up"):
        harness.grade(sympy, "diff", endless, cancellation)
    assert harness.pid is None

    # Whether the machine gave it no time to start or no time to read the log: that says nothing of the log.
    for limits, words in (
        (WorkerLimits(start=0.01), "the grading process was not ready within 0.01 s"),
        (WorkerLimits(answer=1), "the grading process did not answer within 1 s"),
    ):
        stalled = Harness(limits)
        try:
            with pytest.raises(ScoringError, match=re.escape(words)):
                stalled.grade(sympy, "diff", endless, Cancellation())
            assert stalled.pid is None
        finally:
            stalled.close()
    with pytest.raises(StartupError, match=re.escape("was not ready within 0.01 s")):
        Harness(WorkerLimits(start=0.01)).ungradable([])


def test_the_grading_process_dies(harness: Harness) -> None:
    """Once: nobody notices. Each time: no reward is made up."""
    a = parse_tests({**ROW, "FAIL_TO_PASS": ["a"]})
    assert reward(harness, a, eval_log(["PASSED a"])) == 1.0
    assert harness.pid is not None
    os.kill(harness.pid, signal.SIGKILL)
    assert reward(harness, a, eval_log(["PASSED a"])) == 1.0

    done = threading.Event()

    def hunt() -> None:
        while not done.is_set():
            for pid in workers():
                if pid != spared:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    spared = harness.pid
    hunter = threading.Thread(target=hunt)
    hunter.start()
    unlucky = Harness()
    try:
        with pytest.raises(ScoringError, match="the grading process died 2 times"):
            reward(unlucky, a, eval_log(["PASSED a"]))
    finally:
        done.set()
        hunter.join()
        unlucky.close()


def test_the_grading_process_ends_with_the_server() -> None:
    start = "import os; from swe_rollout.scoring.worker_process import WorkerLimits, WorkerProcess\n"
    start += "worker = WorkerProcess(WorkerLimits()); print(worker.pid, worker.folder, flush=True); os._exit(9)"
    done = subprocess.run(
        [sys.executable, "-c", start], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=False
    )
    pid, folder = done.stdout.split()
    until(lambda: not processes.any_left([int(pid)]), "the grading process ends")
    assert not Path(folder).exists()


HIDDEN_TEST = """\
import xmltodict

def test_new(): assert xmltodict.answer() == 42
def test_old(): assert xmltodict.parse("<a>1</a>") == {"a": "1"}
"""
ANSWER = "\ndef answer():\n    return {}\n"


def new_file(path: str, text: str) -> str:
    """The diff that makes a file."""
    lines = text.splitlines(keepends=True)
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n" + "".join(f"+{line}" for line in lines)


def edited(text: str) -> str:
    """The diff that puts `text` near the start of the sample project's module."""
    head = "diff --git a/xmltodict.py b/xmltodict.py\n--- a/xmltodict.py\n+++ b/xmltodict.py\n"
    before = ["#!/usr/bin/env python", '"Makes working with XML feel like you are working with JSON"']
    after = ["", "try:", "    from defusedexpat import pyexpat as expat"]
    lines = text.splitlines()
    body = [*(f" {line}" for line in before), *(f"+{line}" for line in lines), *(f" {line}" for line in after)]
    return f"{head}@@ -1,5 +1,{5 + len(lines)} @@\n" + "".join(f"{line}\n" for line in body)


def eval_script(command: str = ".venv/bin/python -m pytest -rA -p no:cacheprovider tests/test_new.py") -> str:
    """As the harness makes them: it brings the hidden tests, and takes them away again."""
    return f"""#!/bin/bash
set -uxo pipefail
cd /testbed
git status --short
git apply -v - <<'EOF_114329324912'
{new_file("tests/test_new.py", HIDDEN_TEST)}EOF_114329324912
: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
git checkout HEAD tests
"""


GOLD = edited(ANSWER.format(42))
ROWS_TESTS = SWEBenchTests(
    instance_id="pallets__flask-1",
    repo="pallets/flask",
    version="2.3",
    base_commit="",
    fail_to_pass=("tests/test_new.py::test_new",),
    pass_to_pass=("tests/test_new.py::test_old",),
    eval_script=eval_script(),
    gold_paths=frozenset({"xmltodict.py"}),
)
CRLF = "diff --git a/crlf.txt b/crlf.txt\n--- a/crlf.txt\n+++ b/crlf.txt\n@@ -1,2 +1,2 @@\n one\r\n-two\r\n+2\r\n"
LATIN = (
    b"diff --git a/latin.txt b/latin.txt\n--- a/latin.txt\n+++ b/latin.txt\n@@ -1,2 +1,2 @@\n caf\xe9\n-one\n+\xfcn\n"
)
CONFIGURED = """
printf 'one\\r\\ntwo\\r\\n' > crlf.txt && printf 'caf\\xe9\\none\\n' > latin.txt
echo one | tee conftest.gone conftest.text && ln -s one conftest.link && git add crlf.txt latin.txt conftest.*
git -c user.name=a -c user.email=b commit -qm 'files with line ends and bytes of another system'
"""
CONFTESTS = """\
diff --git a/conftest.gone b/conftest.gone
deleted file mode 100644
--- a/conftest.gone
+++ /dev/null
@@ -1 +0,0 @@
-one
diff --git a/conftest.link b/conftest.link
--- a/conftest.link
+++ b/conftest.link
@@ -1 +1 @@
-one
\\ No newline at end of file
+two
\\ No newline at end of file
diff --git a/conftest.text b/conftest.text
old mode 100644
new mode 100755
"""


@pytest.fixture(scope="module")
def config() -> RolloutConfig:
    return load_config(["scoring.swebench_timeout=60"])


@pytest.fixture(scope="module")
def host(config: RolloutConfig, open_folder: Callable[[], Path]) -> Iterator[SandboxHost]:
    confinement = choose("auto", "swe-sandbox")
    scratch = open_scratch(open_folder(), "judged", confinement)
    yield SandboxHost(confinement, scratch, environment=config.environment.env)
    scratch.close()


class Bench:
    """Judges submissions to rows on the sample image."""

    def __init__(self, host: SandboxHost, config: RolloutConfig, harness: Harness, sif: Path) -> None:
        self.host, self.config, self.harness, self.sif = host, config, harness, sif

    def judge(
        self,
        submission: str | bytes,
        tests: SWEBenchTests = ROWS_TESTS,
        *,
        setup: str = "",
        timeout: float = 60,
        cancellation: Cancellation | None = None,
    ) -> Judgement:
        script = f"{self.config.setup.script}\n{setup}"
        judge = Judge(
            self.host,
            self.config.setup.model_copy(update={"script": script}),
            self.config.scoring.model_copy(update={"swebench_timeout": timeout}),
            self.harness,
        )
        task = Task(tests.instance_id, "image", self.sif, tests.repo, "fix it", tests)
        printed = submission.encode() if isinstance(submission, str) else submission
        return judge.judge(task, no_change, printed, cancellation or Cancellation(), run_tests=True)


def no_change() -> Change:
    raise AssertionError("the tree that the agent left says nothing about its submission")


@pytest.fixture(scope="module")
def bench(host: SandboxHost, config: RolloutConfig, harness: Harness, sif: Path) -> Bench:
    return Bench(host, config, harness, sif)


def test_what_is_rewarded(bench: Bench) -> None:
    """The submitted patch alone, on the image's tree, by the row's own tests."""
    skips = "import pytest; pytest.skip('no', allow_module_level=True)"
    passes_all = """
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
    weaker = new_file("tests/test_new.py", "def test_new(): pass\ndef test_old(): pass\n")
    cut = "import atexit\natexit.register(print, '>>>>> End Test Output')\n" + ANSWER.format(42)
    late = "import atexit, os\nLINE = '\\nPASSED tests/test_new.py::test_new'\n"
    late += "atexit.register(lambda: (print(LINE, flush=True), os._exit(0)))\n" + ANSWER.format(41)
    killed = "import os\n" + ANSWER.format("os.kill(os.getppid(), 9)")
    ini = new_file("pytest.ini", "[pytest]\naddopts = -p cheat\n") + new_file("cheat.py", passes_all)
    odd = new_file("X", "\n").replace("a/X b/X", r'"a/\377\n.pth" "b/\377\n.pth"')
    odd = odd.replace("+++ b/X", r'+++ "b/\377\n.pth"')
    plays: dict[str, tuple[str | bytes, float, str]] = {
        "gold": (GOLD, 1.0, "graded"),
        "gold without its last newline": (GOLD.rstrip("\n"), 1.0, "graded"),
        "gold and line ends": (CRLF + GOLD, 1.0, "graded"),
        "line ends translated": (CRLF.replace("\r\n", "\n") + GOLD, 0.0, "patch_refused"),
        "gold and bytes that are no text": (LATIN + GOLD.encode(), 1.0, "graded"),
        "bytes replaced": (LATIN.decode("utf-8", "replace") + GOLD, 0.0, "patch_refused"),
        "empty": ("", 0.0, "no_change"),
        "blank": (" \n\n", 0.0, "no_change"),
        "an error of git": (
            "fatal: not a git repository (or any of the parent directories): .git\n",
            0.0,
            "patch_refused",
        ),
        "corrupt": (GOLD.replace("-1,5 +1,", "-1,9 +1,"), 0.0, "patch_refused"),
        "words of the machine": (
            GOLD.replace("xmltodict.py", "No space left on device"),
            0.0,
            "patch_refused",
        ),
        "of another tree": (GOLD.replace(" #!/usr", " #!/opt"), 0.0, "patch_refused"),
        "wrong": (edited(ANSWER.format(41)), 0.0, "graded"),
        "skips": (edited("import pytest\n" + ANSWER.format("pytest.skip('no')")), 0.0, "graded"),
        "skips all": (edited(skips), 0.0, "no_results"),
        "conftest alone": (new_file("conftest.py", passes_all), 0.0, "no_change"),
        "conftest below": (new_file("tests/conftest.py", passes_all) + new_file("a.py", "1\n"), 0.0, "graded"),
        "a plugin": (ini, 0.0, "graded"),
        "at the start of Python": (
            new_file(".venv/lib/python3.11/site-packages/x.pth", "import os\n"),
            0.0,
            "no_change",
        ),
        "weaker tests": (weaker, 0.0, "no_change"),
        "weaker tests and gold": (weaker + GOLD, 1.0, "graded"),
        "gold and conftest": (new_file("conftest.py", "1 / 0\n") + GOLD, 1.0, "graded"),
        "gold and other changes of what is there": (GOLD + CONFTESTS, 1.0, "graded"),
        "gold and many": (GOLD + "".join(new_file(f"{n}/conftest.py", "\n") for n in range(150)), 1.0, "graded"),
        "gold and odd names": (GOLD + odd + new_file("x.egg-info/conftest.py", "\n"), 1.0, "graded"),
        "an end marker of its own": (edited(cut), 0.0, "no_results"),
        "a pass after the end": (edited(late), 0.0, "no_results"),
        "killed shell": (edited(killed), 0.0, "no_results"),
    }
    with ThreadPoolExecutor(3) as pool:
        judged = list(pool.map(lambda play: bench.judge(play[0], setup=CONFIGURED), plays.values()))
    for (name, (_, reward, status)), judgement in zip(plays.items(), judged, strict=True):
        verdict = judgement.verdict
        assert verdict is not None
        assert (verdict.reward, verdict.status) == (reward, status), (name, verdict, judgement.log.decode())
    by_name = dict(zip(plays, judged, strict=True))
    assert by_name["gold"].patch == by_name["gold without its last newline"].patch == GOLD.encode()
    assert by_name["gold and line ends"].patch == (CRLF + GOLD).encode()
    assert by_name["gold and bytes that are no text"].patch == LATIN + GOLD.encode()
    withdrawn = {
        "conftest alone": ("conftest.py",),
        "conftest below": ("tests/conftest.py",),
        "a plugin": ("pytest.ini",),
        "at the start of Python": (".venv/lib/python3.11/site-packages/x.pth",),
        "weaker tests": ("tests/test_new.py",),
        "weaker tests and gold": ("tests/test_new.py",),
        "gold and conftest": ("conftest.py",),
        "gold and other changes of what is there": ("conftest.gone", "conftest.link", "conftest.text"),
        "gold and many": tuple(sorted(f"{n}/conftest.py" for n in range(150))[:100]),
        "gold and odd names": ("x.egg-info/conftest.py", "\ufffd\n.pth"),
    }
    assert {name: one.withdrawn for name, one in by_name.items() if one.withdrawn} == withdrawn
    for name, words in {
        "of another tree": "the submission does not apply: ",
        "an error of git": "the submission is no patch",
        "weaker tests": "nothing was changed but tests and what configures them",
        "wrong": "1 of 2 tests as expected; not 'tests/test_new.py::test_new'",
        "an end marker of its own": "2 times: something else than the eval script printed it",
        "a pass after the end": "as failed and, further down, as passed",
        "killed shell": "holds no '>>>>> End Test Output'",
    }.items():
        verdict = by_name[name].verdict
        assert verdict is not None
        assert words in verdict.reason, (name, verdict)


def test_what_the_solution_touches_is_the_submission_s_to_decide(bench: Bench) -> None:
    """And what the hidden tests are in is not, whatever its name and whoever brings it."""
    odd = "tests/n\u00e9 w.py"
    in_conftest = new_file("conftest.py", "import xmltodict\nxmltodict.answer = lambda: 42\n")
    configures = dataclasses.replace(ROWS_TESTS, gold_paths=frozenset({"conftest.py"}))
    in_test_folder = new_file(r"X", "raise SystemExit\n").replace(
        "a/X b/X", r'"a/tests/n\303\251 w.py" "b/tests/n\303\251 w.py"'
    )
    in_test_folder = in_test_folder.replace("+++ b/X", r'+++ "b/tests/n\303\251 w.py"')
    listed = dataclasses.replace(
        ROWS_TESTS,
        test_paths=frozenset({odd}),
        eval_script=eval_script("ls tests; .venv/bin/python -m pytest -rA tests/test_new.py"),
    )
    with ThreadPoolExecutor(2) as pool:
        allowed = pool.submit(bench.judge, in_conftest, configures)
        official = pool.submit(bench.judge, GOLD + in_test_folder, listed)
    assert (allowed.result().verdict.reward, allowed.result().withdrawn) == (1.0, ()), allowed.result()
    assert (official.result().verdict.reward, official.result().withdrawn) == (1.0, (odd,)), official.result()
    assert b"\xc3\xa9" not in official.result().log
    assert paths_of(in_test_folder) == {odd}


def test_scripts_that_images_bake(bench: Bench) -> None:
    """Markers and results in their order on one stream; bytes that are no text; an exit code that the script hides."""
    baked = dataclasses.replace(ROWS_TESTS, fail_to_pass=("t/a.py::test_b",), pass_to_pass=(), eval_script=None)
    script = """cat > /run_tests.sh <<'EOF'
set -uxo pipefail
: '>>>>> Start Test Output'
printf '\\xff\\xfe\\nPASSED t/a.py::test_b\\n'; {}
: '>>>>> End Test Output'
EOF
"""
    everything = {
        "true": (1.0, "graded", "all 1 tests as expected"),
        "false": (0.0, "no_results", "no results that can be believed"),
        "sleep 600": (0.0, "timed_out", "scoring timed out: the hidden tests did not end within 4 s"),
        "yes | head -c 17000000": (0.0, "no_results", "printed more than 16 MB"),
        "kill -9 $$": (0.0, "no_results", "holds no '>>>>> End Test Output'"),
    }
    with ThreadPoolExecutor(3) as pool:
        jobs = {
            command: pool.submit(
                bench.judge, GOLD, baked, setup=script.format(command), timeout=4 if "sleep" in command else 60
            )
            for command in everything
        }
    for command, (reward, status, words) in everything.items():
        judgement = jobs[command].result()
        verdict = judgement.verdict
        assert verdict is not None
        assert (verdict.reward, verdict.status) == (reward, status), (command, verdict)
        assert words in verdict.reason
        assert b"\xff\xfe\nPASSED t/a.py::test_b\n" in judgement.log


_BREAK = "python3 -c 'import resource as r; r.prlimit(1, r.RLIMIT_NOFILE, (64, 64))'; sleep 600"


def test_faults_of_the_image_are_no_rewards(bench: Bench) -> None:
    baked = dataclasses.replace(ROWS_TESTS, eval_script=None)
    for tests, setup, words in (
        (baked, "", "it bakes no /run_tests.sh: cat: /run_tests.sh: No such file"),
        (baked, "echo 'pytest -rA' > /run_tests.sh", "its /run_tests.sh does not mark its test run"),
        (ROWS_TESTS, "echo cannot prepare; exit 5", "the setup script failed: cannot prepare"),
        (dataclasses.replace(ROWS_TESTS, base_commit="0" * 40), "", f"it has no commit {'0' * 40}"),
        # What would be the agent's doing if it had been there.
        (ROWS_TESTS, _BREAK, "the setup script failed: the limits of the sandbox's process 1 were changed"),
    ):
        with pytest.raises(ScoringError) as caught:
            bench.judge(GOLD, tests, setup=setup)
        assert words in str(caught.value)
        assert str(caught.value).startswith("the image cannot be used to judge: ")
    broken = bench.config.setup.model_copy(update={"script": _BREAK})
    with running(bench.host, bench.sif, Cancellation()) as sandbox, pytest.raises(SetupError) as refused:
        AgentWorkspace(sandbox, broken, ROWS_TESTS.hidden, Cancellation())
    assert str(refused.value).startswith("the setup script broke the sandbox: the limits of the sandbox's process 1")
    waiting = dataclasses.replace(ROWS_TESTS, eval_script=eval_script("sleep 600"))
    cancellation = Cancellation()
    timer = threading.Timer(1.5, cancellation.cancel, ["given up"])
    timer.start()
    with pytest.raises(Cancelled, match="given up"):
        bench.judge(GOLD, waiting, cancellation=cancellation)
    assert not list(bench.host.scratch.folder.glob("su*"))


def test_the_agent_s_sandbox(bench: Bench) -> None:
    """The image's own Python whatever its start-up file does, no hidden tests, and work that is kept at a limit."""
    image = """
env=/opt/miniconda3/envs/testbed
mkdir -p $env/bin && ln -s "$(command -v python3)" $env/bin/python && ln -s python $env/bin/tool
printf 'case $- in *i*) ;; *) return ;; esac\\nexport PATH=/nowhere\\n' > /root/.bashrc
echo 'pytest' | tee /run_tests.sh > /eval.sh
"""
    script = f"{image}\n{bench.config.setup.script}"
    setup = bench.config.setup.model_copy(update={"script": script})
    cancellation = Cancellation()
    sandbox = Sandbox(bench.host, bench.sif)
    try:
        sandbox.start(cancellation)
        workspace = AgentWorkspace(sandbox, setup, ROWS_TESTS.hidden, cancellation)
        looked = workspace.run("command -v python tool; ls /run_tests.sh /eval.sh; echo $CONDA_DEFAULT_ENV", 20).output
        assert looked.splitlines()[:2] == [f"/opt/miniconda3/envs/testbed/bin/{name}" for name in ("python", "tool")]
        assert looked.count("No such file or directory") == 2
        assert looked.endswith("testbed\n")
        workspace.run("echo '# half done' >> xmltodict.py", 20)
        sandbox.close()
        judge = Judge(bench.host, bench.config.setup, bench.config.scoring, bench.harness)
        task = Task("id", "image", bench.sif, "pallets/flask", "fix it", ROWS_TESTS)
        kept = judge.judge(
            task,
            lambda: capture(sandbox.layer, "/testbed", sandbox.folder / "change"),
            b"",
            cancellation,
            run_tests=False,
        )
        assert kept.verdict is None
        assert b"+# half done\n" in kept.patch
    finally:
        sandbox.discard()
