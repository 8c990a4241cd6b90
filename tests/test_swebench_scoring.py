"""SWE-bench scoring: real rows by the real harness in its own process, and submissions in real sandboxes."""

import dataclasses
import os
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

from swe_rollout.cancellation import Cancellation
from swe_rollout.config import RolloutConfig, load_config
from swe_rollout.errors import AgentFault, Cancelled, ScoringError
from swe_rollout.sandbox import processes
from swe_rollout.sandbox.confinement import choose
from swe_rollout.sandbox.probe import open_scratch
from swe_rollout.sandbox.sandbox import SandboxHost, running
from swe_rollout.scoring.change import Change
from swe_rollout.scoring.harness import Harness
from swe_rollout.scoring.judge import Judge
from swe_rollout.scoring.judgement import Judgement
from swe_rollout.scoring.paths import paths_of
from swe_rollout.scoring.swebench import SWEBenchTests, doubt, parse_tests
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


def test_real_rows(harness: Harness, real: list[SWEBenchTests], monkeypatch: pytest.MonkeyPatch) -> None:
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
    open_files = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
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
        with pytest.raises(ValueError, match=".") as caught:
            parse_tests({**ROW, **change})
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)
    tests = parse_tests(ROW)
    assert (tests.fail_to_pass, tests.pass_to_pass, tests.eval_script) == (("t/a.py::b",), (), None)
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
        # The last line for a test counts, unless the exit code says that something failed.
        (a, ["PASSED a", "FAILED a - real", "PASSED a"], 1, 0.0),
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
    impatient = Harness(seconds=2)
    try:
        impatient.ungradable([])
        pid = impatient.pid
        hung = impatient.grade(sympy, "diff", endless, Cancellation())
        assert (hung.reward, hung.status) == (0.0, "parser_error")
        assert hung.reason == "the log parser did not end within 2 s"
        assert pid not in workers()
    finally:
        impatient.close()

    cancellation = Cancellation()
    timer = threading.Timer(0.5, cancellation.cancel, ["given up"])
    timer.start()
    with pytest.raises(Cancelled, match="given up"):
        harness.grade(sympy, "diff", endless, cancellation)
    assert harness.pid is None


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
    start = "import os; from swe_rollout.scoring.worker_process import WorkerProcess\n"
    start += "worker = WorkerProcess(5); print(worker.pid, worker.folder, flush=True); os._exit(9)"
    done = subprocess.run(
        [sys.executable, "-c", start], cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=False
    )
    pid, folder = done.stdout.split()
    for _ in range(1200):
        if not processes.any_left([int(pid)]):
            break
        time.sleep(0.05)
    assert not processes.any_left([int(pid)])
    assert not Path(folder).exists()
