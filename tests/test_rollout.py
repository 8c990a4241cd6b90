"""Whole sessions: the real server process, real sandboxes and hidden tests, a scripted model on a real socket."""

import asyncio
import contextlib
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from endpoint import Turn, call, error
from served import Server, served
from waiting import until

from swe_rollout.sandbox import processes

MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SUBMIT = f"echo {MARKER} && cat patch.txt"
WRITE_PATCH = "git diff > patch.txt"
FORMAT_ERROR = {"role": "assistant", "content": "I am done."}


@pytest.fixture(scope="module")
def server(samples: Path, open_folder: Callable[[], Path]) -> Iterator[Server]:
    # A start-up file that complains before every command must change nothing.
    noise = "setup.script=echo 'source /missing/file; echo noise' >> /root/.bashrc"
    yield from served(samples, open_folder(), "environment.timeout=20", noise)


@pytest.fixture(scope="module")
def linked_sifs(samples: Path, open_folder: Callable[[], Path]) -> Path:
    """A folder of links to the images, from which one can be taken away."""
    folder = open_folder()
    for sif in (samples / "sifs").iterdir():
        (folder / sif.name).symlink_to(sif)
    return folder


@pytest.fixture(scope="module")
def tight(samples: Path, linked_sifs: Path, open_folder: Callable[[], Path]) -> Iterator[Server]:
    """One slot, two steps, three seconds of commands, and hidden tests that never end."""
    specs = (
        *("agent.step_limit=2", "agent.wall_time_limit_seconds=3", "environment.timeout=3", "scoring.timeout=2"),
        "scoring.command=echo started; setsid sleep 9753 & sleep 9753",
    )
    settings = {"AGENT_SERVER_TRAIN_CONCURRENCY": "1", "sifs": str(linked_sifs)}
    yield from served(samples, open_folder(), *specs, **settings)


@pytest.fixture
def one_slot(samples: Path, open_folder: Callable[[], Path]) -> Iterator[Server]:
    yield from served(
        samples,
        open_folder(),
        "scoring.command=sleep 9753",
        sifs=str(samples / "sifs"),
        AGENT_SERVER_TRAIN_CONCURRENCY="1",
    )


def test_a_solved_task(server: Server) -> None:
    """The whole way, and what is left of it for people."""
    view = server.play(
        "secret", ["ls", call(server.gold, "git status --short", content="two at once"), WRITE_PATCH, SUBMIT]
    )
    assert (view["status"], view["exit_code"], view["agent_exit_status"]) == ("completed", 0, "Submitted")
    assert (view["reward"], view["reason"], view["n_calls"]) == (1.0, "all 60 tests as expected", 4)
    assert view["submission"].startswith("diff --git a/xmltodict.py")
    assert set(view["timings"]) >= {"slot_wait", "sandbox_start", "setup", "model", "commands", "scoring", "total"}

    requests = server.endpoint.requests["sk-secret"]
    for number, body in enumerate(requests):
        assert set(body) == {"model", "messages", "tools"}
        assert body["messages"][-1]["content"].endswith(f"\n\nSteps remaining: {40 - number}")
    for earlier, later in itertools.pairwise(requests):
        assert later["messages"][: len(earlier["messages"])] == earlier["messages"], "the history was edited"
    assert requests[2]["messages"][4] == call(server.gold, "git status --short", number=0, content="two at once")
    assert "noise" not in str(requests)
    tools = [message for message in requests[2]["messages"] if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in tools] == ["call_1_0", "call_0_0", "call_0_1"]
    assert " M xmltodict.py" in tools[2]["content"]

    folder = server.folder(view["session_id"])
    assert sorted(path.name for path in folder.iterdir()) == [
        *("outcome.json", "patch.diff", "task.json", "test_log.txt", "trajectory.traj.json")
    ]
    for path in folder.iterdir():
        assert "sk-secret" not in path.read_text(), f"the API key is in {path.name}"
    assert "sk-secret" not in server.said
    outcome = json.loads(server.written(view["session_id"], "outcome.json"))
    assert outcome["grading_status"] == "graded"
    assert list(outcome["tests"].values()) == ["PASSED"] * 60, "the canaries are no tests of the task"
    assert re.search(r"\d+ failed, \d+ passed", server.written(view["session_id"], "test_log.txt"))
    patch = server.written(view["session_id"], "patch.diff")
    assert patch.startswith("diff --git a/xmltodict.py")
    assert "patch.txt" not in patch
    trajectory = json.loads(server.written(view["session_id"], "trajectory.traj.json"))
    assert trajectory["info"]["exit_status"] == "Submitted"
    assert trajectory["trajectory_format"] == "mini-swe-agent-1.1"
    asyncio.run(_inspect(folder / "trajectory.traj.json"))


async def _inspect(trajectory: Path) -> None:
    from minisweagent.run.utilities.inspector import TrajectoryInspector

    app = TrajectoryInspector([trajectory])
    async with app.run_test():
        assert app.n_steps > 3


def rewarded(gold: str) -> dict[str, tuple[float, str, Sequence[str]]]:
    """Per name: the reward, words of its reason, and the commands."""
    submit = (WRITE_PATCH, SUBMIT)
    bare = f"echo {MARKER}"
    commit = "git -c user.name=a -c user.email=b commit -qam fix; git diff > patch.txt"
    plant = """
        mkdir -p r2e_tests; printf 'def pytest_runtest_makereport(): pass' > r2e_tests/conftest.py
        echo 'exit 0' > run_tests.sh; mkdir /r2e_tests; echo > /r2e_tests/test_1.py; echo '#' >> xmltodict.py
    """
    compile_old = """
        cp -p xmltodict.py /tmp/old.py
        python3 -m compileall -q --invalidation-mode unchecked-hash xmltodict.py
    """
    exchange = """
        rm README.md && mkdir README.md && echo x > README.md/file
        rm -rf tests && ln -s /etc tests
    """
    odd = r"""
        mkfifo fifo; mkdir $'new\nline'; echo x > $'new\nline/\xff'
        chmod 000 README.md; touch --date=1970-01-01 old; mkdir -p a/.git && echo 'ref: x' > a/.git/HEAD
    """
    only_tests = """
        printf '[pytest]\\naddopts = -k nothing\\n' > pytest.ini; echo 'def test_x(): pass' > test_mine.py
        echo 'def pytest_runtest_makereport(): pass' > conftest.py; rm -f setup.cfg
    """
    return {
        "only tests": (0.0, "but what may not decide a test: conftest.py, pytest.ini", [only_tests, *submit]),
        "nothing": (0.0, "nothing was changed that git does not ignore", submit),
        "nothing at all": (0.0, "nothing was changed", [bare]),
        "useless": (0.0, "58 of 60 tests as expected", ["echo '# hm' >> xmltodict.py", *submit]),
        "gold without a patch": (1.0, "all 60 tests as expected", [gold, bare]),
        "gold, committed": (1.0, "all 60", [gold, commit, SUBMIT]),
        "planted tests": (0.0, "58 of 60", [plant, *submit]),
        "stale bytecode": (1.0, "all 60", [compile_old, f"{gold}\ntouch -r /tmp/old.py xmltodict.py", *submit]),
        "venv removed": (0.0, "nothing was changed", ["rm -rf .venv", *submit]),
        "venv removed, gold": (1.0, "all 60", [gold, "rm -rf .venv", *submit]),
        "source removed": (0.0, "failed outside any test", ["rm xmltodict.py", *submit]),
        "tree emptied": (0.0, "failed outside any test", ["rm -rf /testbed; mkdir /testbed", f"cd /; {bare}"]),
        "tree moved away": (0.0, "/testbed is no longer a folder", ["mv /testbed /elsewhere", bare]),
        "tree there and back": (1.0, "all 60", [gold, "mv /testbed /away", "pwd", "mv /away /testbed", *submit]),
        "folder for file": (1.0, "all 60", [gold, exchange, *submit]),
        "killed all": (1.0, "all 60", [gold, "kill -9 -1; kill -9 0", "pkill -9 .", *submit]),
        "odd files": (1.0, "all 60", [gold, odd, *submit]),
    }


def test_what_is_rewarded(server: Server) -> None:
    """Each session in one sandbox of its own, several at once."""
    plays = rewarded(server.gold)
    with ThreadPoolExecutor(4) as pool:
        views = list(pool.map(lambda item: server.play(f"rewarded-{item[0]}", item[1][2]), plays.items()))
    for (name, (reward, reason, _)), view in zip(plays.items(), views, strict=True):
        assert (view["status"], view["agent_exit_status"]) == ("completed", "Submitted"), (name, view)
        assert (view["reward"], view["exit_code"]) == (reward, 0), (name, view)
        assert reason in view["reason"], (name, view)
    (of_tests,) = (view for name, view in zip(plays, views, strict=True) if name == "only tests")
    withdrawn = json.loads(server.written(of_tests["session_id"], "outcome.json"))["withdrawn"]
    assert withdrawn == ["conftest.py", "pytest.ini", "setup.cfg", "test_mine.py"]


def test_the_patch_is_what_was_changed(server: Server) -> None:
    """New files, line ends and bytes as they are; what git ignores, and what git was told to hide, as it is."""
    commands = (
        "printf 'dos\\r\\nline\\r\\n' > crlf.txt; printf 'no newline' > bare.txt; printf 'latin \\xe9\\n' > latin.txt",
        "head -c 1000 /dev/zero > binary.bin; echo 'build/' >> .gitignore",
        "mkdir new && tee new/module.py new/run_tests.sh <<< new",
        "mkdir build && echo x > build/x; printf '* text eol=lf\\n*.py filter=evil diff=evil\\n' > .gitattributes",
        "git config filter.evil.clean 'echo forged'; git config core.autocrlf true; git config color.ui always",
        "git add -A; git update-index --assume-unchanged xmltodict.py; echo '# changed' >> xmltodict.py; rm README.md",
        "git diff --cached > patch.txt; printf 'two\\r\\nlines\\r\\n' >> patch.txt",
    )
    view = server.play("patch", [*commands, SUBMIT])
    assert view["submission"].endswith("two\r\nlines\r\n")
    patch = (server.folder(view["session_id"]) / "patch.diff").read_bytes()
    for expected in (
        b"+dos\r\n+line\r\n",
        b"+no newline\n\\ No newline at end of file\n",
        b"+latin \xe9\n",
        b"diff --git a/new/module.py b/new/module.py\nnew file mode",
        b"GIT binary patch",
        b"+# changed\n",
        b"diff --git a/README.md b/README.md\ndeleted file mode",
    ):
        assert expected in patch, expected
    assert b"build/x" not in patch
    assert b"new/run_tests.sh" not in patch
    assert b"forged" not in patch
    assert b"\x1b" not in patch


def test_what_a_session_leaves_is_bounded(server: Server) -> None:
    acts = [
        "head -c 8000000 /dev/zero",
        server.gold,
        f"echo {MARKER}; head -c 3000000 /dev/zero",
    ]
    view = server.play("large", acts)
    assert (view["reward"], view["reason"]) == (1.0, "all 60 tests as expected")
    assert view["submission"].endswith("\0\n[1951424 characters left out]\n")
    folder = server.folder(view["session_id"])
    (observed,) = [
        message["extra"]["raw_output"]
        for message in json.loads((folder / "trajectory.traj.json").read_text())["messages"]
        if "characters left out" in message.get("extra", {}).get("raw_output", "")
    ]
    assert len(observed) < 70_000

    view = server.play("noise", [f"{server.gold}\nhead -c 16000000 /dev/urandom > noise.bin", f"echo {MARKER}"])
    assert (view["status"], view["reward"]) == ("completed", 0.0)
    assert "the change is larger than 16 MB as a git patch" in view["reason"]


def test_the_agent_sees_neither_tests_nor_future(server: Server) -> None:
    look = (
        "find / -path /proc -prune -o \\( -name 'r2e_tests*' -o -name 'run_tests.sh' \\) -print; echo END",
        "git log --all --oneline; git reflog; git stash list; git remote; git for-each-ref; git rev-parse base HEAD",
        "env | grep -iE 'secret|token|apptainer|singularity|AGENT_SERVER'; ls -A /tmp /root; hostname; echo END",
        "git log; cat; python3 -i; git commit --allow-empty -q; git rebase -i HEAD; which python; pwd; echo END",
    )
    server.play("look", [*look, WRITE_PATCH, SUBMIT])
    messages = server.endpoint.requests["sk-look"][-1]["messages"]
    tests, history, secrets, shell, *_ = (message["content"] for message in messages if message["role"] == "tool")
    assert re.search(r"<output>\s*END", tests)
    base, head = re.findall(r"^[0-9a-f]{40}$", history, re.MULTILINE)
    assert base == head
    assert len(re.findall(r"^[0-9a-f]{7} ", history, re.MULTILINE)) == 1, "commits besides the base are named"
    assert "secret" not in secrets
    assert ".bashrc" in secrets
    assert "/testbed/.venv/bin/python\n/testbed\nEND" in shell


def test_what_the_endpoint_does(server: Server) -> None:
    """Every refusal is final: no request is sent twice, and each has the ending that belongs to it."""
    too_long = error("context_length_exceeded", "maximum context length is 4096 tokens")
    cases: dict[str, tuple[Turn, str, str]] = {
        "context": ((400, too_long), "completed", "ContextWindowExceededError"),
        "context in words": (
            (400, error("", "prompt too long for this rollout")),
            "completed",
            "ContextWindowExceededError",
        ),
        "discarded": ((404, error("session_discarded", "gone")), "cancelled", "Relax discarded the session"),
        "not found": ((404, error("", "no such route")), "failed", "answered 404: no such route"),
        "refused": ((400, error("invalid_request_error", "bad field")), "failed", "answered 400: bad field"),
        "unauthorized": ((401, {"detail": "who are you"}), "failed", "answered 401: who are you"),
        "broken": ((500, error("internal_error", "oh no")), "failed", "answered 500: oh no"),
        "busy": ((503, b"<html>come back</html>"), "failed", "answered 503: <html>come back</html>"),
        "dropped": (lambda: None, "failed", "ModelError"),
        "no JSON": ((200, b"hello"), "failed", "answered 200 without a chat message"),
        "not a number": ((200, b'{"choices": [{"message": {"content": NaN}}]}'), "failed", "NaN is not JSON"),
        "too deep": ((200, b"[" * 200000), "failed", "answered 200 without a chat message"),
        "no choices": ((200, {"choices": []}), "failed", "answered 200 without a chat message"),
    }
    for name, (turn, status, words) in cases.items():
        for turns in ([turn], ["true", turn]):
            view = server.play(f"endpoint-{name}-{len(turns)}", turns)
            assert view["status"] == status, (name, view)
            assert words in (view["error"] or view["agent_exit_status"]), (name, view)
            assert view["reward"] == (0.0 if status == "completed" else None)
            assert view["exit_code"] == {"completed": 0, "failed": 1, "cancelled": 143}[status]
            assert "\n" not in (view["error"] or "")
            assert len(server.endpoint.requests[f"sk-endpoint-{name}-{len(turns)}".replace(" ", "-")]) == len(turns)
            assert (server.folder(view["session_id"]) / "trajectory.traj.json").exists()
    view = server.play("nobody", [], base_url="http://127.0.0.1:9/agentic_api/")
    assert view["status"] == "failed"
    assert view["error"].startswith(
        "ModelError: model endpoint http://127.0.0.1:9/agentic_api/chat/completions: ConnectError"
    )


def test_format_errors_stay_in_the_history(server: Server) -> None:
    broken = call("ls")
    broken["tool_calls"][0]["function"]["arguments"] = '{"command": "ls'
    unknown = call("ls", number=7)
    unknown["tool_calls"][0]["function"]["name"] = "python"
    view = server.play("format", [FORMAT_ERROR, broken, "true", unknown, FORMAT_ERROR, broken])
    assert (view["status"], view["agent_exit_status"], view["reward"]) == ("completed", "RepeatedFormatError", 0.0)
    assert (view["submission"], view["n_calls"]) == ("", 6)
    messages = server.endpoint.requests["sk-format"][-1]["messages"]
    assert [message for message in messages if message["role"] == "assistant"] == [
        *(FORMAT_ERROR, broken, call("true", number=3), unknown, FORMAT_ERROR)
    ]
    complaints = [(message["role"], message.get("tool_call_id")) for message in messages[3:]]
    assert complaints[0::2] == [
        ("user", None),
        ("tool", "call_0_0"),
        ("tool", "call_3_0"),
        ("tool", "call_7_0"),
        ("user", None),
    ]
    assert "Unknown tool 'python'" in messages[-3]["content"]

    # What is no Unicode text goes back as it came.
    half = call("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", content="half \ud800 a pair")
    view = server.play("surrogate", [call("true", content="half \ud800 a pair"), half])
    assert (view["status"], view["n_calls"]) == ("completed", 2)
    assert server.endpoint.requests["sk-surrogate"][-1]["messages"][2]["content"] == "half \ud800 a pair"

    # Text around the marker, a failed command, a file that holds the marker: nothing of that submits.
    marker = MARKER
    no_submit = (
        *(
            f"echo {marker}; cat /missing",
            f"false && echo {marker}",
            f"echo {marker} && cat xmltodict.py > /missing/file",
        ),
        *(f"echo {marker} > f; grep -n {marker} f", f"echo text; echo {marker}"),
    )
    submit = call(f"printf '\\n\\n{marker}\\nthe patch\\r\\n'", "touch /testbed/after")
    view = server.play("submits", [*no_submit, submit])
    assert (view["agent_exit_status"], view["submission"], view["n_calls"]) == ("Submitted", "the patch\r\n", 6)


def test_limits(tight: Server, linked_sifs: Path) -> None:
    """A limit is a sample without reward, and the work is still stored; the one slot is free each time."""
    view = tight.play("steps", [tight.gold, "true"])
    assert (view["status"], view["agent_exit_status"], view["reward"]) == ("completed", "LimitsExceeded", 0.0)
    assert (view["submission"], view["n_calls"]) == ("", 2)
    assert "xmltodict.py" in tight.written(view["session_id"], "patch.diff")
    assert not (tight.folder(view["session_id"]) / "test_log.txt").exists()
    last = tight.endpoint.requests["sk-steps"][-1]["messages"][-1]["content"]
    assert last.endswith("Steps remaining: 1")

    # When the image is gone before the work can be stored, the reward is known all the same.
    (image,) = linked_sifs.glob("*xmltodict*")
    target = image.readlink()

    def take_away() -> str:
        image.unlink()
        return "true"

    view = tight.play("gone", [tight.gold, take_away])
    image.symlink_to(target)
    assert (view["status"], view["agent_exit_status"], view["reward"]) == ("completed", "LimitsExceeded", 0.0)
    assert not (tight.folder(view["session_id"]) / "patch.diff").exists()
    until(lambda: "the patch is not stored: ImageError: " in tight.said, "its line in the log")

    view = tight.play("time", ["echo early; sleep 9753"])
    assert (view["status"], view["agent_exit_status"], view["reward"]) == ("completed", "TimeExceeded", 0.0)

    view = tight.play("hang", [tight.gold, f"echo {MARKER}"])
    assert (view["status"], view["agent_exit_status"], view["reward"]) == ("completed", "Submitted", 0.0)
    assert json.loads(tight.written(view["session_id"], "outcome.json"))["grading_status"] == "timed_out"
    assert view["reason"] == "scoring timed out: the hidden tests did not end within 2 s"
    assert tight.written(view["session_id"], "test_log.txt") == "started\n"
    assert not _runs(b"sleep\0009753")


def test_a_session_waits_for_its_model_without_a_slot(tight: Server) -> None:
    """With one slot, whoever has a command may work while all others wait for their first answer."""
    together = threading.Barrier(6)
    submit = f"echo {MARKER}"

    def gated() -> str:
        together.wait(60)
        return submit

    sessions = [tight.start(f"gated-{number}", [gated]) for number in range(6)]
    for session_id in sessions:
        assert tight.wait(session_id)["agent_exit_status"] == "Submitted"


def test_cancel_wherever_a_session_is(one_slot: Server) -> None:
    reached, go_on = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        reached.release()
        go_on.wait(60)

    def then(turn: Turn) -> Callable[[], Turn]:
        def answer() -> Turn:
            reached.release()
            return turn

        return answer

    in_model = one_slot.start("in-model", [hold])
    assert reached.acquire(timeout=60)
    one_slot.cancel(in_model)
    assert one_slot.wait(in_model)["status"] == "cancelled"

    in_command = one_slot.start("in-command", [then("sleep 9753")])
    assert reached.acquire(timeout=60)
    until(lambda: one_slot.http.get("/readyz").json()["slots"]["train"]["in_use"] == 1)
    in_queue = one_slot.start("in-queue", [then("true")])
    until(lambda: one_slot.http.get("/readyz").json()["slots"]["train"]["waiting"] == 1)
    for session_id in (in_queue, in_command):
        one_slot.cancel(session_id)
        one_slot.cancel(session_id)
        view = one_slot.wait(session_id)
        assert (view["status"], view["exit_code"], view["reward"]) == ("cancelled", 143, None)
        assert "cancel" in view["error"]
        assert (one_slot.folder(session_id) / "outcome.json").exists()

    in_scoring = one_slot.start("in-scoring", [one_slot.gold, f"echo {MARKER}"])
    until(lambda: one_slot.http.get(f"/sessions/{in_scoring}").json()["status"] == "scoring")
    one_slot.cancel(in_scoring)
    view = one_slot.wait(in_scoring)
    assert (view["status"], view["reward"]) == ("cancelled", None)
    go_on.set()


def test_a_sandbox_that_dies_between_two_steps(server: Server) -> None:
    """The machine's fault: the session fails within that step."""

    def kill() -> str:
        (scratch,) = server.tmp.iterdir()
        (folder,) = (path for path in scratch.iterdir() if path.name.startswith("sandbox-"))
        processes.end_all(folder)
        return "echo still there?"

    view = server.play("dies", ["true", kill])
    assert (view["status"], view["exit_code"], view["reward"], view["n_calls"]) == ("failed", 1, None, 2)
    assert view["error"].startswith("SandboxError: the sandbox died")


def test_images_and_setup_that_fail(samples: Path, linked_sifs: Path, open_folder: Callable[[], Path]) -> None:
    """Never a reward: each fails its session with the cause, and the server goes on."""
    (image,) = linked_sifs.glob("*xmltodict*")
    for server in served(samples, open_folder(), "setup.script=echo cannot prepare; exit 5", sifs=str(linked_sifs)):
        view = server.play("setup", ["true"])
        assert (view["status"], view["reward"]) == ("failed", None)
        assert view["error"] == "SetupError: the setup script failed with exit code 5: cannot prepare"
        image.unlink()
        view = server.play("missing", ["true"])
        assert view["error"] == f"ImageError: image {image} cannot be read: No such file or directory; build it again"
        image.write_bytes(b"<html>429</html>")
        view = server.play("damaged", ["true"])
        assert view["error"] == f"ImageError: image {image} is not a SIF file (16 bytes); build it again"
        assert view["status"] == "failed"
        server.play("nobody", [], base_url="http://127.0.0.1:9/agentic_api/")
        # The row is blamed for its image and its setup, not for the model endpoint.
        (row,) = server.http.get("/tasks").json()["tasks"]
        assert (row["failures"], row["other_failures"], row["last_failure"]) == (3, 1, view["error"])


def _runs(command: bytes) -> bool:
    """Whether any process of the machine has it on its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            if command in path.read_bytes():
                return True
    return False
