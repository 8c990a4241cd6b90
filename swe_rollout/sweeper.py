"""The one thread of the server that works without being asked."""

import logging
import threading
from collections.abc import Callable, Sequence

log = logging.getLogger(__name__)


class Sweeper:
    """Calls every job, one after the other, every `seconds` until `stop`."""

    def __init__(self, jobs: Sequence[Callable[[], object]], *, seconds: float) -> None:
        self._jobs = jobs
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sweep, name="sweeper", daemon=True)

    def start(self) -> None:
        """Begin; called once."""
        self._thread.start()

    def stop(self, *, seconds: float) -> None:
        """Call no further job; returns when the last one is over, or after `seconds`."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _sweep(self) -> None:
        while not self._stopped.wait(self._seconds):
            for job in self._jobs:
                try:
                    job()
                except Exception:
                    # One job's bad day must not end the others for good.
                    log.exception("a sweep failed")
