"""How much a sandbox has stored: in its layer on disk, and in the memory file systems that it can write to."""

import errno
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from swe_rollout.sandbox.processes import ProcessHandle

_SLICE = 128
"""Entries of a layer between two looks at the clock."""
_INODE_BYTES = 16 << 10
"""For each file and folder: a disk of ext4 is made with one inode for so much, and can run out of either."""
_LOOP_FDS = (8, 9)
"""See `loop.sh`."""


class LayerSize:
    """Measures one layer again and again, a little at a time, so that a huge one delays nothing but its own figure.

    Counts blocks, not lengths: a sparse file takes what it takes, and an empty one its inode. Not seen: files that are
    deleted but still open, and what a folder holds that the server's user may not enter.
    """

    def __init__(self, layer: Path) -> None:
        self._layer = layer
        self._walk: Iterator[float | None] | None = None

    def advance(self, until: float) -> float | None:
        """Go on measuring until `time.monotonic()` is `until`; the size in bytes when a walk is complete.

        Infinite for a layer that is nested deeper than a path is long, where files could be hidden.
        """
        if self._walk is None:
            self._walk = _walk(self._layer)
        for size in self._walk:
            if size is not None:
                self._walk = None
                return size
            if time.monotonic() >= until:
                break
        return None

    def now(self) -> float:
        """A whole walk at once."""
        return next(size for size in _walk(self._layer) if size is not None)


def _walk(layer: Path) -> Iterator[float | None]:
    """Yields None between two slices of the work, and the size in the end."""
    total, seen = 0.0, 0
    folders = [os.fspath(layer)]
    while folders:
        folder = folders.pop()
        try:
            # The agent may put a link in a folder's place meanwhile.
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                yield math.inf
                return
            continue
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    seen += 1
                    if seen % _SLICE == 0:
                        yield None
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    size = status.st_blocks * 512 + _INODE_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        total += size
                        folders.append(f"{folder}/{entry.name}")
                    else:
                        total += size / max(1, status.st_nlink)
        except OSError:
            continue
        finally:
            os.close(fd)
    yield total


class MemoryFiles:
    """What the files of a sandbox take that are in memory: those below /dev, /dev/shm for one, and a few in /etc."""

    def __init__(self, loop: ProcessHandle) -> None:
        """`loop` is the command loop, which has the file systems open. Only root may look into it; for another
        user there are none to be seen.
        """
        self._lock = threading.Lock()
        self._fds: list[int] = []
        for fd in _LOOP_FDS:
            try:
                self._fds.append(loop.open(f"fd/{fd}", os.O_PATH))
            except OSError:
                continue

    def used_bytes(self) -> int:
        """Counts also what is deleted but still open."""
        total = 0
        with self._lock:
            for fd in self._fds:
                status = os.fstatvfs(fd)
                total += (status.f_blocks - status.f_bfree) * status.f_frsize
        return total

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            while self._fds:
                os.close(self._fds.pop())
