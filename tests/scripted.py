"""Rollouts that go where a test sends them, behind the real sessions, the real HTTP face and a real socket.

Run as a program it is a server with the real command line, start line and signals; every session waits until it
is cancelled.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import agent_server
from swe_rollout.assembly import Parts
from swe_rollout.listener import Listener, bind
from swe_rollout.outcome import Outcome
from swe_rollout.session import Mode, Session
from swe_rollout.settings import Settings, load_settings
from swe_rollout.slots import Slots
from swe_rollout.tasks import Task, TaskPool

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
            {"t": "PASSED"},
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
        values = {"r2e_data_path": folder, "r2e_sif_dir": folder, "http_threads": 32, **settings}
        self.sessions, app = agent_server.build(Settings(**values), self.parts)
        self._listener = Listener(front(app), bind("127.0.0.1", 0), threads=values["http_threads"])
        self.url = self._listener.url
        self.http = httpx.Client(base_url=self.url, timeout=60, trust_env=False)
        self._thread = threading.Thread(target=self._listener.run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.sessions.close("the test is over", seconds=10)
        self._listener.stop(seconds=10)
        self._thread.join(10)
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
    sys.exit(agent_server.serve(chosen, make_parts(Gate()), bind(chosen.host, chosen.port)))
