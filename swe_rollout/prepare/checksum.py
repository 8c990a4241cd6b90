"""What a file's content is known by."""

import hashlib
import threading
from pathlib import Path

from swe_rollout.prepare.faults import Stopped

_BLOCK = 1 << 20


def sha256(file: Path, stop: threading.Event) -> str:
    """Of the whole file, in hexadecimal. Raises `Stopped` once `stop` is set."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while block := content.read(_BLOCK):
            if stop.is_set():
                raise Stopped
            digest.update(block)
    return digest.hexdigest()
