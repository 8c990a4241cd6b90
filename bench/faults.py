"""What chaos does to one session from outside: to its client, to its sandbox, and over HTTP."""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx

from bench.books import ENDED, Attempt
from bench.plans import MARK, Plan
from swe_rollout.sandbox import processes


class Faults:
    """Against the sessions of one server address."""

    def __init__(self, http: httpx.AsyncClient, tmp: Path) -> None:
        """`http` calls the server, `tmp` is its AGENT_SERVER_TMP_DIR."""
        self._http = http
        self._tmp = tmp

    async def strike(self, attempt: Attempt, client: asyncio.subprocess.Process) -> None:
        """Let the fault happen when its time comes, unless the client ends before."""
        plan = attempt.plan
        if plan.fault == "none" or plan.endpoint_fault:
            return
        if plan.turn >= 0:
            ways = [asyncio.ensure_future(way) for way in (client.wait(), attempt.asked.wait())]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
        await asyncio.sleep(plan.delay)
        if client.returncode is not None:
            return
        if plan.fault == "sandbox":
            attempt.hit = await asyncio.to_thread(self._kill_sandbox, plan, client)
        elif plan.fault == "cancel":
            attempt.hit = await self._cancel(plan)
        else:
            os.killpg(client.pid, signal.SIGTERM if plan.fault == "term" else signal.SIGKILL)
            attempt.hit = True

    async def _cancel(self, plan: Plan) -> bool:
        """Whether the server took it for a session that had not ended."""
        try:
            found = await self._http.get("/sessions", params={"group_id": plan.group})
            live = [session["session_id"] for session in found.json()["sessions"] if session["status"] not in ENDED]
            answers = [await self._http.post(f"/sessions/{session}/cancel") for session in live]
        except httpx.TransportError:
            return False
        return any(answer.status_code == 204 for answer in answers)

    def _kill_sandbox(self, plan: Plan, client: asyncio.subprocess.Process) -> bool:
        """Whether there was one to kill before the client's end."""
        while client.returncode is None:
            for file in self._marks():
                try:
                    is_its = file.read_text().strip() == str(plan.number)
                except OSError:
                    continue
                folder = file.parents[3]
                if is_its and processes.belonging_to(folder):
                    processes.end_all(folder)
                    return True
            time.sleep(0.1)
        return False

    def _marks(self) -> list[Path]:
        """Files by which sessions mark their sandboxes; none if a folder goes while it is looked through."""
        try:
            return list(self._tmp.glob(f"*/sandbox-*/layer/upper/*/{MARK}"))
        except FileNotFoundError:
            return []
