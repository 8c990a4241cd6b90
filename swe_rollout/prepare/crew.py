"""Threads that work through images, a few at once."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from swe_rollout.prepare.build import Held
from swe_rollout.prepare.faults import Stopped

_HELD_SECONDS = 0.5
_JOIN_SECONDS = 0.1
_GOODBYE_SECONDS = 5.0


class Crew:
    """`work` on every image with `n_threads`; it may raise `Held`, to be asked again later, or `Stopped`.

    Any other exception ends the run and is raised by `finish`.
    """

    def __init__(
        self, images: Sequence[str], n_threads: int, work: Callable[[str], None], stop: threading.Event
    ) -> None:
        self._images = deque(images)
        self._work, self._stop = work, stop
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        # Daemons: a thread that asks a dead registry is not waited for when the run is stopped.
        n_threads = min(n_threads, len(images))
        self._threads = [threading.Thread(target=self._run, name=f"sifs-{n}", daemon=True) for n in range(n_threads)]

    def finish(self) -> None:
        """Start, and wait for the end or for `stop`."""
        for thread in self._threads:
            thread.start()
        try:
            for thread in self._threads:
                while thread.is_alive() and not self._stop.is_set():
                    thread.join(_JOIN_SECONDS)
        except BaseException:
            self._stop.set()
            raise
        finally:
            deadline = time.monotonic() + _GOODBYE_SECONDS
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                if not self._images:
                    return
                image = self._images.popleft()
            try:
                self._work(image)
            except Held:
                with self._lock:
                    self._images.append(image)
                self._stop.wait(_HELD_SECONDS)
            except Stopped:
                return
            except BaseException as error:
                self._error = error
                self._stop.set()
