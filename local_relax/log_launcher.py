"""Generation C's launcher: output goes to a log file, and no process group outlives its agent.

Processes are ended by process group id only. The group id is the leader's pid, and the leader is not reaped before
`LoggedProcess.close`: until then its zombie keeps the kernel from giving the id to a stranger.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_relax.errors import StepError
from local_relax.launcher import AgentCommand, IoFolder, exit_code_of

LOG_TAIL_BYTES = 8192
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class LogLauncher:
    term_grace_seconds: float = 5.0
    """Time between SIGTERM and SIGKILL, and again for the group to be gone after SIGKILL."""

    def launch(
        self, agent: AgentCommand, relax_env: Mapping[str, str], agent_input: Mapping[str, Any]
    ) -> "LoggedProcess":
        return LoggedProcess(agent, relax_env, agent_input, self.term_grace_seconds)

    def end(self, processes: "Sequence[LoggedProcess]") -> None:
        end_groups(processes, self.term_grace_seconds)

    def close(self) -> Sequence[int]:
        return ()


class LoggedProcess:
    """`signal` may be called by any thread. The lock guards `_closed`."""

    def __init__(
        self,
        agent: AgentCommand,
        relax_env: Mapping[str, str],
        agent_input: Mapping[str, Any],
        term_grace_seconds: float,
    ) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._grace = term_grace_seconds
        self._folder = IoFolder(agent_input)
        self.output = self._folder.output
        self._log = self._folder.path / "command.log"
        try:
            log = self._log.open("ab")
        except OSError as error:
            self._folder.remove()
            raise StepError(f"cannot make a log for an agent: {error}") from error
        with log:
            self._leader = self._folder.spawn(agent, relax_env, log, subprocess.STDOUT)

    @property
    def group_id(self) -> int:
        return self._leader.pid

    @property
    def closed(self) -> bool:
        return self._closed

    def wait(self) -> int:
        """What the leader left behind in its group has ended too."""
        exit_code = exit_code_of(os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOWAIT))
        end_groups([self], self._grace)
        return exit_code

    def signal(self, number: int) -> None:
        """Send a signal to the whole process group; nothing after `close`."""
        with self._lock:
            if not self._closed:
                os.killpg(self._leader.pid, number)

    def said(self) -> str:
        """The end of the log; empty if the agent removed it."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL_BYTES))
                return log.read().decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def close(self) -> None:
        """Also reaps the leader."""
        with self._lock:
            self._closed = True
            self._leader.wait()
        self._folder.remove()


def end_groups(processes: Sequence[LoggedProcess], grace_seconds: float) -> None:
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
