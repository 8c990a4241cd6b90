"""A signal ends the run at once, with nothing left behind."""

import os
import signal
import threading
from types import FrameType

from swe_rollout.cancellation import Cancellation

_SECONDS_TO_STOP = 9.5


class Stopping:
    """Turns the first SIGINT, SIGTERM or SIGHUP into a cancellation. Make it in the main thread."""

    def __init__(self, cancellation: Cancellation) -> None:
        """Signals that whoever started this has had ignored (`nohup`) stay so."""
        self._cancellation = cancellation
        self._signal: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._arrived)

    @property
    def exit_code(self) -> int | None:
        """128 + the signal's number, None if none has come."""
        return None if self._signal is None else 128 + self._signal

    def _arrived(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is not None:
            return
        self._signal = number
        deadline = threading.Timer(_SECONDS_TO_STOP, os._exit, (128 + number,))
        deadline.daemon = True
        deadline.start()
        # Not here: the main thread may hold the switch's lock.
        threading.Thread(target=self._cancellation.cancel, args=("validation is stopping",), daemon=True).start()
