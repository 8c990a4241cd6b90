"""`python -m bench.load`: a thousand clients at once on the real server, beside one client at a time in the same run.

Clients and the scripted model are this process, the server is another one. A client does what agent_client.sh does,
one connection per call. All models wait for each other before the first answer, as the trainer makes them, and then
think for a while; a few sessions run commands in sandboxes meanwhile.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.endpoint import TEXT, Endpoint, Turn, call
from bench.plans import DISCARDED, SUBMIT
from bench.server import Server, machine_cpu
from swe_rollout.errors import StartupError

CREATE_TARGET = NOTICE_TARGET = 0.250
"""Seconds, 99th percentile."""
MEMORY_TARGET = 300 << 10
"""Bytes per waiting session."""
_POLL_SECONDS = 60
_GATHER_SECONDS = 300.0


@dataclass
class Latencies:
    """Seconds, one value per session."""

    create: list[float] = field(default_factory=list)
    """From the create call to its answer."""
    notice: list[float] = field(default_factory=list)
    """From the session's end in the server to the answered poll."""


@dataclass
class Load:
    """The figures of one run."""

    clients: int
    sandboxes: int
    seconds: float
    """From the first create to the last end under load."""
    alone: Latencies
    crowd: Latencies
    memory: float
    """Bytes of resident memory that each session took while all waited for their models."""
    server_cpu: float
    machine_cpu: float
    """Cores that the server, and all that ran on the machine, kept busy under load."""
    endings: Mapping[str, int]

    def show(self, console: Console) -> None:
        """One table: what one client alone sees, what each of many sees, what is aimed at."""
        table = Table(title=f"{self.clients} clients at once, {self.sandboxes} of them in sandboxes; ms")
        for column in ("call", "alone p50", "alone p99", "crowd p50", "crowd p99", "aim, p99"):
            table.add_column(column, justify="left" if column == "call" else "right")
        for name, alone, crowd, aim in (
            ("create", self.alone.create, self.crowd.create, CREATE_TARGET),
            ("session's end to poll's answer", self.alone.notice, self.crowd.notice, NOTICE_TARGET),
        ):
            cells = [percentile(values, share) for values in (alone, crowd) for share in (50, 99)]
            table.add_row(name, *(f"{cell * 1000:.0f}" for cell in cells), f"{aim * 1000:.0f}")
        console.print(table)
        console.print(
            f"{self.memory / 1024:.0f} KB resident per waiting session (aim: {MEMORY_TARGET >> 10}); "
            f"{self.seconds:.0f} s in all, {self.server_cpu:.2f} cores busy with the server, {self.machine_cpu:.2f} of "
            f"{os.cpu_count()} with everything; endings: "
            + ", ".join(f"{count} {status}" for status, count in self.endings.items())
        )


class Generator:
    """Clients and models for one server."""

    def __init__(self, server: Server, *, clients: int, sandboxes: int, think: float, ramp: float, seed: int) -> None:
        """`clients` come within `ramp` seconds; each model thinks for up to `think` seconds, twice."""
        self._server = server
        self._clients = clients
        self._sandboxes = sandboxes
        self._think = think
        self._ramp = ramp
        self._chance = random.Random(seed)
        self._host, port = server.url.removeprefix("http://").split(":")
        self._port = int(port)
        self._endpoint = Endpoint(self._policy)
        self._received: dict[str, float] = {}
        """Unix time of the answer that told of the end, by session id."""

    async def run(self, *, alone: int) -> Load:
        """Measure `alone` sessions one after the other, then all clients at once."""
        self._gate = asyncio.Event()
        self._base_url = await self._endpoint.start()
        one = Latencies()
        for number in range(alone):
            await self._session(f"sk-alone-{number}", one)
        one.notice = await self._notices()
        self._received.clear()
        before, busy = self._server.usage(), machine_cpu()
        began = time.monotonic()
        crowd = Latencies()
        sessions = []
        for number in range(self._clients):
            sessions.append(asyncio.create_task(self._session(f"sk-crowd-{number}", crowd)))
            await asyncio.sleep(max(0.0, began + self._ramp * number / self._clients - time.monotonic()))
        await self._gathered(alone + self._clients)
        memory = (self._server.usage().rss - before.rss) / self._clients
        self._gate.set()
        await asyncio.gather(*sessions)
        seconds = time.monotonic() - began
        server_cpu = (self._server.usage().cpu - before.cpu) / seconds
        total_cpu = (machine_cpu() - busy) / seconds
        crowd.notice = await self._notices()
        counts = (await self._call("GET", "/readyz"))["counts"]["train"]
        await self._endpoint.close()
        endings = {status: count for status, count in counts.items() if count}
        return Load(self._clients, self._sandboxes, seconds, one, crowd, memory, server_cpu, total_cpu, endings)

    async def _session(self, key: str, latencies: Latencies) -> None:
        """What agent_client.sh does."""
        body = {"session_id": key, "group_id": key, "mode": "train", "base_url": self._base_url, "api_key": key}
        began = time.monotonic()
        session = await self._call("POST", "/sessions", {**body, "request_id": f"req-{key}"})
        latencies.create.append(time.monotonic() - began)
        while session.get("exit_code") is None:
            session = await self._call("GET", f"/sessions/{session['session_id']}?wait={_POLL_SECONDS}")
        self._received[session["session_id"]] = time.time()

    async def _gathered(self, asked: int) -> None:
        """Wait until every model was asked for its first turn. Raises `StartupError` when that does not come."""
        deadline = time.monotonic() + _GATHER_SECONDS
        while len(self._endpoint.asked) < asked:
            if time.monotonic() > deadline:
                raise StartupError(f"only {len(self._endpoint.asked)} of {asked} sessions have asked their models")
            await asyncio.sleep(0.1)

    async def _notices(self) -> list[float]:
        """Seconds between end and notice, for the sessions whose ends were received."""
        ended = {
            session["session_id"]: datetime.fromisoformat(session["opened_at"]).timestamp()
            + session["timings"]["total"]
            for session in (await self._call("GET", "/sessions"))["sessions"]
        }
        return [received - ended[session] for session, received in self._received.items()]

    async def _policy(self, key: str, number: int, body: Mapping[str, Any]) -> Turn:
        _, kind, index = key.split("-")
        if kind == "alone":
            await asyncio.sleep(0.05)
            return DISCARDED
        await self._gate.wait()
        in_sandbox = int(index) < self._sandboxes
        if number == 0 or not in_sandbox:
            await asyncio.sleep(self._chance.uniform(0.0, self._think))
        if in_sandbox:
            return call("true" if number == 0 else SUBMIT, number)
        return TEXT if number == 0 else DISCARDED

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """One call on a connection of its own, as curl makes it. Raises `StartupError` for a refusal."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        data = json.dumps(body).encode() if body else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(data)}\r\n"
        writer.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + data)
        answer = await reader.read()
        writer.close()
        status, _, content = answer.partition(b"\r\n\r\n")
        if not status.startswith(b"HTTP/1.1 20"):
            raise StartupError(f"{method} {path}: {status[:50]!r} {content[:200]!r}")
        loaded: dict[str, Any] = json.loads(content)
        return loaded


def measure_load(
    folder: Path, *, clients: int = 1000, sandboxes: int = 20, think: float = 30.0, ramp: float = 20.0, alone: int = 40
) -> Load:
    """Start a server below `folder`, measure and stop it. Raises `StartupError` when it cannot be used."""
    server = Server(folder, train_concurrency=2, train_group_size=1)
    server.start()
    try:
        generator = Generator(server, clients=clients, sandboxes=sandboxes, think=think, ramp=ramp, seed=1)
        return asyncio.run(generator.run(alone=alone))
    finally:
        server.stop()


def percentile(values: Sequence[float], share: int) -> float:
    """The value that `share` percent of `values` do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def main() -> int:
    """Measure and print; 1 and one line when the server cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--clients", type=int, default=1000, help="at once (default %(default)s)")
    parser.add_argument("--sandboxes", type=int, default=20, help="of them that run commands (default %(default)s)")
    parser.add_argument("--think", type=float, default=30.0, help="longest time of a model, in seconds")
    parser.add_argument("--ramp", type=float, default=20.0, help="seconds in which all clients come")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="swe-rollout-load-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            load = measure_load(folder, **vars(options))
        except StartupError as error:
            print(f"bench.load: {error}", file=sys.stderr)
            return 1
    load.show(Console(width=max(Console().width, 110)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
