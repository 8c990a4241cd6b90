"""Rollouts that go where a test sends them, behind the real sessions, the real HTTP face and a real socket.

Run as a program it is a server with the real command line, start line and signals. Sessions of groups that are called
done-… complete at once, those of hang-… never end, the others wait until they are cancelled.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import agent_server
from swe_rollout.assembly import Parts
from swe_rollout.errors import StartupError
from swe_rollout.journal import Journal
from swe_rollout.leases import TaskPool
from swe_rollout.listener import bind
from swe_rollout.outcome import Outcome
from swe_rollout.scoring.r2e import R2ETests
from swe_rollout.service import Service
from swe_rollout.session import Mode, Session
from swe_rollout.settings import Settings, load_settings
from swe_rollout.slots import Slots
from swe_rollout.tasks import Task

Run = Callable[[Session], Outcome]


@dataclass
class Gate:
    """A rollout that goes through `stages`, waits to be let through or cancelled, and ends with `outcome`."""

    outcome: Outcome = field(default_factory=lambda: Outcome.completed("Submitted", 1.0, submission="diff", n_calls=3))
    stages: Sequence[Any] = ("running",)

    def __post_init__(self) -> None:
        self._condition = threading.Condition()
        self._open = False
        self._waiting: list[Session] = []

    def __call__(self, session: Session) -> Outcome:
        for stage in self.stages:
            session.advance(stage)
        with session.cancellation.waking(self._wake), self._condition:
            self._waiting.append(session)
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._open or session.cancellation.reason)
        session.cancellation.check()
        session.note("model", 1.25)
        session.note("scoring", 0.5)
        return self.outcome

    def wait_for(self, count: int) -> list[Session]:
        """Return when `count` sessions have come here."""
        with self._condition:
            assert self._condition.wait_for(lambda: len(self._waiting) >= count, timeout=60)
            return list(self._waiting)

    def open(self) -> None:
        """Let all through, also those still to come."""
        with self._condition:
            self._open = True
            self._condition.notify_all()

    def _wake(self) -> None:
        with self._condition:
            self._condition.notify_all()


def make_parts(run: Run, *, modes: Sequence[Mode] = ("train",)) -> Parts:
    tasks = [
        Task(
            f"calc__{number:012d}",
            f"calc:{number}",
            Path(f"/sifs/calc__{number}.sif"),
            "calc",
            "Fix it.",
            R2ETests({"t": "PASSED"}),
        )
        for number in range(3)
    ]
    return Parts(
        run=run,
        pools={mode: TaskPool(tasks, group_size=8, shuffle=False, seed=1) for mode in modes},
        slots={"train": Slots(4)},
        confinement="unprivileged: for the test",
        config_fingerprint="0123abcd",
        close=lambda: print("parts closed", flush=True),
        data={mode: {"images": 3} for mode in modes},
    )


class Server:
    """The server's parts in this process, on a free port."""

    def __init__(
        self,
        run: Run,
        folder: Path,
        *,
        modes: Sequence[Mode] = ("train",),
        front: Callable[[Any], Any] = lambda app: app,
        **settings: Any,
    ) -> None:
        """`front` may wrap the WSGI application, to see, delay or lose what passes."""
        self.parts = make_parts(run, modes=modes)
        work = Path(tempfile.mkdtemp(prefix="work-", dir=folder))
        values = {"r2e_data_path": folder, "r2e_sif_dir": folder, "work_dir": work, "http_threads": 32, **settings}
        chosen = Settings(**values)
        self._journal = Journal(chosen.work_dir)
        self._service = Service(chosen, self.parts, self._journal)
        self._service.app = front(self._service.app)
        self.sessions = self._service.sessions
        self.url = self._service.listen(bind("127.0.0.1", 0))
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self._thread = threading.Thread(target=self._service.run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._service.stop()
        self._thread.join(10)
        self._journal.close()
        self.http.close()

    def open(self, **changes: Any) -> str:
        """Open a session by HTTP; its id."""
        answer = self.http.post("/sessions", json=request_body(**changes))
        assert answer.status_code == 201, answer.text
        return str(answer.json()["session_id"])

    def ended(self, key: str) -> dict[str, Any]:
        """The answer to a long poll, which must tell of the end."""
        answer = self.http.get(f"/sessions/{key}", params={"wait": 60})
        for _ in range(600):
            if answer.status_code != 404:
                break
            # The create call is on its way.
            time.sleep(0.1)
            answer = self.http.get(f"/sessions/{key}", params={"wait": 60})
        view: dict[str, Any] = answer.json()
        assert view["exit_code"] is not None, view
        return view


class Process:
    """The program below in a process of its own, started again on the same work dir at will."""

    def __init__(self, folder: Path, *flags: str, port: str = "0", **variables: str) -> None:
        folders = ["--r2e-data-path", folder, "--r2e-sif-dir", folder, "--work-dir", folder / "work"]
        command = [sys.executable, __file__, "--port", port, "--http-threads", "16", *folders, *flags]
        environment = {**os.environ, "PYTHONPATH": str(Path(agent_server.__file__).parent), **variables}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stderr is not None
        self.start_line = self.process.stderr.readline()
        if " on " in self.start_line:
            self.url = self.start_line.split(" on ")[1].split(" ")[0]
            self.port = self.url.rsplit(":", 1)[1]
            self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def end(self, number: signal.Signals = signal.SIGKILL) -> tuple[str, str]:
        """Send it a signal if it still runs and wait for its end; what it said on stdout and stderr since the start."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.communicate(timeout=60)


def send_poll(url: str, session_id: str) -> socket.socket:
    """A long poll on a connection of its own, sent when this returns."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(f"GET /sessions/{session_id}?wait=300 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    return connection


def read_answer(connection: socket.socket) -> dict[str, Any]:
    """What a long poll was answered; waits for it."""
    body: dict[str, Any] = json.loads(connection.makefile("rb").read().split(b"\r\n\r\n", 1)[1])
    return body


def request_body(**changes: Any) -> dict[str, Any]:
    """A create call's body; a field changed to None is left out."""
    body = {
        "session_id": "agentic_session_shard_0.session-77",
        "group_id": "train:prepare_group_0",
        "mode": "train",
        "base_url": "http://relax:1/agentic_api/",
        "api_key": "key-nobody-may-see",
    }
    return {name: value for name, value in (body | changes).items() if value is not None}


if __name__ == "__main__":
    agent_server.log_to_stderr()
    chosen = load_settings(sys.argv[1:])
    gate = Gate()

    def run(session: Session) -> Outcome:
        if session.group_id.startswith("hang"):
            threading.Event().wait()
        return gate.outcome if session.group_id.startswith("done") else gate(session)

    try:
        sys.exit(agent_server.serve(chosen, make_parts(run), bind(chosen.host, chosen.port), Journal(chosen.work_dir)))
    except StartupError as error:
        sys.exit(str(error))
