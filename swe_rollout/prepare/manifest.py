"""manifest.jsonl: which SIFs were found good, and how they looked then. Lines are only ever added."""

import contextlib
import json
import os
import stat
import threading
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from swe_rollout import jsonl

NAME = "manifest.jsonl"


@dataclass(frozen=True)
class Entry:
    """One SIF at the moment it was verified."""

    image: str
    digest: str
    """Of the image in the registry; "" for a SIF that was there already."""
    size: int
    sha256: str
    seconds: float
    """What it took to build, or to verify."""
    mtime_ns: int
    when: str
    """UTC, ISO 8601."""


_FIELDS = {field.name for field in fields(Entry)}


def is_open(sif: os.stat_result) -> bool:
    """Whether every user may read it: sandboxes run as another one than who builds."""
    return bool(sif.st_mode & stat.S_IROTH)


class Manifest:
    """For many threads, and for several runs on one folder."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self._lock = threading.Lock()
        self._read = 0
        self._entries: dict[str, Entry] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read what other runs have added. A line that a kill cut short is passed over."""
        with self._lock, contextlib.suppress(FileNotFoundError):
            with self._file.open("rb") as file:
                file.seek(self._read)
                added = file.read()
            whole = added[: added.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                with contextlib.suppress(ValueError, TypeError, KeyError):
                    found = json.loads(line)
                    entry = Entry(**{name: found[name] for name in _FIELDS})
                    self._entries[entry.image] = entry

    def vouches(self, image: str, sif: Path) -> Entry | None:
        """The entry of `image` if `sif` still has the size and time it was verified with, and is open to all."""
        entry = self.last(image)
        try:
            found = sif.stat()
        except OSError:
            return None
        same = entry is not None and (found.st_size, found.st_mtime_ns) == (entry.size, entry.mtime_ns)
        return entry if same and is_open(found) else None

    def last(self, image: str) -> Entry | None:
        """How `image` was when it was last found good."""
        with self._lock:
            return self._entries.get(image)

    def mean_size(self) -> float | None:
        """Bytes per SIF so far."""
        with self._lock:
            sizes = [entry.size for entry in self._entries.values()]
        return sum(sizes) / len(sizes) if sizes else None

    def add(self, entry: Entry) -> None:
        """Append with one write under a lock of the file. Raises OSError."""
        jsonl.append(self._file, asdict(entry))
        with self._lock:
            self._entries[entry.image] = entry
