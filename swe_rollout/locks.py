"""Locks on files that tell whether their owner lives: the kernel frees them, however a process ends."""

import fcntl
import os
from pathlib import Path


def take(path: Path) -> int | None:
    """Lock the file `path`, made if it is not there: a descriptor that holds the lock, None if another has it.

    Child processes that inherit the descriptor hold the lock too. Raises OSError if it cannot be opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd
