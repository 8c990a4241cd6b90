"""The harness' worker process: its folder, its pipes and its end."""

import json
import math
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.cancellation import Cancellation
from swe_rollout.scoring.harness_worker import ANSWER, LOG, REQUEST

_PROGRAM = Path(__file__).with_name("harness_worker.py")
_GRACE_SECONDS = 30
_LOOK_SECONDS = 1.0
"""Between two looks at the CPU time."""
_TICKS = os.sysconf("SC_CLK_TCK")
_ANSWER_LIMIT_BYTES = 4096


@dataclass(frozen=True)
class WorkerLimits:
    """What a worker may take, in seconds. Only CPU time tells a slow request from a slow machine."""

    start: float = 300.0
    """To import swebench: 4 s of CPU, much more on a machine that is busy or has it not in memory."""
    cpu: float = 120.0
    """CPU time for one request: a log of 16 MB takes a parser a few seconds, one that was made to be slow all of it."""
    answer: float = 1200.0
    """For one request by the clock: long enough for a busy machine to give it `cpu`."""


class WorkerDied(Exception):
    """It ended by itself; the message is its last words."""


class WorkerUnusable(Exception):
    """It cannot import swebench, or the machine gives it no time; the message begins with a verb."""


class WorkerExhausted(Exception):
    """A request took all the CPU time it may have; the message begins with a verb."""


class WorkerProcess:
    """One running worker. Used by one thread at a time; `end` may come from any.

    Nothing but an answer can arrive on the pipe for answers: what swebench prints goes elsewhere.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        """Start it. Raises OSError."""
        self._limits = limits
        self._number = 0
        self._ready = False
        self.folder = Path(tempfile.mkdtemp(prefix="swe-rollout-harness-"))
        reading, writing = os.pipe()
        self._answers = os.fdopen(reading, "rb", buffering=0)
        longest = int(max(limits.start, limits.answer)) + _GRACE_SECONDS
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(_PROGRAM), str(writing), str(longest)],
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

        Raises `WorkerDied`, `WorkerUnusable`, `WorkerExhausted` and `Cancelled`; after any of them it can only be
        ended.
        """
        try:
            if not self._ready:
                said = self._line("was not ready", self._limits.start, math.inf, cancellation)
                if said != "ready":
                    raise WorkerUnusable(f"cannot import swebench: {said}")
                self._ready = True
            self._number += 1
            # The harness reads the log as UTF-8 and gives up at the first byte that is none.
            (self.folder / LOG).write_text(log.decode("utf-8", "replace"), encoding="utf-8", newline="")
            (self.folder / REQUEST).write_text(json.dumps([call, arguments]))
            assert self._process.stdin is not None
            self._process.stdin.write(f"{self._number}\n".encode())
            line = self._line("did not answer", self._limits.answer, self._limits.cpu, cancellation)
            if line != str(self._number):
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

    def _line(self, late: str, seconds: float, cpu_seconds: float, cancellation: Cancellation) -> str:
        """What it says next; `late` is what is said of a worker that says nothing for `seconds`."""
        deadline, cpu_deadline = time.monotonic() + seconds, self._cpu_seconds() + cpu_seconds
        line = b""
        wake_fd = os.eventfd(0)
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        poll.register(wake_fd, select.POLLIN)
        try:
            with cancellation.waking(lambda: os.eventfd_write(wake_fd, 1)):
                while not line.endswith(b"\n") and len(line) < _ANSWER_LIMIT_BYTES:
                    left = deadline - time.monotonic()
                    ready = poll.poll(max(0.0, min(left, _LOOK_SECONDS)) * 1000)
                    cancellation.check()
                    if ready:
                        data = os.read(self._answers.fileno(), _ANSWER_LIMIT_BYTES)
                        if not data:
                            raise WorkerDied("it ended by itself")
                        line += data
                    elif self._cpu_seconds() >= cpu_deadline:
                        raise WorkerExhausted(f"used up {cpu_seconds:g} s of CPU time")
                    elif left <= 0:
                        raise WorkerUnusable(f"{late} within {seconds:g} s")
        finally:
            os.close(wake_fd)
        return line.decode("utf-8", "replace").strip()

    def _cpu_seconds(self) -> float:
        """CPU time it has used so far, in user and kernel mode (proc_pid_stat(5)). Raises OSError when it is gone."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
