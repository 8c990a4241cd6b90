"""`python -m bench.chaos`: hundreds of sessions while clients, sandboxes, endpoint and server fail, then the books.

The real server, its real client script and real sandboxes; only the model is scripted. What happens to which session
follows from the seed; when it meets the session depends on the machine, so every check holds at any speed.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from bench.books import Attempt, Books, Report
from bench.endpoint import Endpoint, Turn
from bench.faults import Faults
from bench.plans import DISCARDED, make_plan
from bench.server import PARQUET, REPOSITORY, SAMPLES, Server, Usage, left_behind, zombies_of
from local_relax.rows import Rows
from swe_rollout.errors import StartupError

CLIENTS = 20
"""Clients that live at the same time."""
SLOTS = 3
CLIENT_TTL = 61
DRAIN_SECONDS = 240.0
"""For all sessions to end when no more are begun."""
IDLE_SECONDS = 30.0
"""For the server to put away what ended sessions used."""
RSS_SLACK = 64 << 20
"""What threads and first uses of libraries may take beyond an idle start."""
RSS_PER_SESSION = 40 << 10
"""Records of ended sessions stay for an hour."""
FILES_SLACK = 8
"""Connections that the checks themselves keep open."""


class Chaos:
    """One run. Everything but the server, its sandboxes and the clients is one event loop."""

    def __init__(self, root: Path, seed: int, seconds: float, *, kill_every: float, confinement: str = "auto") -> None:
        """Sessions begin for `seconds`. `root` must be a folder that every user can enter.

        The server is killed each `kill_every` seconds, but not in the last third of the run, which shows what an
        undisturbed server keeps.
        """
        self._seed = seed
        self._root = root
        self._seconds = seconds
        self._kill_every = kill_every
        self._chance = random.Random(seed)
        self._server = Server(
            root,
            *("environment.timeout=15", "agent.step_limit=4"),
            confinement=confinement,
            train_concurrency=SLOTS,
            reward_concurrency=2,
            train_group_size=1,
            client_ttl_seconds=CLIENT_TTL,
            http_threads=64,
        )
        self._rows = Rows([SAMPLES / "data" / PARQUET])
        self._endpoint = Endpoint(self._policy)
        self._attempts: dict[str, Attempt] = {}
        self._books = Books()

    async def run(self) -> Report:
        """Raises `StartupError` when the server does not start."""
        self._over = asyncio.Event()
        self._base_url = await self._endpoint.start()
        self._http = httpx.AsyncClient(base_url=self._server.url, timeout=60, trust_env=False)
        self._faults = Faults(self._http, self._server.tmp)
        await self._start_server()
        try:
            await self._disturb()
            await self._drain()
            after = await self._settled()
            self._books.check_counts(await self._get("/readyz"))
        finally:
            stopped = await asyncio.to_thread(self._server.stop)
        if stopped != 128 + signal.SIGTERM:
            self._fail(f"the server ended with {stopped}: {self._server.log.read_text()[-500:]}")
        await self._check_leftovers()
        self._books.check_sessions()
        await self._http.aclose()
        await self._endpoint.close()
        return Report(self._seed, self._books, self._server.starts, self._fresh, after)

    async def _start_server(self) -> None:
        await asyncio.to_thread(self._server.start)
        self._fresh = self._server.usage()

    async def _disturb(self) -> None:
        """Begin sessions until the time is over, and see their clients end."""
        began = killed_at = looked_at = time.monotonic()
        clients: set[asyncio.Task[None]] = set()
        while (now := time.monotonic()) - began < self._seconds:
            if now - began < self._seconds * 2 / 3 and now - killed_at > self._kill_every:
                await self._kill_server()
                killed_at = time.monotonic()
            if time.monotonic() - looked_at > 2:
                await self._look()
                looked_at = time.monotonic()
            if len(clients) < CLIENTS:
                attempt = Attempt(make_plan(self._chance, len(self._attempts) + 1))
                self._attempts[attempt.plan.key] = attempt
                self._books.attempts.append(attempt)
                clients.add(asyncio.create_task(self._play(attempt)))
            await asyncio.sleep(0.02)
            for client in [client for client in clients if client.done()]:
                clients.remove(client)
                client.result()
        # As the trainer does at the end of a step. Until then, a session whose client was killed waits for the server
        # to notice.
        self._over.set()
        await asyncio.wait_for(asyncio.gather(*clients), DRAIN_SECONDS)

    async def _kill_server(self) -> None:
        await self._look()
        self._books.killed_epochs.add((await self._get("/readyz"))["service_epoch"])
        await asyncio.to_thread(self._server.kill)
        await self._start_server()
        await self._look()

    async def _play(self, attempt: Attempt) -> None:
        """Run a client to its end, with its fault on the way."""
        plan = attempt.plan
        folder = self._root / "io" / str(plan.number)
        folder.mkdir(parents=True)
        output = folder / "session_output.json"
        with (folder / "command.log").open("wb") as log:
            client = await asyncio.create_subprocess_exec(
                *("bash", str(REPOSITORY / "agent_client.sh")),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=folder,
                env={
                    "PATH": os.environ["PATH"],
                    "AGENT_SERVER_URL": self._server.url,
                    "RELAX_SESSION_ID": plan.key,
                    "RELAX_GROUP_ID": plan.group,
                    "RELAX_ROLLOUT_MODE": "train",
                    "RELAX_BASE_URL": self._base_url,
                    "RELAX_OUTPUT_JSON": str(output),
                },
            )
        fault = asyncio.create_task(self._faults.strike(attempt, client))
        attempt.exit_code = await client.wait()
        await fault
        attempt.said = (folder / "command.log").read_text(errors="replace")[-1000:]
        if output.exists():
            attempt.output = json.loads(output.read_text())
        if attempt.exit_code >= 0 and (left := [path.name for path in folder.glob(".agent_client*")]):
            self._fail(f"{plan}: the client left {left}")

    async def _policy(self, key: str, number: int, body: Mapping[str, Any]) -> Turn:
        attempt = self._attempts[key]
        plan = attempt.plan
        if number >= plan.turn:
            attempt.asked.set()
            attempt.hit |= plan.endpoint_fault
        if plan.script == "mute":
            await asyncio.sleep(0.2)
        told = next(message["content"] for message in body["messages"] if message["role"] == "user")
        turn = plan.answer(number, self._rows.find(told).gold().patch if plan.script == "gold" else "")
        if turn == "hold":
            await self._over.wait()
            return DISCARDED
        return turn

    async def _get(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = (await self._http.get(path)).json()
        return answer

    async def _look(self) -> None:
        self._books.read((await self._get("/sessions"))["sessions"])

    async def _drain(self) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            await self._look()
            if self._books.all_ended():
                return
            await asyncio.sleep(0.5)

    async def _settled(self) -> Usage:
        """What the server takes when it has nothing to do; what it holds on to is a failure."""
        deadline = time.monotonic() + IDLE_SECONDS
        while held := await self._held():
            if time.monotonic() > deadline:
                self._fail(f"an idle server holds on to {', '.join(held)}")
                break
            await asyncio.sleep(0.5)
        usage = self._server.usage()
        bound = self._fresh.rss + RSS_SLACK + RSS_PER_SESSION * len(self._attempts)
        if usage.rss > bound:
            self._fail(f"resident memory grew from {self._fresh.rss} to {usage.rss}, more than {bound}")
        return usage

    async def _held(self) -> list[str]:
        slots = (await self._get("/readyz"))["slots"]
        held = [f"{name} slots" for name, pool in slots.items() if pool["in_use"] or pool["waiting"]]
        scratch = [path for path in self._server.tmp.iterdir() if path.is_dir()]
        held += [f"scratch folder {path.name} of a server that was killed" for path in scratch[1:]]
        held += [f"folder {path.name}" for path in self._server.tmp.glob("*/sandbox-*")]
        held += [f"zombie {pid}" for pid in zombies_of(self._server.pid)]
        files = self._server.usage().files
        if files > self._fresh.files + FILES_SLACK:
            held.append(f"{files} descriptors, {self._fresh.files} when it was ready")
        return held

    async def _check_leftovers(self) -> None:
        for _ in range(20):
            left = [*left_behind(self._root), *(f"folder {path}" for path in self._server.tmp.glob("*/"))]
            if not left:
                return
            await asyncio.sleep(0.5)
        for what in left:
            self._fail(f"left behind: {what}")

    def _fail(self, words: str) -> None:
        self._books.failures.append(words)


def main() -> int:
    """Run and print; 1 when something was not right."""
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="in which sessions begin (default %(default)s)")
    parser.add_argument("--kill-every", type=float, default=20.0, help="seconds between two SIGKILLs to the server")
    parser.add_argument("--seed", type=int, help="what happens to which session (default: random)")
    parser.add_argument("--confinement", default="auto", help="the server's setting (default %(default)s)")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="swe-rollout-chaos-") as name:
        root = Path(name)
        root.chmod(0o755)
        chaos = Chaos(root, seed, options.seconds, kill_every=options.kill_every, confinement=options.confinement)
        try:
            report = asyncio.run(chaos.run())
        except StartupError as error:
            print(f"bench.chaos: {error}", file=sys.stderr)
            return 1
    report.show(Console(width=max(Console().width, 130)))
    return 1 if report.books.failures else 0


if __name__ == "__main__":
    sys.exit(main())
