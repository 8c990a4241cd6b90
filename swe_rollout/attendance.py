"""Whether anybody still waits for a session's result."""

import contextlib
import threading
from collections.abc import Callable, Iterator


class Attendance:
    """When a session's client was last heard of. Thread-safe.

    A server is not told when a client dies, but a living one asks again and again: whoever has not asked for
    long is gone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """The client is heard of now. `clock` gives seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._calls = 0
        self._left_at = clock()

    @contextlib.contextmanager
    def present(self) -> Iterator[None]:
        """The client is in a call within the block."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                self._left_at = self._clock()

    def away(self) -> float:
        """Seconds since its last call ended; 0.0 while it is in one."""
        with self._lock:
            return 0.0 if self._calls else self._clock() - self._left_at
