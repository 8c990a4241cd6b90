"""Finding and ending processes of ours, by process id.

What a process was started for is read from the kernel, not from its name: the folder of its sandbox
stands in its environment (Apptainer's own processes) or in its mounts (the FUSE helpers, which have
neither our environment nor our process group).
"""

import contextlib
import errno
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path


def tree(root: int) -> list[int]:
    """Ids of `root` and its descendants at this moment."""
    pids = [root]
    for pid in pids:
        pids += _children(pid)
    return pids


def process_one(pids: Iterable[int]) -> "ProcessHandle":
    """The one of `pids` that is process 1 of a process namespace of its own. Raises OSError when there is none."""
    for pid in pids:
        with contextlib.suppress(OSError):
            handle = ProcessHandle(pid)
            if _is_process_one(handle.read("status")):
                return handle
            handle.close()
    raise ProcessLookupError(errno.ESRCH, "no process 1")


def any_left(pids: Iterable[int]) -> bool:
    """Whether one of `pids` is there, as a running process; a zombie is not."""
    return any(_runs(pid) for pid in pids)


def belonging_to(folder: Path, *, session: int | None = None) -> list[int]:
    """Ids of all processes outside this one that work for the sandboxes below `folder`.

    Also those that share a session with one of them, or belong to `session`: each sandbox has a session of its own, and
    a helper that was cut off while it started has nothing else that tells.
    """
    mark = os.fsencode(folder) + b"/"
    pids = list(_all())
    marked = {pid for pid in pids if pid != os.getpid() and _mentions(pid, mark)}
    sessions = ({_session(pid) for pid in marked} | {session}) - {None, os.getsid(0)}
    return [pid for pid in pids if pid in marked or (sessions and _session(pid) in sessions)]


def end_all(folder: Path, *, session: int | None = None, seconds: float = 10.0) -> list[int]:
    """Kill every process that `belonging_to` finds; returns those still there after `seconds`."""
    deadline = time.monotonic() + seconds
    while pids := [pid for pid in belonging_to(folder, session=session) if _runs(pid)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return pids
        time.sleep(0.01)
    return []


class ProcessHandle:
    """One process, and never another that has got its number since. Used by one thread."""

    def __init__(self, pid: int) -> None:
        """Raises OSError when it is gone."""
        self.pid = pid
        self._fd = os.pidfd_open(pid)
        try:
            self._folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            os.close(self._fd)
            raise
        if not self.is_alive():
            # The folder may be another's.
            self.close()
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    def is_alive(self) -> bool:
        """Whether it runs: not for a zombie."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of its file `name` in /proc. Raises OSError, also when the process is gone."""
        return os.open(name, flags | os.O_CLOEXEC, dir_fd=self._folder)

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal; False when it is gone."""
        try:
            signal.pidfd_send_signal(self._fd, number)
        except OSError:
            return False
        return True

    def read(self, name: str) -> bytes:
        """What its file `name` in /proc holds; empty when it is gone."""
        try:
            with os.fdopen(self.open(name), "rb") as file:
                return file.read()
        except OSError:
            return b""

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._folder)


class Namespace:
    """The process namespace of a sandbox, which is itself for as long as this is open. Used by one thread at a time."""

    def __init__(self, process_one: ProcessHandle) -> None:
        """That of `process_one`. Where it cannot be opened, as only root may do, `end` does nothing."""
        self._fd: int | None = None
        with contextlib.suppress(OSError):
            self._fd = process_one.open("ns/pid")

    def end(self, *, seconds: float = 5.0) -> bool:
        """Kill at one moment all that runs in it beside process 1, as nothing from outside can: what breeds is faster
        than a hunt by number, and keeps a process 1 that reaps it from ever doing anything else.

        False when it was not done.
        """
        if self._fd is None or os.geteuid() != 0:
            return False
        join = ("nsenter", f"--pid=/proc/self/fd/{self._fd}", "--", "/bin/bash", "-c", "kill -KILL -1")
        try:
            ended = subprocess.run(join, stderr=subprocess.DEVNULL, timeout=seconds, check=False, pass_fds=[self._fd])
        except (OSError, subprocess.TimeoutExpired):
            return False
        return ended.returncode == 0

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _all() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return children


def _runs(pid: int) -> bool:
    try:
        Path(f"/proc/{pid}/exe").stat()
    except OSError:
        return False
    return True


def _is_process_one(status: bytes) -> bool:
    for line in status.splitlines():
        if line.startswith(b"NSpid:"):
            ids = line.split()[1:]
            return len(ids) > 1 and ids[-1] == b"1"
    return False


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _mentions(pid: int, mark: bytes) -> bool:
    # In the environment only where we put it: somebody's working folder stands there too.
    for name, words in (("environ", b"APPTAINER_CACHEDIR=" + mark), ("mountinfo", mark)):
        with contextlib.suppress(OSError):
            if words in Path(f"/proc/{pid}/{name}").read_bytes():
                return True
    return False
