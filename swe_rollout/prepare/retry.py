"""When to try again, and when anything may begin."""

import random
import threading
import time
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception
from tenacity.nap import sleep_using_event

from swe_rollout.durations import rough
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
        self._faults = self._unclear = self._throttled = 0
        self._throttled_until = 0.0

    def goes_on(self, fault: BaseException) -> bool:
        """For tenacity: is there another try? Raises `Throttled` that names a wish too long to wait for."""
        if isinstance(fault, Throttled):
            return self._waits(fault)
        if not isinstance(fault, Transient):
            return False
        self._faults += 1
        self._unclear += isinstance(fault, Unclear)
        return self._faults < self._options.attempts and self._unclear < _UNCLEAR_ATTEMPTS

    def pause(self, state: RetryCallState) -> float:
        """For tenacity: seconds until the next try."""
        fault, options = _fault(state), self._options
        tries = self._throttled if isinstance(fault, Throttled) else self._faults
        grown = min(options.first_pause * 2.0 ** min(tries - 1, 20), options.longest_pause) * random.uniform(0.75, 1.25)
        if not isinstance(fault, Throttled):
            return grown
        if fault.retry_after is not None:
            grown = fault.retry_after + random.uniform(0.0, min(1.0, options.first_pause))
        return max(0.0, min(grown, self._throttled_until - time.monotonic()))

    def _waits(self, fault: Throttled) -> bool:
        now = time.monotonic()
        if not self._throttled:
            self._throttled_until = now + self._options.throttled_seconds
        self._throttled += 1
        left, wish = self._throttled_until - now, fault.retry_after or 0.0
        if wish > left > 0:
            raise Throttled(
                f"{fault} and asks to wait {rough(wish)}, longer than the {rough(left)} that are left", wish
            )
        return left > 0


def persistently(
    attempt: Callable[[], None],
    options: BuildOptions,
    stop: threading.Event,
    pausing: Callable[[Exception, float], None],
) -> None:
    """Call `attempt` until it works; `pausing(fault, seconds)` before each pause. Raises its last `BuildFault`."""
    patience = Patience(options)
    retrying = Retrying(
        retry=retry_if_exception(patience.goes_on),
        wait=patience.pause,
        sleep=sleep_using_event(stop),
        before_sleep=lambda state: pausing(_fault(state), state.upcoming_sleep),
    )
    retrying(attempt)


def _fault(state: RetryCallState) -> Exception:
    fault = state.outcome.exception() if state.outcome else None
    assert isinstance(fault, Exception)
    return fault
