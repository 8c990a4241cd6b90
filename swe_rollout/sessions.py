"""All sessions of this server: opened once, ended once, found again for a while."""

import itertools
import logging
import secrets
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from swe_rollout.errors import Cancelled
from swe_rollout.outcome import Outcome
from swe_rollout.records import EarlyCancels, Record, Records
from swe_rollout.session import RequestError, Session, SessionRequest, request_key, shown
from swe_rollout.states import MODES, STAGES, Mode, Status

if TYPE_CHECKING:
    from swe_rollout.journal import Journal
    from swe_rollout.leases import Lease, TaskPool

log = logging.getLogger(__name__)

RETRY_AFTER_SECONDS = 5


class Sessions:
    """The only owner of sessions and their threads. Thread-safe.

    Invariants, kept under one lock that is never held while anything blocks (a lease is a look-up):
    - a session id is given once, also across restarts; a request id names at most one session;
    - every opened session has leased exactly one task and ends exactly once, whatever `run` does;
    - `_open` holds the sessions that have not ended and their leases, `_records` those and the ended ones;
    - a session that has ended can be found for at least `record_ttl` seconds.

    `sweep`, called every now and then, gives up sessions whose clients are gone.
    """

    def __init__(
        self,
        run: Callable[[Session], Outcome],
        pools: "Mapping[Mode, TaskPool]",
        *,
        max_open: int,
        record_ttl: float,
        client_ttl: float,
        journal: "Journal",
        on_end: Callable[[Session], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`run` is one rollout, called in the session's own thread. `clock` gives seconds.

        `record_ttl` is how long an ended session is told of, one that `journal` remembers too; `client_ttl` how long
        a client may be silent. `on_end` hears of each end before the session's client does, and must not block.
        """
        self.epoch = f"{int(time.time()):x}{secrets.token_hex(3)}"
        """Names this start of the server; part of every session id."""
        self._run = run
        self._pools = pools
        self._max_open = max_open
        self._client_ttl = client_ttl
        self._journal = journal
        self._clock = clock
        self._on_end = on_end
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._records = Records(record_ttl)
        self._open: dict[str, tuple[Session, Lease]] = {}
        self._totals: Counter[tuple[Mode, Status]] = Counter()
        self._cancelled_early = EarlyCancels(limit=10_000)
        self._closing = False
        for record in journal.remembered():
            self._records.add(record)
            self._records.end(record, clock() - record.age)

    def open(self, request: SessionRequest) -> tuple[Record, bool]:
        """The session of this request, and whether it is new.

        Raises `RequestError`: 409 if the request id stands for another request or the mode has no tasks, 503
        if there is no room or the server is stopping.
        """
        with self._lock:
            self._records.forget(self._clock())
            known = self._records.find("", request.key)
            if known is None:
                session, lease = self._new(request)
                early = self._cancelled_early.take(request.request_id)
        if known is not None:
            if known.request_digest != request.digest():
                raise RequestError(
                    409,
                    "request_id_reused",
                    "this request_id was sent before with other fields; use a new one per session",
                    field="request_id",
                )
            known.wait(0.0)
            return known, False
        self._journal.opened(session, lease.place)
        names = (session.id, session.mode, shown(session.group_id), shown(session.task.id))
        log.info("%s start mode=%s group=%s task=%s", *names)
        _tell_of_row(session, lease.news)
        if early is not None:
            session.cancel(early)
            self._end(session, Outcome.cancelled(early))
        else:
            self._start(session)
        return session, True

    def get(self, key: str) -> Record:
        """The session with this id or request id. Raises `RequestError` 404."""
        with self._lock:
            self._records.forget(self._clock())
            record = self._records.find(key, request_key(key))
        if record is None:
            raise _unknown()
        return record

    def wait(self, key: str, seconds: float) -> Record:
        """Like `get` for the session's own client, after up to `seconds` of waiting for the end."""
        record = self.get(key)
        record.wait(seconds)
        return record

    def cancel(self, key: str, reason: str) -> None:
        """Give the session up; returns at once. Idempotent, and nothing after the end.

        A request id that is not known yet is remembered, and its session ends as it opens. Any other unknown
        id raises `RequestError` 404. A session whose rollout is over before it notices ends as it would have.
        """
        with self._lock:
            record = self._records.find(key, request_key(key))
            if record is None:
                if not self._cancelled_early.note(key, reason):
                    raise _unknown()
                return
        record.cancel(reason)

    def list(
        self, *, status: str | None = None, mode: str | None = None, group_id: str | None = None
    ) -> Sequence[Record]:
        """Known sessions, newest first, that match every filter given."""
        with self._lock:
            self._records.forget(self._clock())
            records = [*self._records.newest_first()]
        return [
            record
            for record in records
            if status in (None, record.status) and mode in (None, record.mode) and group_id in (None, record.group_id)
        ]

    def counts(self) -> dict[Mode, dict[Status, int]]:
        """Per mode: how many sessions are in each stage now, and how many have ended each way so far."""
        with self._lock:
            counted = self._totals + Counter((s.mode, s.status) for s, _ in self._open.values())
        statuses: tuple[Status, ...] = (*STAGES, "completed", "failed", "cancelled")
        return {mode: {status: counted[mode, status] for status in statuses} for mode in MODES}

    def sweep(self) -> None:
        """Cancel every session whose client was last heard of `client_ttl` seconds ago."""
        with self._lock:
            self._records.forget(self._clock())
            sessions = [session for session, _ in self._open.values()]
        for session in sessions:
            if session.attendance.away() >= self._client_ttl:
                reason = f"abandoned: no client has asked for the session for {self._client_ttl:g} s"
                if session.cancel(reason):
                    log.warning("%s %s", session.id, reason)

    @property
    def closing(self) -> bool:
        """Whether new sessions are refused because the server is stopping."""
        return self._closing

    def close(self, reason: str, *, seconds: float) -> Sequence[str]:
        """Refuse new sessions, cancel the open ones and wait for their end; ids of those still open then.

        Those end as cancelled all the same, so that their clients are answered; what they still do is lost.
        """
        with self._lock:
            self._closing = True
            sessions = [session for session, _ in self._open.values()]
        for session in sessions:
            session.cancel(reason)
        deadline = time.monotonic() + seconds
        late = [s for s in sessions if not s.ended.wait(max(0.0, deadline - time.monotonic()))]
        for session in late:
            self._end(session, Outcome.cancelled(reason))
        return [session.id for session in late]

    def _new(self, request: SessionRequest) -> "tuple[Session, Lease]":
        pool = self._pools.get(request.mode)
        if pool is None:
            raise RequestError(
                409,
                "no_tasks",
                f"no {request.mode} rows are loaded: the server's log says why at its start; they come from the files "
                f"below R2E_DATA_PATH that match data.{request.mode} of the configuration",
                field="mode",
            )
        if self._closing:
            raise RequestError(503, "draining", "the server is stopping")
        if len(self._open) >= self._max_open:
            raise RequestError(
                503,
                "full",
                f"{len(self._open)} sessions are open, the most that AGENT_SERVER_MAX_SESSIONS allows",
            )
        lease = pool.lease(request.group_id)
        session = Session(f"ses_{self.epoch}_{next(self._numbers)}", request, lease.task, clock=self._clock)
        self._open[session.id] = session, lease
        self._records.add(session)
        return session, lease

    def _start(self, session: Session) -> None:
        thread = threading.Thread(target=self._live, args=(session,), name=session.id, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._end(session, Outcome.failed(f"the machine gives the server no more threads: {error}"))

    def _live(self, session: Session) -> None:
        outcome = Outcome.failed("internal error: the session's thread stopped without an outcome")
        try:
            session.cancellation.check()
            outcome = self._run(session)
        except Cancelled as cancelled:
            outcome = Outcome.cancelled(str(cancelled), n_calls=session.n_calls)
        except Exception as error:
            outcome = Outcome.failed(f"internal error: {type(error).__name__}: {error}", n_calls=session.n_calls)
            log.error("%s bug\n%s", session.id, session.without_key(traceback.format_exc()))
        finally:
            self._end(session, outcome)

    def _end(self, session: Session, outcome: Outcome) -> None:
        with self._lock:
            if not session.end(outcome):
                return
            _, lease = self._open.pop(session.id)
            # As the session tells it, so without the trainer's key.
            told = session.outcome or outcome
            health, news = self._pools[session.mode].end(lease, told, session.timings)
            self._records.end(session, self._clock())
            self._totals[session.request.mode, outcome.status] += 1
        try:
            self._journal.ended(session, health)
            self._on_end(session)
            log.info("%s end %s", session.id, session.ending())
            _tell_of_row(session, news)
        finally:
            session.ended.set()


def _tell_of_row(session: Session, news: str) -> None:
    if news:
        log.warning("%s row %s: %s", session.mode, shown(session.task.id), news)


def _unknown() -> RequestError:
    return RequestError(404, "unknown_session", "no such session: it ended long ago, or the server was restarted")
