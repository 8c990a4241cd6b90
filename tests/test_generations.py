"""Every generation of the trainer's contract, played end to end: real server, real client, real sandboxes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import until

ROOT = Path(__file__).resolve().parents[1]
PARQUET = "data/R2E-Gym-Subset/data/train-00000-of-00001.parquet"
CLIENT = f"bash {ROOT}/agent_client.sh"


class Server:
    """A real agent server for groups of four that serves all sample tasks for training."""

    def __init__(self, samples: Path, folder: Path, *specs: str, **variables: str) -> None:
        self.samples = samples
        self._process = subprocess.Popen(
            [
                sys.executable,
                "agent_server.py",
                "--port=0",
                "--config=data.eval=",
                *(f"--config={spec}" for spec in specs),
            ],
            cwd=ROOT,
            env={
                **os.environ,
                "R2E_DATA_PATH": str(samples / "data"),
                "R2E_SIF_DIR": str(samples / "sifs"),
                "AGENT_SERVER_WORK_DIR": str(folder / "work"),
                "AGENT_SERVER_TMP_DIR": str(folder / "tmp"),
                "AGENT_SERVER_HTTP_THREADS": "64",
                "AGENT_SERVER_TRAIN_GROUP_SIZE": "4",
                **variables,
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        said = ""
        for line in self._process.stderr:
            said += line
            if found := re.search(r"listening on (\S+)", line):
                self.url = found[1]
                break
        else:
            raise AssertionError(said)
        threading.Thread(target=self._process.stderr.read, daemon=True).start()
        self.http = httpx.Client(base_url=self.url, timeout=100, trust_env=False)

    def open_sessions(self) -> list[str]:
        return [record["session_id"] for record in self._list() if record["exit_code"] is None]

    def records(self, client_session_ids: Sequence[str]) -> list[dict[str, Any]]:
        """The server's records of these sessions, in this order, once all of them have ended."""
        views: dict[str, dict[str, Any]] = {}
        for record in self._list():
            view = self.http.get(f"/sessions/{record['session_id']}", params={"wait": 60}).json()
            # An id may come again: the newest is listed first.
            views.setdefault(view["client_session_id"], view)
        return [views[name] for name in client_session_ids]

    def assert_idle(self) -> None:
        """No session is open and every slot is free."""
        for session_id in self.open_sessions():
            self.http.get(f"/sessions/{session_id}", params={"wait": 60})
        assert not self.open_sessions()
        until(lambda: all(pool["in_use"] == pool["waiting"] == 0 for pool in self._slots()))

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(60) == 143
        self.http.close()

    def _list(self) -> list[dict[str, Any]]:
        sessions: list[dict[str, Any]] = self.http.get("/sessions").json()["sessions"]
        return sessions

    def _slots(self) -> list[dict[str, int]]:
        return list(self.http.get("/readyz").json()["slots"].values())


@dataclass
class Run:
    """One `local_relax` against a server, and what it says."""

    process: "subprocess.Popen[str]"
    report_file: Path
    said: str = ""

    def read_until(self, words: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return
        raise AssertionError(self.said)

    def end(self) -> int:
        """Its exit code."""
        output, _ = self.process.communicate()
        self.said += output
        return self.process.returncode

    @property
    def groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = json.loads(self.report_file.read_text())["groups"]
        return sorted(groups, key=lambda group: str(group["group_id"]))

    @property
    def sessions(self) -> list[dict[str, Any]]:
        return [session for group in self.groups for session in group["sessions"]]


@contextlib.contextmanager
def relax(server: Server, folder: Path, generation: str, *options: str, command: str = CLIENT) -> Iterator[Run]:
    """A run that is over, one way or the other, after the block."""
    report = folder / f"report-{time.monotonic_ns()}.json"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "local_relax", "--generation", generation, "--group-size", "4"),
            *("--agent-command", command, "--agent-env", f"AGENT_SERVER_URL={server.url}", f"NOTES={folder}"),
            *("--data", str(server.samples / PARQUET), "--report", str(report), *options),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Run(process, report)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate()


@pytest.fixture(scope="module")
def server(samples: Path, open_folder: Callable[[], Path]) -> Iterator[Server]:
    yield from _served(samples, open_folder(), "environment.timeout=3")


@pytest.fixture(scope="module")
def one_slot(samples: Path, open_folder: Callable[[], Path]) -> Iterator[Server]:
    """One training sandbox at a time, and commands that may take as long as they like."""
    yield from _served(samples, open_folder(), "environment.timeout=600", AGENT_SERVER_TRAIN_CONCURRENCY="1")


def _served(*args: Any, **variables: str) -> Iterator[Server]:
    server = Server(*args, **variables)
    yield server
    server.assert_idle()
    server.close()


@pytest.mark.parametrize("generation", ["A", "B", "C"])
def test_every_policy_scores_what_it_should(server: Server, tmp_path: Path, generation: str) -> None:
    """A committed group also proves that no history forked: it would have been dropped."""
    with relax(server, tmp_path, generation, "--policies", "gold,noop,wrong,chatty", "--expect") as run:
        assert run.end() == 0, run.said
    (group,) = run.groups
    assert group["ending"] == "committed"
    samples = [session["samples"][0] for session in run.sessions]
    assert [sample["reward"] for sample in samples] == ([0, 0, 0, 0] if generation == "A" else [1, 0, 0, 1])
    assert [session["turns"] for session in run.sessions] == ([3] * 4 if generation == "A" else [7, 3, 5, 15])
    assert {sample["metadata"]["exit_status"] for sample in samples} == {
        "RepeatedFormatError" if generation == "A" else "Submitted"
    }
    records = server.records([session["session_id"] for session in run.sessions])
    for session, sample, record in zip(run.sessions, samples, records, strict=True):
        assert (record["status"], record["group_id"]) == ("completed", session["group_id"])
        assert (record["reward"], record["task_id"]) == (sample["reward"], sample["metadata"]["task_id"])
        assert record["n_calls"] == session["turns"]


@pytest.mark.parametrize("generation", ["B", "C"])
def test_a_pause_longer_than_a_command_may_take(server: Server, tmp_path: Path, generation: str) -> None:
    pause = ("--pause-after", "10", "--pause-seconds", "5", "--expect")
    with relax(server, tmp_path, generation, "--policies", "gold,chatty,chatty,noop", *pause) as run:
        assert run.end() == 0, run.said
    assert run.said.index("generation closed after 10 answers") < run.said.index("generation open again")
    records = server.records([session["session_id"] for session in run.sessions])
    assert [(record["status"], record["error"]) for record in records] == [("completed", None)] * 4


@pytest.mark.parametrize("generation", ["A", "C"])
def test_a_discarded_session_ends_by_the_refusal_alone(server: Server, tmp_path: Path, generation: str) -> None:
    """The client is deaf to signals here, so nobody but the trainer's 404 tells the server."""
    deaf = f"trap '' TERM; exec {CLIENT}"
    with relax(server, tmp_path, generation, "--policies", "gold", "--think", "600", command=deaf) as run:
        run.read_until("group leased")
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 143, run.said
    assert [session["exit_code"] for session in run.sessions] == [None] * 4
    records = server.records([session["session_id"] for session in run.sessions])
    for record in records:
        assert (record["status"], record["exit_code"]) == ("cancelled", 143)
        assert record["error"] == "Relax discarded the session"
        assert record["reward"] is None


def test_group_ids_that_come_again_work_on_one_row_each(server: Server, tmp_path: Path) -> None:
    """The first run gives its groups up when two of four sessions have come; the second has the same ids."""
    half = f"""
    mkdir "$NOTES/1.$RELAX_GROUP_ID" 2>/dev/null || mkdir "$NOTES/2.$RELAX_GROUP_ID" 2>/dev/null && exec {CLIENT}
    open='[.sessions[] | select(.exit_code == null)] | length >= 2'
    until curl -s "$AGENT_SERVER_URL/sessions?group_id=$RELAX_GROUP_ID" | jq -e "$open" > /dev/null; do sleep 0.1; done
    exit 5
    """
    groups = ("--groups", "2", "--concurrency", "2", "--policies", "noop")
    with relax(server, tmp_path, "C", *groups, "--refills", "0", command=half) as first:
        assert first.end() == 1, first.said
    assert "agent exited with code 5" in first.said
    server.assert_idle()

    with relax(server, tmp_path, "C", *groups, "--expect") as second:
        assert second.end() == 0, second.said
    assert {group["group_id"] for group in first.groups} <= {group["group_id"] for group in second.groups}
    for group in second.groups:
        tasks = {session["samples"][0]["metadata"]["task_id"] for session in group["sessions"]}
        assert (len(group["sessions"]), len(tasks)) == (4, 1)


def test_a_group_dropped_midway_frees_its_slots(one_slot: Server, tmp_path: Path) -> None:
    """One session is in a command that does not end, the others wait for its slot."""
    options = ("--policies", "chatty", "--agent-timeout", "4", "--refills", "0")
    with relax(one_slot, tmp_path, "B", *options) as run:
        assert run.end() == 1, run.said
    assert "agents timed out after 4 seconds" in run.said
    assert [session["exit_code"] for session in run.sessions] == [None] * 4
    records = one_slot.records([session["session_id"] for session in run.sessions])
    assert [(record["status"], record["reward"]) for record in records] == [("cancelled", None)] * 4
    one_slot.assert_idle()


def test_gated_groups_pass_one_slot(one_slot: Server, tmp_path: Path) -> None:
    """Each group starts when all of its sessions have asked, and sixteen of them share one sandbox."""
    with relax(one_slot, tmp_path, "C", "--groups", "4", "--concurrency", "4", "--policies", "noop", "--expect") as run:
        assert run.end() == 0, run.said
    assert [group["ending"] for group in run.groups] == ["committed"] * 4
