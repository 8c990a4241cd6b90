"""The real server process on a sample task, with a scripted model: what tests of whole sessions start."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
from endpoint import Endpoint, Turn
from waiting import until

from data.parsed_diff import rebuild_diff
from swe_rollout.sandbox import processes

REPOSITORY = Path(__file__).parents[1]
PARQUET = "R2E-Gym-Subset/data/train-00000-of-00001.parquet"
EVAL_PARQUET = "SWE-Bench-Verified/data/test-00000-of-00001.parquet"


class Server:
    """A real agent server that serves one sample task."""

    def __init__(self, samples: Path, folder: Path, *specs: str, instance: str | None = None, **settings: str) -> None:
        """Without `instance` the task is in R2E form, for training; else it is the SWE-bench row of that id."""
        self.mode = "eval" if instance else "train"
        self.endpoint = Endpoint()
        self._groups = 0
        self.work = folder / "work"
        self.tmp = folder / "tmp"
        parquet, column = (EVAL_PARQUET, "instance_id") if instance else (PARQUET, "repo_name")
        data = folder / "data" / parquet
        data.parent.mkdir(parents=True)
        table = pq.read_table(samples / "data" / parquet)
        rows = table.filter([name == (instance or "xmltodict") for name in table[column].to_pylist()])
        pq.write_table(rows, data)
        (self.row,) = rows.to_pylist()
        patch = self.row["patch"] if instance else rebuild_diff(json.loads(self.row["parsed_commit_content"]))
        self.gold = f"git apply <<'EOF_GOLD'\n{patch}EOF_GOLD"
        self._process = subprocess.Popen(
            # Ends with the tests, however they end.
            [
                "setpriv",
                "--pdeathsig=TERM",
                sys.executable,
                "agent_server.py",
                "--port=0",
                *(f"--config={spec}" for spec in specs),
            ],
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
        key = f"sk-{key}".replace(" ", "-")
        self.endpoint.script(key, turns)
        self._groups += 1
        body = {"session_id": key, "group_id": group or f"group-{self._groups}", "mode": self.mode, "api_key": key}
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
        # Where a janitor is slow the server does not wait for it.
        until(lambda: not list(self.tmp.iterdir()) and not processes.belonging_to(self.tmp), "nothing is left")

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said += line


def served(samples: Path, folder: Path, *specs: str, instance: str | None = None, **settings: str) -> Iterator[Server]:
    """A server for one test or module; in the end it must be idle and leave nothing."""
    server = Server(samples, folder, *specs, instance=instance, **settings)
    yield server
    server.assert_idle()
    server.close()
