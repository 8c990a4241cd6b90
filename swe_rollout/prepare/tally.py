"""Counts of a run, from many threads."""

import threading
import time

from swe_rollout.prepare.manifest import Entry
from swe_rollout.prepare.plan import BuildReport


class Tally:
    """What has ended so far."""

    def __init__(self, total: int) -> None:
        self._total, self._began = total, time.monotonic()
        self._lock = threading.Lock()
        self._built = self._kept = self._bytes = 0
        self._failures: dict[str, str] = {}

    def built(self, entry: Entry) -> None:
        """A new SIF."""
        with self._lock:
            self._built += 1
            self._bytes += entry.size

    def kept(self, entry: Entry) -> None:
        """A SIF that was there."""
        with self._lock:
            self._kept += 1
            self._bytes += entry.size

    def failed(self, image: str, reason: str) -> None:
        """No SIF."""
        with self._lock:
            self._failures[image] = reason

    def report(self, *, stopped: bool, note: str = "") -> BuildReport:
        """As it is now."""
        with self._lock:
            left = self._total - self._built - self._kept - len(self._failures)
            return BuildReport(
                n_built=self._built,
                n_kept=self._kept,
                failures=dict(self._failures),
                stopped=stopped and left > 0,
                bytes=self._bytes,
                seconds=time.monotonic() - self._began,
                n_left=left,
                note=note,
            )
