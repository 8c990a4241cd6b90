"""Starts agent processes as Relax's launcher does, and ends them together with everything they started.

Processes are ended by process group id only. The group id is the leader's pid, and the leader is not reaped before
`AgentProcess.close`: until then its zombie keeps the kernel from giving the id to a stranger.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_relax.errors import StepError

LOG_TAIL_BYTES = 8192
RESERVED_PREFIX = "RELAX_"
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class AgentCommand:
    """What to launch for every session."""

    command: str
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's environment; loses against the RELAX_ variables."""

    def __post_init__(self) -> None:
        """Raises `ValueError` if the environment touches the reserved prefix or the folder does not exist."""
        reserved = sorted(name for name in self.env if name.startswith(RESERVED_PREFIX))
        if reserved:
            raise ValueError(f"the prefix {RESERVED_PREFIX} is reserved, rename {', '.join(reserved)}")
        if not self.cwd.is_dir():
            raise ValueError(f"{self.cwd} is not a folder")


class AgentProcess:
    """One running agent: a shell in its own session and process group, with a folder for input, output and log.

    `close` may be called by one thread only; `signal` by any. The lock guards `_closed`.
    """

    def __init__(self, agent: AgentCommand, relax_env: Mapping[str, str], agent_input: Mapping[str, Any]) -> None:
        """Launch it. Raises `StepError` if that is impossible."""
        self._lock = threading.Lock()
        self._closed = False
        try:
            self.io_dir = Path(tempfile.mkdtemp(prefix="relax-agentic-command-"))
        except OSError as error:
            raise StepError(f"cannot make a folder for an agent: {error}") from error
        self.output = self.io_dir / "session_output.json"
        self._log = self.io_dir / "command.log"
        source = self.io_dir / "session_input.json"
        paths = {
            "RELAX_SESSION_IO_DIR": str(self.io_dir),
            "RELAX_INPUT_JSON": str(source),
            "RELAX_OUTPUT_JSON": str(self.output),
        }
        try:
            source.write_text(json.dumps(agent_input, separators=(",", ":"), ensure_ascii=False), encoding="utf-8")
            with self._log.open("ab") as log:
                self._leader = subprocess.Popen(
                    ["/bin/bash", "-lc", agent.command],
                    cwd=agent.cwd.resolve(),
                    env={**os.environ, **agent.env, **relax_env, **paths},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            shutil.rmtree(self.io_dir, ignore_errors=True)
            raise StepError(f"cannot launch the agent command: {error}") from error

    @property
    def group_id(self) -> int:
        return self._leader.pid

    @property
    def closed(self) -> bool:
        return self._closed

    def wait(self) -> int:
        """Block until the leader has ended. Its exit code, or minus the signal that killed it."""
        ended = os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # only WNOHANG can answer None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group; nothing after `close`."""
        with self._lock:
            if not self._closed:
                os.killpg(self._leader.pid, number)

    def log_tail(self) -> str:
        """The end of what the agent printed; empty if it removed the log."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Reap the leader, which must have ended, and remove the folder."""
        with self._lock:
            self._closed = True
            self._leader.wait()
        shutil.rmtree(self.io_dir, ignore_errors=True)


def end_groups(processes: Sequence[AgentProcess], grace_seconds: float) -> None:
    """SIGTERM every process group that still lives, SIGKILL what is left after the grace, and wait as long again."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        living = living_groups([process.group_id for process in processes if not process.closed])
        if not living:
            return
        for process in processes:
            if process.group_id in living:
                process.signal(number)
        deadline = time.monotonic() + grace_seconds
        while living_groups(living) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


def living_groups(group_ids: Collection[int]) -> set[int]:
    """Those of the process groups that have a member which is not a zombie."""
    living = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text(errors="replace")
            except OSError:  # ended meanwhile
                continue
            state, _parent, group = stat.rpartition(")")[2].split()[:3]
            if state not in "ZX" and int(group) in group_ids:
                living.add(int(group))
    return living
