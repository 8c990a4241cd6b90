"""Locks on files that tell whether their owner lives: the kernel frees them, however a process ends."""

import fcntl
import os
from pathlib import Path


def take(path: Path, *, create: bool) -> int | None:
    """Lock the file `path`, made with `create`: a descriptor that holds the lock, None if another has it.

    Child processes that inherit the descriptor hold the lock too. Raises OSError if it cannot be opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd
