"""When to try again, and when anything may begin."""

import random
import threading
import time
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception_type
from tenacity.nap import sleep_using_event

from swe_rollout.prepare.faults import Stopped, Throttled, Transient, Unclear
from swe_rollout.prepare.plan import BuildOptions

_UNCLEAR_ATTEMPTS = 2


class Gate:
    """The starts of one run: `interval` seconds apart, and none while a registry throttles.

    A 429 counts for the address or the account, so every image waits for it.
    """

    def __init__(self, interval: float, stop: threading.Event) -> None:
        self._interval, self._stop = interval, stop
        self._lock = threading.Lock()
        self._next = self._open = 0.0

    def pass_(self) -> None:
        """Wait for a turn. Raises `Stopped`."""
        while not self.pass_now():
            with self._lock:
                wait = max(self._next, self._open) - time.monotonic()
            self._stop.wait(max(0.0, wait))
            if self._stop.is_set():
                raise Stopped
        if self._stop.is_set():
            raise Stopped

    def pass_now(self) -> bool:
        """Take the turn if there is one without waiting."""
        with self._lock:
            now = time.monotonic()
            if max(self._next, self._open) > now:
                return False
            self._next = now + self._interval
            return True

    def close_for(self, seconds: float) -> bool:
        """No start for so long. False if that holds already, more or less."""
        with self._lock:
            now, before = time.monotonic(), self._open
            self._open = max(before, now + seconds)
            return before <= now


class Patience:
    """How often one image is tried: growing pauses with jitter, longer if the registry asks for it."""

    def __init__(self, options: BuildOptions) -> None:
        self._options = options
        self._faults = self._throttled = 0
        self._throttled_since = 0.0

    def is_over(self, state: RetryCallState) -> bool:
        """For tenacity: was this the last try?"""
        fault = _fault(state)
        if isinstance(fault, Throttled):
            if not self._throttled:
                self._throttled_since = time.monotonic()
            self._throttled += 1
            return time.monotonic() - self._throttled_since > self._options.throttled_seconds
        self._faults += 1
        return self._faults >= (_UNCLEAR_ATTEMPTS if isinstance(fault, Unclear) else self._options.attempts)

    def pause(self, state: RetryCallState) -> float:
        """For tenacity: seconds until the next try."""
        fault, options = _fault(state), self._options
        tries = self._throttled if isinstance(fault, Throttled) else self._faults
        grown = min(options.first_pause * 2.0 ** min(tries - 1, 20), options.longest_pause) * random.uniform(0.75, 1.25)
        if isinstance(fault, Throttled) and fault.retry_after is not None:
            return fault.retry_after + random.uniform(0.0, min(1.0, options.first_pause))
        return grown


def persistently(
    attempt: Callable[[], None],
    options: BuildOptions,
    stop: threading.Event,
    pausing: Callable[[Exception, float], None],
) -> None:
    """Call `attempt` until it works; `pausing(fault, seconds)` before each pause. Raises its last `BuildFault`."""
    patience = Patience(options)
    retrying = Retrying(
        retry=retry_if_exception_type((Throttled, Transient)),
        stop=patience.is_over,
        wait=patience.pause,
        sleep=sleep_using_event(stop),
        before_sleep=lambda state: pausing(_fault(state), state.upcoming_sleep),
        reraise=True,
    )
    retrying(attempt)


def _fault(state: RetryCallState) -> Exception:
    fault = state.outcome.exception() if state.outcome else None
    assert isinstance(fault, Exception)
    return fault
