"""Finding and ending processes of ours, by process id.

What a process was started for is read from the kernel, not from its name: the folder of its sandbox
stands in its environment (Apptainer's own processes) or in its mounts (the FUSE helpers, which have
neither our environment nor our process group).
"""

import contextlib
import os
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


def process_one(pids: Iterable[int]) -> int | None:
    """The one of `pids` that is process 1 of a process namespace of its own."""
    return next((pid for pid in pids if _is_process_one(pid)), None)


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


def end_namespace(process_one: int, *, seconds: float = 5.0) -> bool:
    """Kill at one moment all that runs beside `process_one` in its process namespace, as nothing from outside can: what
    breeds is faster than a hunt by number, and keeps a process 1 that reaps it from ever doing anything else.

    False when it was not done; only root may join the namespace.
    """
    join = ("nsenter", "--target", str(process_one), "--pid", "--", "/bin/bash", "-c", "kill -KILL -1")
    if os.geteuid() != 0:
        return False
    try:
        return subprocess.run(join, stderr=subprocess.DEVNULL, timeout=seconds, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


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


def _is_process_one(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                ids = line.split()[1:]
                return len(ids) > 1 and ids[-1] == "1"
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
