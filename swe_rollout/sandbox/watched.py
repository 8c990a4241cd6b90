"""One sandbox under watch: what it used, and how it is held to its limits without cgroups.

- Memory: the largest process is killed, as the kernel would.
- Processes: the newest are killed; if there are too many again at the next look, or twice as many as allowed, all: what
  breeds faster than it can be hunted.
- Storage (the layer over the disk limit, or files in memory over the memory limit): all processes are killed and the
  agent is told. It has the next command to make room; who is over the limit after that one is at fault.

Process 1 of the sandbox is killed only when a cgroup has no memory left for it, Apptainer's own processes never.
"""

import math
import threading
from pathlib import Path

from swe_rollout.errors import AgentFault
from swe_rollout.sandbox.limits import Limits
from swe_rollout.sandbox.processes import Namespace, ProcessHandle
from swe_rollout.sandbox.storage import LayerSize, MemoryFiles
from swe_rollout.sandbox.table import Process, Table, descendants, end, read_process, read_table, used_bytes

_GROWTH = 1.05
"""How much more than when it was told to make room a sandbox may store meanwhile."""
_NO_ROOM = 0.75
"""Share of a cgroup's memory above which files leave process 1 no page to go on with, not even to make room."""
_MOST_NEWS = 3
_LOOKS_PER_WEIGHING = 8
"""How often memory is counted exactly where only the peak depends on it and no more is resident than before."""


class Watched:
    """The state of one sandbox. The threads of `Watch` look, that of its `Sandbox` asks what they saw."""

    def __init__(self, loop: ProcessHandle, layer: Path, limits: Limits) -> None:
        self._lock = threading.Lock()
        """Guards `_namespace` and what is told to the agent: `kills`, `_news`, `_over`. Held from a kill until it is
        told, so that the command that was hit is the one that hears of it."""
        self._namespace = Namespace(loop)
        seen = read_process(loop.pid)
        self._loop = seen if loop.is_alive() else None
        self._memory_files = MemoryFiles(loop)
        self._limits = limits
        self.layer = layer
        self._walk = LayerSize(layer)
        self.peak_memory_bytes = 0
        """Most memory seen at once, in all processes but process 1 and in files in memory."""
        self.kills: list[str] = []
        """What was killed and why, from the start on."""
        self._news: list[str] = []
        self._dying: set[tuple[int, int]] = set()
        """Killed by memory, and maybe not gone yet: a large process takes a while to end."""
        self._culled: set[tuple[int, int]] = set()
        """The same for number: what is killed breeds no more, and is no reason to kill others."""
        self._looks = 0
        self._weighed = 0
        """What was resident when the memory was last counted exactly."""
        self._crowded = False
        """Whether there were too many processes at the last look."""
        self._over: _Overfull | None = None

    @property
    def has_disk_limit(self) -> bool:
        return self._limits.disk_bytes is not None

    def settle(self) -> str:
        """After each command: what was done to the sandbox since the last one, in words for the agent; mostly empty.

        Raises `AgentFault` when the sandbox was told to make room and has not.
        """
        with self._lock:
            said, self._news = "; ".join(self._news), []
            over = self._over
            if over is None or not over.told:
                if over:
                    over.told = True
                return said
        stored = self._memory_files.used_bytes() if over.in_memory else LayerSize(self.layer).now()
        if stored > over.limit:
            raise AgentFault(over.exit_status, f"the sandbox still stores more than it may: {over.what(stored)}")
        with self._lock:
            self._over = None
            self._walk = LayerSize(self.layer)  # one under way has counted what is gone now
        return said

    def blame(self) -> None:
        """After a death or a hang: raises `AgentFault` if the files in memory are, or were, over the limit.

        They do not go with the processes that the kernel kills for them, so that in the end it kills process 1 too.
        """
        limit = self._limits.memory_bytes
        with self._lock:
            seen = self._over.stored if self._over and self._over.in_memory else 0
        stored = max(seen, self._memory_files.used_bytes())
        if limit is not None and stored > limit:
            over = _Overfull(limit, in_memory=True, stored=stored)
            raise AgentFault(over.exit_status, f"the sandbox broke down: {over.what(stored)}")

    def bound_number(self, table: Table) -> None:
        """Hold the sandbox to its limit on processes and threads."""
        present = self._family(table)
        self._culled &= {process.identity for process in present}
        processes = [process for process in present if process.identity not in self._culled]
        limit = self._limits.processes
        surplus = sum(process.threads for process in processes) - limit
        again, self._crowded = self._crowded, surplus > 0
        if surplus <= 0:
            return
        with self._lock:
            if again or surplus > limit:
                self._end_all()
                self._culled.update(process.identity for process in processes)
            else:
                for process in sorted(processes, key=lambda process: (process.start, process.pid), reverse=True):
                    if surplus > 0 and not process.is_zombie and end(process):
                        surplus -= process.threads
                        self._culled.add(process.identity)
            self._tell(f"processes were killed: there were more than {limit} processes and threads, which is the limit")

    def weigh(self, table: Table) -> None:
        """Hold the sandbox to its limit on memory. May wait for processes that the processor has no time for."""
        processes = self._family(table)
        in_files = self._memory_files.used_bytes()
        limit = self._limits.memory_bytes
        if limit is not None and in_files > limit:
            self._overfull(in_files, limit, in_memory=True)
        if self._loop and in_files > _NO_ROOM * (self._limits.kernel_memory_bytes or math.inf):
            end(self._loop)
        self._dying &= {process.identity for process in processes}
        living = [process for process in processes if process.identity not in self._dying]
        # The sum of what is resident counts shared pages often. It is exact enough where nothing depends on it.
        memory = sum(process.resident_bytes for process in living) + in_files
        self._looks += 1
        is_due = memory > self._weighed or self._looks % _LOOKS_PER_WEIGHING == 0
        if (is_due and memory > self.peak_memory_bytes) or (limit is not None and memory > limit):
            self._weighed = memory
            exact, shared = used_bytes(living)
            memory = exact - shared + max(shared, in_files)
            self.peak_memory_bytes = max(self.peak_memory_bytes, memory)
        if limit is not None and memory > limit and living:
            largest = max(living, key=lambda process: process.resident_bytes)
            with self._lock:
                if end(largest):
                    self._dying.add(largest.identity)
                    self._tell(
                        f"the largest process was killed: {_mb(memory)} of memory were used, {_mb(limit)} is the limit"
                    )

    def measure(self, until: float) -> None:
        """Go on measuring the layer until `time.monotonic()` is `until`, and hold the sandbox to its limit."""
        walk, limit = self._walk, self._limits.disk_bytes
        size = walk.advance(until)
        if walk is self._walk and size is not None and limit is not None and size > limit:
            self._overfull(size, limit, in_memory=False)

    def release(self) -> None:
        """The sandbox is about to end; idempotent."""
        self._memory_files.close()
        with self._lock:
            self._namespace.close()

    def _overfull(self, stored: float, limit: int, *, in_memory: bool) -> None:
        with self._lock:
            if self._over is None:
                self._over = _Overfull(limit, in_memory, stored)
                self._tell(
                    f"everything that ran in the sandbox was killed: {self._over.what(stored)}; "
                    "the next command has to make room, or the session ends"
                )
            elif self._over.in_memory != in_memory or not self._over.has_grown(stored):
                return
            self._end_all()

    def _family(self, table: Table) -> list[Process]:
        """What ran in the sandbox when `table` was read; nothing once its process 1 is gone, for whose number may be
        another's by then."""
        if self._loop is None or (now := read_process(self._loop.pid)) is None or now.identity != self._loop.identity:
            return []
        return descendants(table, self._loop.pid)

    def _end_all(self) -> None:
        """With the lock held."""
        if not self._namespace.end():
            for process in self._family(read_table()):
                end(process)

    def _tell(self, news: str) -> None:
        """With the lock held."""
        for told in (self._news, self.kills):
            if news not in told and len(told) < _MOST_NEWS:
                told.append(news)


class _Overfull:
    """A sandbox that stores more than it may."""

    def __init__(self, limit: int, in_memory: bool, stored: float) -> None:
        self.limit = limit
        self.in_memory = in_memory
        self.stored = stored
        self.told = False
        self._is_settled = False

    def has_grown(self, stored: float) -> bool:
        """Whether it stores more than when all was killed; what was written until then is seen at the next look."""
        grown = self._is_settled and stored > self.stored * _GROWTH
        if grown or not self._is_settled:
            self.stored = max(self.stored, stored)
        self._is_settled = True
        return grown

    @property
    def exit_status(self) -> str:
        return "MemoryLimitExceeded" if self.in_memory else "DiskLimitExceeded"

    def what(self, stored: float) -> str:
        where = "files in memory, such as those in /dev/shm," if self.in_memory else "files on disk"
        size = "more than can be measured" if math.isinf(stored) else _mb(stored)
        return f"its {where} take {size}, {_mb(self.limit)} is the limit"


def _mb(size: float) -> str:
    return f"{size / (1 << 20):.0f} MB"
