"""Files of one JSON object per line that are only ever added to, and that a kill may cut short."""

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Add a line with one write, under a lock of the file; a line before it that was cut short is ended first.

    Raises OSError.
    """
    line = json.dumps(record).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        end = os.fstat(fd).st_size
        torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"
        os.write(fd, b"\n" + line if torn else line)
    finally:
        os.close(fd)
