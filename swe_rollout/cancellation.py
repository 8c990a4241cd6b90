"""One switch per session that ends whatever the session is blocked in."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from swe_rollout.errors import Cancelled


class Cancellation:
    """A one-way switch. Thread-safe; invariant: once `reason` is set it never changes.

    Whoever blocks registers how to be woken with `waking(callback)` and checks again after it woke.
    Callbacks run in the cancelling thread, under the lock, so that none runs after its block was left, when what it
    wakes may be gone. They must not block and must not come back to this switch.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reason: str | None = None
        self._wakers: dict[object, Callable[[], object]] = {}

    @property
    def reason(self) -> str | None:
        return self._reason

    def cancel(self, reason: str) -> None:
        """Turn the switch; later calls change nothing."""
        with self._lock:
            if self._reason is not None:
                return
            self._reason = reason
            for wake in self._wakers.values():
                wake()

    def check(self) -> None:
        """Raise `Cancelled` if the switch is turned."""
        if self._reason is not None:
            raise Cancelled(self._reason)

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Within the block, `cancel` calls `wake`. Raises `Cancelled` at once if the switch is already turned."""
        key = object()
        with self._lock:
            self.check()
            self._wakers[key] = wake
        try:
            yield
        finally:
            with self._lock:
                self._wakers.pop(key, None)
