"""Looks at all running sandboxes, twice a second, in one thread for all of them.

So a limit (`watched.py`) can be overrun for as long as nobody looks: memory by what is filled in half a second, disk by
what is written during one walk over the layer.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from swe_rollout.sandbox.limits import Limits
from swe_rollout.sandbox.table import read_table
from swe_rollout.sandbox.watched import Watched

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.5
_WALK_SECONDS = 0.05
"""Of each interval for walks over layers, whatever their size and number."""
_LEAST_TURN_SECONDS = 0.005
_LOW_SPACE = 0.05
"""Share of a file system below which it is nearly full."""


class Watch:
    """Watches sandboxes from `add` to `remove`. Thread-safe; its thread runs only while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards all that follows, and the state of every `Watched`."""
        self._watched: list[Watched] = []
        self._walks: list[Watched] = []
        self._thread: threading.Thread | None = None
        self._told_low: set[int] = set()
        """Devices whose lack of space stands in the log."""

    def add(self, loop_pid: int, layer: Path, limits: Limits) -> "Watched":
        """Begin to watch the sandbox with process 1 `loop_pid`. Raises OSError when it is gone."""
        watched = Watched(self._lock, loop_pid, layer, limits)
        with self._lock:
            self._watched.append(watched)
            if limits.disk_bytes is not None:
                self._walks.append(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sandbox-watch", daemon=True)
                self._thread.start()
        return watched

    def remove(self, watched: "Watched") -> None:
        """Stop watching. Idempotent."""
        with self._lock:
            if watched in self._watched:
                self._watched.remove(watched)
                watched.release()
            if watched in self._walks:
                self._walks.remove(watched)

    def _run(self) -> None:
        while True:
            started = time.monotonic()
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                table = read_table()
                for watched in self._watched:
                    # One that cannot be looked at must not leave the others unwatched.
                    with _logged(f"the sandbox with the layer {watched.layer} cannot be watched"):
                        watched.look(table)
                with _logged("the free space cannot be read"):
                    self._look_at_space()
            with _logged("layers cannot be measured"):
                self._measure(started + INTERVAL_SECONDS)
            time.sleep(max(0.0, started + INTERVAL_SECONDS - time.monotonic()))

    def _look_at_space(self) -> None:
        layers: dict[int, Path] = {}
        for watched in self._watched:
            with contextlib.suppress(OSError):
                layers.setdefault(watched.layer.stat().st_dev, watched.layer)
        for device, layer in layers.items():
            self._tell_low_space(device, layer)

    def _measure(self, next_look: float) -> None:
        """Spend the interval's share on walks, in turns. They take no lock."""
        until = min(time.monotonic() + _WALK_SECONDS, next_look)
        with self._lock:
            turns = list(self._walks)
        turn = max(_LEAST_TURN_SECONDS, _WALK_SECONDS / max(1, len(turns)))
        for watched in turns:
            now = time.monotonic()
            if now >= until:
                break
            watched.measure(min(until, now + turn))
            with self._lock:
                if watched in self._walks:
                    # Who had its turn is last in the next interval.
                    self._walks.remove(watched)
                    self._walks.append(watched)

    def _tell_low_space(self, device: int, layer: Path) -> None:
        status = os.statvfs(layer)
        free, share = status.f_bavail * status.f_frsize, status.f_bavail / max(1, status.f_blocks)
        if share < _LOW_SPACE and device not in self._told_low:
            self._told_low.add(device)
            log.warning(
                "the file system of the scratch folder is nearly full: %d MB left for the layers in %s",
                *(free >> 20, layer.parents[1]),
            )
        elif share > 2 * _LOW_SPACE:
            self._told_low.discard(device)


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("%s", what)
