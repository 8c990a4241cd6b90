"""One wish to stop, made by a signal, that whatever blocks looks at."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from swe_rollout.prepare.faults import Stopped


class Stopping:
    """Whether a signal has come. `install` before anything is started; in the main thread, as Python's signals ask."""

    def __init__(self) -> None:
        self.event = threading.Event()
        """Set for good by the first signal."""
        self._signal = signal.SIGINT
        self._raising = False

    def install(self) -> None:
        """Listen to SIGINT, SIGTERM and SIGHUP, except those that whoever started this has had ignored (`nohup`)."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._arrived)

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as a shell has it."""
        return 128 + self._signal

    def check(self) -> None:
        """Raise `Stopped` if a signal has come."""
        if self.event.is_set():
            raise Stopped

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Around a call of a library that cannot be told to stop: `Stopped` is raised in the midst of it."""
        self._raising = True
        try:
            self.check()
            yield
        finally:
            self._raising = False

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        if not self.event.is_set():
            self._signal = signal.Signals(number)
            self.event.set()
        if self._raising:
            # Only once: what it ends may have to clean up.
            self._raising = False
            raise Stopped
