"""Whole sessions: the real server process, real sandboxes and hidden tests, a scripted model on a real socket."""

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from endpoint import Endpoint, Turn, call, error

from data.parsed_commit import rebuild_diff
from swe_rollout.sandbox import processes

REPOSITORY = Path(__file__).parents[1]
PARQUET = "R2E-Gym-Subset/data/train-00000-of-00001.parquet"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"
WRITE_PATCH = "git diff > patch.txt"
FORMAT_ERROR = {"role": "assistant", "content": "I am done."}


class Server:
    """A real agent server that serves one sample task."""

    def __init__(self, samples: Path, folder: Path, *specs: str, **settings: str) -> None:
        self.endpoint = Endpoint()
        self._groups = 0
        self.work = folder / "work"
        self.tmp = folder / "tmp"
        data = folder / "data" / PARQUET
        data.parent.mkdir(parents=True)
        table = pq.read_table(samples / "data" / PARQUET)
        rows = table.filter([name == "xmltodict" for name in table["repo_name"].to_pylist()])
        pq.write_table(rows, data)
        row = rows.to_pylist()[0]
        self.gold = f"git apply <<'EOF_GOLD'\n{rebuild_diff(json.loads(row['parsed_commit_content']))}EOF_GOLD"
        self._process = subprocess.Popen(
            [sys.executable, "agent_server.py", "--port=0", *(f"--config={spec}" for spec in specs)],
            cwd=REPOSITORY,
            env={
                **os.environ,
                "R2E_DATA_PATH": str(folder / "data"),
                "R2E_SIF_DIR": settings.pop("sifs", str(samples / "sifs")),
                "AGENT_SERVER_WORK_DIR": str(self.work),
                "AGENT_SERVER_TMP_DIR": str(self.tmp),
                "AGENT_SERVER_HTTP_THREADS": "64",
                **settings,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self.said = ""
        for line in self._process.stderr:
            self.said += line
            if found := re.search(r"listening on (\S+)", line):
                self.http = httpx.Client(base_url=found[1], timeout=400, trust_env=False)
                threading.Thread(target=self._listen, daemon=True).start()
                break
        else:
            raise AssertionError(self.said)

    def start(self, key: str, turns: Sequence[Turn], *, group: str | None = None, base_url: str | None = None) -> str:
        """Begin a session whose model does `turns`; its id."""
        key = f"sk-{key}"
        self.endpoint.script(key, turns)
        self._groups += 1
        body = {"session_id": key, "group_id": group or f"group-{self._groups}", "mode": "train", "api_key": key}
        answer = self.http.post("/sessions", json={**body, "base_url": base_url or self.endpoint.url})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["session_id"])

    def wait(self, session_id: str) -> dict[str, Any]:
        for _ in range(10):
            view: dict[str, Any] = self.http.get(f"/sessions/{session_id}", params={"wait": 60}).json()
            if view["exit_code"] is not None:
                return view
        raise AssertionError(view)

    def play(self, key: str, turns: Sequence[Turn], **options: Any) -> dict[str, Any]:
        return self.wait(self.start(key, turns, **options))

    def cancel(self, session_id: str) -> None:
        assert self.http.post(f"/sessions/{session_id}/cancel").status_code == 204

    def folder(self, session_id: str) -> Path:
        (folder,) = self.work.glob(f"sessions/*/{session_id}")
        return folder

    def written(self, session_id: str, name: str) -> str:
        return (self.folder(session_id) / name).read_bytes().decode()

    def assert_idle(self) -> None:
        """All slots are free and no sandbox is left."""
        slots = self.http.get("/readyz").json()["slots"]
        assert all(pool["in_use"] == pool["waiting"] == 0 for pool in slots.values()), slots
        (scratch,) = self.tmp.iterdir()
        assert sorted(path.name for path in scratch.iterdir()) == ["empty", "home", "lock"]

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 143
        self.endpoint.close()
        assert list(self.tmp.iterdir()) == []
        assert processes.belonging_to(self.tmp) == []

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said += line


def _served(*args: Any, **settings: str) -> Iterator[Server]:
    server = Server(*args, **settings)
    yield server
    server.assert_idle()
    server.close()


@pytest.fixture(scope="module")
def server(samples: Path, open_folder: Callable[[], Path]) -> Iterator[Server]:
    yield from _served(samples, open_folder(), "environment.timeout=20")


@pytest.fixture(scope="module")
def tight(samples: Path, open_folder: Callable[[], Path]) -> Iterator[Server]:
    """One slot, two steps, three seconds of commands, and hidden tests that never end."""
    specs = (
        *("agent.step_limit=2", "agent.wall_time_limit_seconds=3", "environment.timeout=3", "scoring.timeout=2"),
        "scoring.command=echo started; setsid sleep 9753 & sleep 9753",
    )
    yield from _served(samples, open_folder(), *specs, AGENT_SERVER_TRAIN_CONCURRENCY="1")


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
    assert "60 passed" in server.written(view["session_id"], "test_log.txt")
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


def test_what_is_rewarded(server: Server) -> None:
    """Each session in one sandbox of its own, several at once."""
    gold, submit = server.gold, [WRITE_PATCH, SUBMIT]
    plays: dict[str, tuple[Sequence[Turn], float, str]] = {
        "nothing": (submit, 0.0, "nothing was changed that git does not ignore"),
        "nothing at all": (["echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"], 0.0, "nothing was changed"),
        "useless": (["echo '# hm' >> xmltodict.py", *submit], 0.0, "58 of 60 tests as expected"),
        "gold without a patch": ([gold, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"], 1.0, "all 60 tests"),
        "gold, committed": ([gold, "git -c user.name=a -c user.email=b commit -qam fix; git diff > patch.txt", SUBMIT], 1.0, "all"),
        "planted": (
            [
                "mkdir -p r2e_tests; printf 'def pytest_runtest_makereport(): pass' > r2e_tests/conftest.py;"
                " echo 'exit 0' > run_tests.sh; mkdir /r2e_tests; echo > /r2e_tests/test_1.py; echo '#' >> xmltodict.py",
                *submit,
            ],
            0.0,
            "58 of 60",
        ),
        "stale bytecode": (
            [
                "cp -p xmltodict.py /tmp/old.py; python3 -m compileall -q --invalidation-mode unchecked-hash xmltodict.py",
                f"{gold}\ntouch -r /tmp/old.py xmltodict.py",
                *submit,
            ],
            1.0,
            "all 60",
        ),
        "venv removed": (["rm -rf .venv", *submit], 0.0, "nothing was changed"),
        "venv removed, gold": ([gold, "rm -rf .venv", *submit], 1.0, "all 60"),
        "source removed": (["rm xmltodict.py", *submit], 0.0, "failed outside any test"),
        "tree removed": (["rm -rf /testbed; mkdir /testbed", "cd /testbed && echo > patch.txt", SUBMIT], 0.0, ""),
        "tree moved away": (["mv /testbed /elsewhere", "cd /; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"], 0.0, "/testbed is no longer a folder"),
        "tree moved and back": ([gold, "mv /testbed /elsewhere", "pwd", "mv /elsewhere /testbed", *submit], 1.0, "all 60"),
        "folder for file": ([f"{gold}\nrm README.md && mkdir README.md && echo x > README.md/file; rm -rf tests && ln -s /etc tests", *submit], 1.0, "all 60"),
        "killed all": ([gold, "kill -9 -1; kill -9 0", "pkill -9 .", *submit], 1.0, "all 60"),
        "odd files": ([gold + "\nmkfifo fifo; mkdir $'new\\nline'; echo x > $'new\\nline/\\xff'; chmod 000 README.md; touch --date=1970-01-01 old", *submit], 1.0, "all 60"),
    }  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        views = list(pool.map(lambda item: server.play(f"rewarded-{item[0]}", item[1][0]), plays.items()))
    for (name, (_, reward, reason)), view in zip(plays.items(), views, strict=True):
        assert (view["status"], view["agent_exit_status"]) == ("completed", "Submitted"), (name, view)
        assert (view["reward"], view["exit_code"]) == (reward, 0), (name, view)
        assert reason in view["reason"], (name, view)


def test_the_patch_is_what_was_changed(server: Server) -> None:
    """New files, line ends and bytes as they are; what git ignores, and what git was told to hide, as it is."""
    commands = (
        "printf 'dos\\r\\nline\\r\\n' > crlf.txt; printf 'no newline' > bare.txt; printf 'latin \\xe9\\n' > latin.txt",
        "head -c 1000 /dev/urandom > binary.bin; mkdir new && echo new > new/module.py; echo 'build/' >> .gitignore",
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
    assert b"forged" not in patch
    assert b"\x1b" not in patch


def test_the_agent_sees_neither_tests_nor_future(server: Server) -> None:
    look = (
        "find / -path /proc -prune -o \\( -name 'r2e_tests*' -o -name 'run_tests.sh' \\) -print; echo END",
        "git log --all --oneline | cat; git reflog; git stash list; git remote; git for-each-ref; git rev-parse base HEAD; echo END",
        "env | grep -iE 'secret|token|apptainer|singularity|AGENT_SERVER'; ls -A /tmp /root; hostname; echo END",
        "git log | head -50; cat; python3 -i; git commit --allow-empty -q; git rebase -i HEAD 2>&1 | head -3; which python; pwd; echo END",
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
            assert len(server.endpoint.requests[f"sk-endpoint-{name}-{len(turns)}"]) == len(turns)
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

    # Text around the marker, a failed command, a file that holds the marker: nothing of that submits.
    marker = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
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


def test_limits(tight: Server) -> None:
    """A limit is a sample without reward, and the work is still stored; the one slot is free each time."""
    view = tight.play("steps", [tight.gold, "true"])
    assert (view["status"], view["agent_exit_status"], view["reward"]) == ("completed", "LimitsExceeded", 0.0)
    assert (view["submission"], view["n_calls"]) == ("", 2)
    assert "xmltodict.py" in tight.written(view["session_id"], "patch.diff")
    assert not (tight.folder(view["session_id"]) / "test_log.txt").exists()
    last = tight.endpoint.requests["sk-steps"][-1]["messages"][-1]["content"]
    assert last.endswith("Steps remaining: 1")

    view = tight.play("time", ["echo early; sleep 9753"])
    assert (view["status"], view["agent_exit_status"], view["reward"]) == ("completed", "TimeExceeded", 0.0)

    view = tight.play("hang", [tight.gold, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"])
    assert (view["status"], view["agent_exit_status"], view["reward"]) == ("completed", "Submitted", 0.0)
    assert view["reason"] == "scoring timed out: the hidden tests did not end within 2 s"
    assert tight.written(view["session_id"], "test_log.txt") == "started\n"
    assert b"sleep\0009753" not in b"".join(
        path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()
    )


def test_a_session_waits_for_its_model_without_a_slot(tight: Server) -> None:
    """With one slot, whoever has a command may work while all others wait for their first answer."""
    together = threading.Barrier(6)
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"

    def gated() -> str:
        together.wait(60)
        return submit

    sessions = [tight.start(f"gated-{number}", [gated]) for number in range(6)]
    for session_id in sessions:
        assert tight.wait(session_id)["agent_exit_status"] == "Submitted"


def test_cancel_wherever_a_session_is(tight: Server) -> None:
    reached, go_on = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        reached.release()
        go_on.wait(60)

    def then(turn: Turn) -> Callable[[], Turn]:
        def answer() -> Turn:
            reached.release()
            return turn

        return answer

    in_model = tight.start("in-model", [hold])
    assert reached.acquire(timeout=60)
    tight.cancel(in_model)
    assert tight.wait(in_model)["status"] == "cancelled"

    in_command = tight.start("in-command", [then("sleep 9753")])
    assert reached.acquire(timeout=60)
    _until(lambda: tight.http.get("/readyz").json()["slots"]["train"]["in_use"] == 1)
    in_queue = tight.start("in-queue", [then("true")])
    _until(lambda: tight.http.get("/readyz").json()["slots"]["train"]["waiting"] == 1)
    for session_id in (in_queue, in_command):
        tight.cancel(session_id)
        tight.cancel(session_id)
        view = tight.wait(session_id)
        assert (view["status"], view["exit_code"], view["reward"]) == ("cancelled", 143, None)
        assert "cancel" in view["error"]
        assert (tight.folder(session_id) / "outcome.json").exists()

    in_scoring = tight.start("in-scoring", [tight.gold, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"])
    _until(lambda: tight.http.get(f"/sessions/{in_scoring}").json()["status"] == "scoring")
    tight.cancel(in_scoring)
    view = tight.wait(in_scoring)
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


def test_images_and_setup_that_fail(samples: Path, open_folder: Callable[[], Path]) -> None:
    """Never a reward: each fails its session with the cause, and the server goes on."""
    sifs = open_folder()
    for sif in (samples / "sifs").iterdir():
        (sifs / sif.name).symlink_to(sif)
    (image,) = sifs.glob("*xmltodict*")
    for served in _served(samples, open_folder(), "setup.script=echo cannot prepare; exit 5", sifs=str(sifs)):
        view = served.play("setup", ["true"])
        assert (view["status"], view["reward"]) == ("failed", None)
        assert view["error"] == "SetupError: the setup script failed with exit code 5: cannot prepare"
        image.unlink()
        view = served.play("missing", ["true"])
        assert view["error"] == f"ImageError: image {image} cannot be read: No such file or directory; build it again"
        image.write_bytes(b"<html>429</html>")
        view = served.play("damaged", ["true"])
        assert view["error"] == f"ImageError: image {image} is not a SIF file (16 bytes); build it again"
        assert view["status"] == "failed"


def _until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it never came to that")
