"""The running server: its sessions, its HTTP face, its housekeeping, and the order in which they stop."""

import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from swe_rollout.listener import Listener
from swe_rollout.metrics import Metrics
from swe_rollout.sessions import Sessions
from swe_rollout.settings import Settings
from swe_rollout.sweeper import Sweeper
from swe_rollout.web import create_app

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    from swe_rollout.assembly import Parts
    from swe_rollout.journal import Journal

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 1.0
_SECONDS_TO_END_SESSIONS = 5.0
_SECONDS_TO_SWEEP = 0.5
_SECONDS_TO_SEND_ANSWERS = 1.0


class Service:
    """Everything that lives from the start line to the exit. `run` in one thread, `stop` from another."""

    def __init__(
        self, settings: Settings, parts: "Parts", journal: "Journal", jobs: Sequence[Callable[[], object]] = ()
    ) -> None:
        """Goes on where the last server of this `journal` stopped. `jobs` are done every second too."""
        for mode, pool in parts.pools.items():
            pool.resume(journal.place(mode, pool.order), journal.rows(mode))
        metrics = Metrics()
        self.sessions = Sessions(
            parts.run,
            parts.pools,
            max_open=settings.max_sessions,
            record_ttl=settings.record_ttl_seconds,
            client_ttl=settings.client_ttl_seconds,
            journal=journal,
            on_end=metrics.ended,
        )
        metrics.watch(self.sessions.counts, parts.slots, parts.tasks)
        self.app: WSGIApplication = create_app(
            self.sessions,
            metrics,
            parts,
            token=settings.secret(),
            run_id=settings.run_id,
            http_threads=settings.http_threads,
        )
        self._parts = parts
        self._threads = settings.http_threads
        self._sweeper = Sweeper(
            [self.sessions.sweep, lambda: journal.forget(settings.record_ttl_seconds), *jobs], seconds=_SWEEP_SECONDS
        )

    def listen(self, sock: socket.socket) -> str:
        """Take connections from now on; the URL. Raises `StartupError` if another server took the address."""
        self._listener = Listener(self.app, sock, threads=self._threads)
        return self._listener.url

    def run(self) -> None:
        """Answer until `stop`."""
        self._sweeper.start()
        self._listener.run()

    def stop(self) -> None:
        """Refuse new sessions, end the open ones, answer who waits for them, end sandboxes; in less than 9 seconds."""
        try:
            for session_id in self.sessions.close("the server is stopping", seconds=_SECONDS_TO_END_SESSIONS):
                log.error("%s did not end in time; its processes are killed", session_id)
            self._parts.close()
            self._sweeper.stop(seconds=_SECONDS_TO_SWEEP)
        finally:
            self._listener.stop(seconds=_SECONDS_TO_SEND_ANSWERS)
