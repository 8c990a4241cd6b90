"""Which row each group of sessions works on: shuffled epochs, one row per group, and rows that are set aside."""

import hashlib
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from swe_rollout.row_health import RowBook, RowHealth, RowState, SetAside

if TYPE_CHECKING:
    from swe_rollout.outcome import Outcome
    from swe_rollout.tasks import Task

NEVER = SetAside(failures=0, pause_seconds=0.0)


class Place(NamedTuple):
    """How far a pool has come. Places of one pool compare by time."""

    epoch: int
    """Passes over all rows that are over."""
    position: int
    """Rows of the current pass that have had their turn: given to a group, or skipped as set aside."""


@dataclass(frozen=True, eq=False)
class Lease:
    """One session's share of its group's row."""

    task: "Task"
    place: Place
    """The pool's place right after this lease."""
    group: "_Group" = field(repr=False)
    news: str = ""
    """What is to be logged of the row, if anything."""


class TaskPool:
    """The rows of one mode, for one start of the server. Thread-safe.

    Invariants, under one lock:
    - within an epoch each row has one turn, in an order that depends only on the tasks, the seed and the epoch; the
      place never goes back;
    - at its turn a row is given to exactly one group, or to none if it is set aside. While all rows would be, none
      is: a group always gets a row, and which one is tried next does not hang on when each of them failed;
    - the first `group_size` leases of a group id share one row, the next one opens a new group of that id;
    - an open group has had fewer leases than `group_size`. It is forgotten, so that an id that starts anew does
      not meet an old row, when it was given up (one of its sessions was, and none is live), or
      `group_ttl_seconds` after its last lease.
    """

    def __init__(
        self,
        tasks: "Sequence[Task]",
        *,
        group_size: int,
        shuffle: bool,
        seed: int,
        group_ttl_seconds: float = 3600.0,
        set_aside: SetAside = NEVER,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Without `shuffle` every epoch keeps the order of `tasks`. `clock` gives seconds, `wall_clock` Unix time.

        Raises `ValueError` for no tasks and for a group size below 1.
        """
        if not tasks:
            raise ValueError("a pool needs at least one task")
        if group_size < 1:
            raise ValueError(f"the group size must be at least 1, not {group_size}")
        self._tasks = tuple(tasks)
        self._group_size = group_size
        self._shuffle = shuffle
        self._seed = seed
        self._ttl = group_ttl_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._book = RowBook((task.id for task in self._tasks), set_aside, clock=wall_clock)
        self._open: dict[str, _Group] = {}
        """Least recently leased first."""
        self._leased = 0
        said = [str(seed) if shuffle else "as read", *(task.id for task in tasks)]
        self.order = hashlib.sha256("\n".join(said).encode("utf-8", "replace")).hexdigest()[:16]
        """Names the order of the rows: pools with the same one give the same row at the same place."""
        self._begin_epoch(0)

    def resume(self, place: Place, known: Mapping[str, RowHealth]) -> None:
        """Go on at `place` of an earlier pool of the same `order`, with what is `known` of rows by their task ids.

        Call it before the first lease.
        """
        with self._lock:
            self._book.restore(known)
            self._begin_epoch(place.epoch)
            self._position = min(place.position, len(self._tasks))

    def lease(self, group_id: str) -> Lease:
        """A share of the row of the group `group_id`, for one session; `end` it when the session has ended."""
        with self._lock:
            now = self._clock()
            self._forget_stale(now)
            group, news = self._open.pop(group_id, None), ""
            if group is None:
                group = _Group(group_id, self._next_task(), self._group_size, now)
                news = self._book.leased(group.task.id)
            group.left -= 1
            group.live += 1
            group.leased_at = now
            if group.left:
                self._open[group_id] = group
            self._leased += 1
            return Lease(group.task, Place(self._epoch, self._position), group, news)

    def end(self, lease: Lease, outcome: "Outcome", timings: Mapping[str, float]) -> tuple[RowHealth, str]:
        """The session of `lease` has ended; what is known of its row now, and what is to be logged of it, if anything.

        One that has not completed gave the trainer no sample. The trainer drops a whole group for that, so what is left
        of its share will not be asked for.
        """
        with self._lock:
            group = lease.group
            group.live -= 1
            group.given_up |= outcome.status != "completed"
            if group.given_up and not group.live and self._open.get(group.id) is group:
                del self._open[group.id]
            return self._book.ended(lease.task.id, outcome, timings)

    def rows(self) -> list[tuple["Task", RowState]]:
        """All rows as they stand, in the order of the tasks."""
        with self._lock:
            states = self._book.states()
        return [(task, states[task.id]) for task in self._tasks]

    def counts(self) -> dict[str, int]:
        """rows; group_size; leased: sessions served; epoch, from 0; position: its rows that have had their turn;
        open_groups; set_aside and in_trouble: rows, as `RowBook.counts` says."""
        with self._lock:
            self._forget_stale(self._clock())
            return {
                "rows": len(self._tasks),
                "group_size": self._group_size,
                "leased": self._leased,
                "epoch": self._epoch,
                "position": self._position,
                "open_groups": len(self._open),
                **self._book.counts(),
            }

    def _next_task(self) -> "Task":
        aside = self._book.aside()
        if len(aside) == len(self._tasks):
            aside.clear()
        while True:
            if self._position == len(self._order):
                self._begin_epoch(self._epoch + 1)
            self._position += 1
            task = self._tasks[self._order[self._position - 1]]
            if task.id not in aside:
                return task

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._position = 0
        self._order = list(range(len(self._tasks)))
        if self._shuffle:
            random.Random(f"{self._seed}:{epoch}").shuffle(self._order)

    def _forget_stale(self, now: float) -> None:
        while self._open:
            group_id, group = next(iter(self._open.items()))
            if now - group.leased_at < self._ttl:
                return
            del self._open[group_id]


@dataclass(eq=False)
class _Group:
    id: str
    task: "Task"
    left: int
    leased_at: float
    live: int = 0
    given_up: bool = False
