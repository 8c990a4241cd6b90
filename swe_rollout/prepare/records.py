"""What an earlier run has seen to be whole, so that a later one need not ask again."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def read(path: Path) -> dict[str, Any]:
    """The record; empty if there is none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError):
        record = json.loads(path.read_bytes())
        if isinstance(record, dict):
            return record
    return {}


def write(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all. Raises OSError."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            json.dump(record, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink()
            raise


def has_all(folder: Path, files: dict[str, Any]) -> bool:
    """Whether each of `files`, name -> bytes, is in `folder` with this size."""
    try:
        return bool(files) and all((folder / name).stat().st_size == size for name, size in files.items())
    except OSError:
        return False
