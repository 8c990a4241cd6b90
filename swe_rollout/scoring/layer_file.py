"""Reading one file that was written in a sandbox, on the host, after the sandbox has ended."""

import errno
import os
import stat
from pathlib import Path

from swe_rollout.errors import ScoringError

_AGENTS_OWN = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENXIO)


def read_layer_file(layer: Path, path: str, limit: int) -> bytes:
    """At most `limit` bytes of `path` (as it was called in the sandbox); empty if there is no such regular file.

    No link on the way is followed: it would lead to another file of the host. Raises `ScoringError` for a fault of
    the machine.
    """
    *folders, name = path.strip("/").split("/")
    try:
        folder = os.open(layer / "upper", os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in folders:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            # Who waits for the other end of a FIFO waits for ever.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return b""
            return _read(file, limit)
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in _AGENTS_OWN:
            return b""
        raise ScoringError(f"the sandbox's layer cannot be read: {error}") from error


def _read(file: int, limit: int) -> bytes:
    with open(file, "rb", closefd=False) as stream:
        return stream.read(limit)
