"""The launcher of generations A and B: output is read from pipes to its end, and ending an agent is one SIGTERM.

A process is over when its leader has exited and nobody holds its pipes any more. A discarded one gets its signal,
loses its folder at once and is forgotten: whether it ends is its own affair, until the run itself is over.
"""

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from local_relax.launcher import AgentCommand, IoFolder, exit_code_of

_CHUNK_BYTES = 65536
_KILL_SECONDS = 5.0


class PipeLauncher:
    """`_lock` guards `_forgotten`."""

    def __init__(self, closing_grace_seconds: float = 5.0) -> None:
        """The grace is for forgotten processes when the run is over; within the run there is no SIGKILL."""
        self._grace = closing_grace_seconds
        self._lock = threading.Lock()
        self._forgotten: list[PipedProcess] = []

    def launch(
        self, agent: AgentCommand, relax_env: Mapping[str, str], agent_input: Mapping[str, Any]
    ) -> "PipedProcess":
        return PipedProcess(agent, relax_env, agent_input)

    def end(self, processes: "Sequence[PipedProcess]") -> None:
        for process in processes:
            process.forget()
        with self._lock:
            self._forgotten += processes

    def close(self) -> Sequence[int]:
        with self._lock:
            forgotten = list(self._forgotten)
        deadline = time.monotonic() + self._grace
        return [p.group_id for p in forgotten if p.kill_after(max(0.0, deadline - time.monotonic()))]


class PipedProcess:
    """`_changed` guards the fields that are set after the start."""

    def __init__(self, agent: AgentCommand, relax_env: Mapping[str, str], agent_input: Mapping[str, Any]) -> None:
        self._changed = threading.Condition()
        self._exit_code: int | None = None
        self._forgotten = False
        self._said = b""
        self._folder = IoFolder(agent_input)
        self.output = self._folder.output
        self._leader = self._folder.spawn(agent, relax_env, subprocess.PIPE, subprocess.PIPE)
        # A process outside the group may hold the pipes for ever; it must not hold this program too.
        self._reader = threading.Thread(target=self._read, name=f"pipes-{self._leader.pid}", daemon=True)
        self._reader.start()

    @property
    def group_id(self) -> int:
        return self._leader.pid

    def wait(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._forgotten or self._exit_code is not None)
            return self._exit_code

    def said(self) -> str:
        """All of standard output, then all of standard error."""
        with self._changed:
            return self._said.decode(errors="replace").strip()

    def close(self) -> None:
        self._folder.remove()

    def forget(self) -> None:
        """SIGTERM to the group, unless the process is over; the folder is gone when this returns."""
        self._signal(signal.SIGTERM)
        with self._changed:
            self._forgotten = True
            self._changed.notify_all()
        self._folder.remove()

    def kill_after(self, seconds: float) -> bool:
        """Wait that long for the end, then SIGKILL the group. True if it had to be killed."""
        self._reader.join(seconds)
        if not self._reader.is_alive():
            return False
        self._signal(signal.SIGKILL)
        self._reader.join(_KILL_SECONDS)
        return True

    def _signal(self, number: int) -> None:
        with self._changed:
            # Until the leader is reaped its zombie keeps the group id from being given to a stranger.
            if self._exit_code is None:
                os.killpg(self._leader.pid, number)

    def _read(self) -> None:
        said = _drain(self._leader)
        ended = os.waitid(os.P_PID, self._leader.pid, os.WEXITED | os.WNOWAIT)
        with self._changed:
            self._leader.wait()
            self._exit_code = exit_code_of(ended)
            self._said = said
            self._changed.notify_all()


def _drain(process: "subprocess.Popen[bytes]") -> bytes:
    """Read both pipes until nobody holds them; standard output comes first in the result."""
    assert process.stdout is not None
    assert process.stderr is not None
    read = {process.stdout: bytearray(), process.stderr: bytearray()}
    with process.stdout, process.stderr, selectors.DefaultSelector() as selector:
        for pipe in read:
            selector.register(pipe, selectors.EVENT_READ, read[pipe])
        while selector.get_map():
            for key, _ in selector.select():
                chunk = os.read(key.fd, _CHUNK_BYTES)
                key.data.extend(chunk)
                if not chunk:
                    selector.unregister(key.fileobj)
    return bytes(read[process.stdout] + read[process.stderr])
