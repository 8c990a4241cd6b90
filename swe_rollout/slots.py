"""How many sessions may hold a sandbox at once: a semaphore that serves strictly by arrival."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator

from swe_rollout.cancellation import Cancellation


class Slots:
    """`capacity` slots, handed out first come, first served. Thread-safe.

    Invariants, under one lock:
    - 0 <= in_use <= capacity, and nobody waits while a slot is free;
    - a freed slot goes to the waiter that came first, directly: nobody can overtake it on the way;
    - each waiter is woken alone, by its slot or by its cancellation; if by both, the slot moves on.
    """

    def __init__(self, capacity: int) -> None:
        """Raises `ValueError` for a capacity below 1, with which every session would wait for ever."""
        if capacity < 1:
            raise ValueError(f"the number of slots must be at least 1, not {capacity}")
        self.capacity = capacity
        self._lock = threading.Lock()
        self._in_use = 0
        self._waiters: deque[_Turn] = deque()

    @property
    def in_use(self) -> int:
        return self._in_use

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    @contextlib.contextmanager
    def hold(self, cancellation: Cancellation) -> Iterator[float]:
        """Hold one slot within the block; gives the seconds waited for it.

        Raises `Cancelled` at once, without entering the block, if `cancellation` is turned before the slot is
        held. Within the block cancellation is the caller's business.
        """
        arrived = time.monotonic()
        turn = self._arrive()
        try:
            with cancellation.waking(turn.woken.set):
                turn.woken.wait()
            cancellation.check()
            yield time.monotonic() - arrived
        finally:
            self._leave(turn)

    def _arrive(self) -> "_Turn":
        turn = _Turn()
        with self._lock:
            if self._in_use < self.capacity:
                self._in_use += 1
                turn.give_slot()
            else:
                self._waiters.append(turn)
        return turn

    def _leave(self, turn: "_Turn") -> None:
        with self._lock:
            if not turn.has_slot:
                self._waiters.remove(turn)
            elif self._waiters:
                self._waiters.popleft().give_slot()
            else:
                self._in_use -= 1


class _Turn:
    """One thread's place in the queue."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.has_slot = False

    def give_slot(self) -> None:
        self.has_slot = True
        self.woken.set()
