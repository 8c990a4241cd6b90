"""Looks at all running sandboxes, twice a second, in two threads for all of them.

So a limit (`watched.py`) can be overrun for as long as nobody looks: memory by what is filled in half a second, disk by
what is written during one walk over the layer.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from swe_rollout.sandbox.limits import Limits
from swe_rollout.sandbox.processes import ProcessHandle
from swe_rollout.sandbox.table import read_table
from swe_rollout.sandbox.watched import Watched

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 0.5
_WALK_SECONDS = 0.05
"""Of each interval for walks over layers, whatever their size and number."""
_GLANCE_SECONDS = 0.05
_SWARM = 200
"""So many new threads on the machine between two looks are worth a look at once."""
_LEAST_TURN_SECONDS = 0.005
_LOW_SPACE = 0.05
"""Share of a file system below which it is nearly full."""


@dataclass(frozen=True)
class Usage:
    """What all sandboxes used that were started within a `recording`."""

    watched: list[Watched] = field(default_factory=list)

    @property
    def peak_memory_mb(self) -> int | None:
        """The largest peak; None without a sandbox."""
        return max((watched.peak_memory_bytes >> 20 for watched in self.watched), default=None)

    @property
    def kills(self) -> str:
        """What was killed and why; mostly empty."""
        return "; ".join(kill for watched in self.watched for kill in watched.kills)


_RECORDING: ContextVar[Usage | None] = ContextVar("recording", default=None)


@contextlib.contextmanager
def recording() -> Iterator[Usage]:
    """The usage of the sandboxes that this thread starts in the block, wherever in it."""
    usage = Usage()
    token = _RECORDING.set(usage)
    try:
        yield usage
    finally:
        _RECORDING.reset(token)


class Watch:
    """Watches sandboxes from `add` to `remove`. Thread-safe; its threads run only while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Guards the two that follow; what is known of a sandbox is guarded by its `Watched`."""
        self._watched: list[Watched] = []
        self._running = 0
        self._turn = 0
        self._told_low: set[int] = set()
        """Devices whose lack of space stands in the log."""

    def add(self, loop: ProcessHandle, layer: Path, limits: Limits) -> Watched:
        """Begin to watch the sandbox with process 1 `loop`, which is needed only for this call."""
        watched = Watched(loop, layer, limits)
        if usage := _RECORDING.get():
            usage.watched.append(watched)
        with self._lock:
            self._watched.append(watched)
            if self._running == 0:
                # Weighing waits for the sandboxes' own processes, and counting must not.
                for look in (self._count, self._weigh):
                    self._running += 1
                    threading.Thread(target=self._run, args=[look], name="sandbox-watch", daemon=True).start()
        return watched

    def remove(self, watched: Watched) -> None:
        """Stop watching. Idempotent."""
        with self._lock:
            if watched in self._watched:
                self._watched.remove(watched)
        watched.release()

    def _run(self, look: Callable[[Sequence[Watched]], None]) -> None:
        while True:
            next_look = time.monotonic() + INTERVAL_SECONDS
            with self._lock:
                present = list(self._watched)
                if not present:
                    self._running -= 1
                    return
            with _logged("the sandboxes cannot be watched"):
                look(present)
            _sleep_until(next_look)

    def _count(self, present: Sequence[Watched]) -> None:
        table = read_table()
        layers: dict[int, Path] = {}
        for watched in present:
            # One that cannot be looked at must not leave the others unwatched.
            with _logged(f"the processes beside the layer {watched.layer} cannot be counted"):
                watched.bound_number(table)
            with contextlib.suppress(OSError):
                layers.setdefault(watched.layer.stat().st_dev, watched.layer)
        for device, layer in layers.items():
            with contextlib.suppress(OSError):
                self._tell_low_space(device, layer)
        self._measure([watched for watched in present if watched.has_disk_limit])

    def _weigh(self, present: Sequence[Watched]) -> None:
        table = read_table()
        for watched in present:
            with _logged(f"the processes beside the layer {watched.layer} cannot be weighed"):
                watched.weigh(table)

    def _measure(self, limited: Sequence[Watched]) -> None:
        """Spend the share for walks, in turns; also when the look itself has taken the whole interval."""
        until = time.monotonic() + _WALK_SECONDS
        share = max(_LEAST_TURN_SECONDS, _WALK_SECONDS / max(1, len(limited)))
        for _ in limited:
            now = time.monotonic()
            if now >= until:
                break
            self._turn += 1
            with _logged("a layer cannot be measured"):
                limited[self._turn % len(limited)].measure(min(until, now + share))

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


def _sleep_until(next_look: float) -> None:
    """Ends early when the machine has many more processes than before: a fork bomb doubles in milliseconds."""
    before = _count_of_threads()
    while (left := next_look - time.monotonic()) > 0 and _count_of_threads() < before + _SWARM:
        time.sleep(min(_GLANCE_SECONDS, left))


def _count_of_threads() -> int:
    """Threads of the whole machine (proc_loadavg(5))."""
    return int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
