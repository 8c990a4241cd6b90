"""The harness' worker process: its folder, its pipes and its end."""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from swe_rollout.cancellation import Cancellation
from swe_rollout.scoring.harness_worker import ANSWER, LOG, REQUEST

START_SECONDS = 300.0
"""To import swebench: 4 s of CPU, much more on a machine that is busy or has it not in memory."""
_PROGRAM = Path(__file__).with_name("harness_worker.py")
_GRACE_SECONDS = 30
_ANSWER_LIMIT_BYTES = 4096


class WorkerDied(Exception):
    """It ended by itself; the message is its last words."""


class WorkerUnusable(Exception):
    """It cannot import swebench; the message says why."""


class WorkerTimeout(Exception):
    """It did not answer in time and was ended."""


class WorkerProcess:
    """One running worker. Used by one thread at a time; `end` may come from any.

    Nothing but an answer can arrive on the pipe for answers: what swebench prints goes elsewhere.
    """

    def __init__(self, seconds: float) -> None:
        """Start it. `seconds` is the longest it may take for a request. Raises OSError."""
        self._seconds = seconds
        self._number = 0
        self._ready = False
        self.folder = Path(tempfile.mkdtemp(prefix="swe-rollout-harness-"))
        reading, writing = os.pipe()
        self._answers = os.fdopen(reading, "rb", buffering=0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_PROGRAM), str(writing), str(int(START_SECONDS + seconds) + _GRACE_SECONDS)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                pass_fds=[writing],
                cwd=self.folder,
                start_new_session=True,
                env={"PATH": os.defpath, "HOME": str(self.folder), "TMPDIR": str(self.folder), "LC_ALL": "C.UTF-8"}
                | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"},
            )
        except OSError:
            self._answers.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        finally:
            os.close(writing)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, call: str, *arguments: object, log: bytes = b"", cancellation: Cancellation) -> object:
        """Let the worker run `call`; `log` is the file it may read.

        Raises `WorkerDied`, `WorkerUnusable`, `WorkerTimeout` and `Cancelled`; after any of them it can only be ended.
        """
        if not self._ready:
            said = self._line(START_SECONDS, cancellation)
            if said != "ready":
                raise WorkerUnusable(said)
            self._ready = True
        self._number += 1
        try:
            # The harness reads the log as UTF-8 and gives up at the first byte that is none.
            (self.folder / LOG).write_text(log.decode("utf-8", "replace"), encoding="utf-8", newline="")
            (self.folder / REQUEST).write_text(json.dumps([call, arguments]))
            assert self._process.stdin is not None
            self._process.stdin.write(f"{self._number}\n".encode())
            if self._line(self._seconds, cancellation) != str(self._number):
                raise WorkerDied("it answered something else")
            return json.loads((self.folder / ANSWER).read_text())
        except (OSError, ValueError) as error:
            raise WorkerDied(str(error)) from error

    def end(self) -> None:
        """End it and remove its folder. Idempotent."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """`end` it and give up its pipes, which nobody may wait on any more."""
        self.end()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._answers.close()

    def _line(self, seconds: float, cancellation: Cancellation) -> str:
        deadline = time.monotonic() + seconds
        line = b""
        wake_fd = os.eventfd(0)
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        poll.register(wake_fd, select.POLLIN)
        try:
            with cancellation.waking(lambda: os.eventfd_write(wake_fd, 1)):
                while not line.endswith(b"\n") and len(line) < _ANSWER_LIMIT_BYTES:
                    ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
                    cancellation.check()
                    if not ready:
                        raise WorkerTimeout(f"no answer within {seconds:g} s")
                    data = os.read(self._answers.fileno(), _ANSWER_LIMIT_BYTES)
                    if not data:
                        raise WorkerDied("it ended by itself")
                    line += data
        finally:
            os.close(wake_fd)
        return line.decode("utf-8", "replace").strip()
