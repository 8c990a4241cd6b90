"""A few threads that work off what one feeder gives them."""

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import Cancelled
from swe_rollout.reaper import Reaper

Job = TypeVar("Job")

_TICK_SECONDS = 0.2
_GOODBYE_SECONDS = 5.0


class Crew(Generic[Job]):
    """`work` is called for each job, in `n_threads` threads; it may raise `Cancelled`.

    Any other exception ends the run and is raised by `work_off`.
    """

    def __init__(self, n_threads: int, work: Callable[[Job], None], cancellation: Cancellation) -> None:
        self._work, self._cancellation = work, cancellation
        self._jobs: queue.Queue[Job | None] = queue.Queue(maxsize=1)
        self._error: BaseException | None = None
        self._threads = [
            # Daemons: one that does not end when it is told to must not keep the process.
            threading.Thread(target=self._run, name=f"validation-{n}", daemon=True)
            for n in range(n_threads)
        ]

    def work_off(self, jobs: Iterable[Job]) -> None:
        """Take `jobs` one at a time, as threads become free; returns when all are done.

        Call it in the main thread, which may start no process (see `Reaper`). Raises `Cancelled`.
        """
        self._reaper = Reaper()
        for thread in self._threads:
            thread.start()
        try:
            for job in jobs:
                self._put(job)
            for _ in self._threads:
                self._put(None)
            for thread in self._threads:
                while thread.is_alive():
                    self._check()
                    self._reaper.reap()
                    thread.join(_TICK_SECONDS)
        except BaseException:
            self._cancellation.cancel("validation is stopping")
            raise
        finally:
            for thread in self._threads:
                thread.join(_GOODBYE_SECONDS)
            self._reaper.reap()
        self._check()

    def _put(self, job: Job | None) -> None:
        while True:
            self._check()
            try:
                self._jobs.put(job, timeout=_TICK_SECONDS)
                return
            except queue.Full:
                self._reaper.reap()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        self._cancellation.check()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                if self._cancellation.reason is not None:
                    return
                continue
            if job is None:
                return
            try:
                self._work(job)
            except Cancelled:
                return
            except BaseException as error:
                self._error = error
                return
