"""The live sessions and groups: who may ask, who has to wait, and who is discarded.

One owner, one lock: `Session`, `Group` and `Turn` are read and written under `SessionTable`'s condition, and
every wait of the chat API and of the group threads is a wait on that condition.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from local_relax.errors import AgentExecutionError, session_discarded
from local_relax.forest import states
from local_relax.output import AgentOutput
from local_relax.results import SessionResult
from local_relax.state import Group, Session, Turn
from local_relax.validation import ChatRequest, Message


class SessionTable:
    def __init__(self, tell: Callable[[str], object]) -> None:
        """`tell` takes one line about what happened; it must not block."""
        self._changed = threading.Condition()
        self._tell = tell
        self._live: dict[str, Session] = {}
        self._groups: dict[str, Group] = {}
        self._open = True
        self._turns = 0
        self._shut: str | None = None

    def open_group(self, group_id: str, number: int, members: Sequence[tuple[str, str]]) -> Group:
        """Register a group; `members` are (session id, policy) by slot."""
        group = Group(group_id, number, time.monotonic())
        group.sessions = [Session(token, group, slot, policy) for slot, (token, policy) in enumerate(members)]
        with self._changed:
            self._groups[group.id] = group
            self._live.update((session.id, session) for session in group.sessions)
            if self._shut is not None:
                self._drop(group, self._shut, blameless=True)
        return group

    def enter(self, token: str, request: ChatRequest) -> Turn:
        """Accept a request, which the barrier counts from now on. The caller owes a `leave`. Raises `ApiError` 404."""
        chain = states(request)
        with self._changed:
            session = self._live.get(token)
            if session is None:
                raise session_discarded()
            turn = Turn(session, request, session.forest.attach(chain))
            session.in_flight.add(turn)
            session.requests += 1
            self._lease_if_ready(session.group)
        return turn

    def hold(self, turn: Turn) -> None:
        """Block until the turn may be generated or answered. Raises `ApiError` 404 if its session is closed."""
        self._await(turn, lambda: self._open and turn.session.group.leased_at is not None, None)

    def think(self, turn: Turn, seconds: float) -> None:
        """Block that long. Raises `ApiError` 404 if the session is closed meanwhile."""
        if seconds > 0:
            self._await(turn, lambda: False, seconds)

    @contextlib.contextmanager
    def aborting(self, turn: Turn, abort: Callable[[], object]) -> Iterator[None]:
        """Within the block, closing the session calls `abort`. Raises `ApiError` 404 if it is closed already."""
        with self._changed:
            if turn.session.closed:
                raise session_discarded()
            turn.abort = abort
        try:
            yield
        finally:
            with self._changed:
                turn.abort = None

    def commit(self, turn: Turn, message: Message) -> None:
        """Write the answer into the session's history. Raises `ApiError` 404 if its session is closed."""
        with self._changed:
            if turn.session.closed:
                raise session_discarded()
            turn.session.forest.commit(turn.node, message)
            turn.session.turns += 1
            self._turns += 1
            self._changed.notify_all()

    def leave(self, turn: Turn) -> None:
        """The answer is on the wire, or nobody is there to read it."""
        with self._changed:
            turn.session.in_flight.discard(turn)
            self._changed.notify_all()

    def finish(self, session: Session) -> bool:
        """The agent exited: requests it left behind are answered with 404. False if its group was dropped before."""
        with self._changed:
            if session.group.drop_reason is not None:
                return False
        self._close([session])
        return True

    def discard(self, group: Group, answer_seconds: float) -> None:
        """Answer every waiting request of the group with 404; returns when that is done, or after `answer_seconds`."""
        self._close(group.sessions)
        with self._changed:
            self._changed.wait_for(lambda: not any(s.in_flight for s in group.sessions), answer_seconds)

    def check_export(self, session: Session, output: AgentOutput) -> None:
        """Raises `AgentExecutionError` if the session's history does not hold what the output claims."""
        with self._changed:
            if not session.requests:
                raise AgentExecutionError("not finalizable: the agent exited before any chat request")
            if not output.records:
                session.forest.check_implicit_export()
            for record in output.records:
                session.forest.check_explicit_export(record.name, record.request)

    def settle(self, session: Session, result: SessionResult) -> None:
        """Book a session's end; a failed one drops its group."""
        with self._changed:
            session.result = result
            if result.error is not None:
                self._drop(session.group, f"{result.label}: {result.error}", blameless=False)
            elif result.exit_code is not None:
                self._tell(
                    f"{result.label} exited, reward {result.reward:g}, {result.turns} turns, {result.seconds:.1f} s"
                )
            self._changed.notify_all()

    def drop(self, group: Group, reason: str) -> None:
        """Give up a group for a reason of the scheduler's own."""
        with self._changed:
            self._drop(group, reason, blameless=True)

    def leased_groups(self) -> list[Group]:
        with self._changed:
            return [group for group in self._groups.values() if group.leased_at is not None]

    def shut(self, reason: str) -> None:
        """Drop every group, also those that are still to come."""
        with self._changed:
            self._shut = reason
            for group in self._groups.values():
                self._drop(group, reason, blameless=True)
            self._changed.notify_all()

    def await_turns(self, count: int) -> bool:
        """Block until that many answers have been committed in all sessions together; False if it is shut before."""
        with self._changed:
            self._changed.wait_for(lambda: self._turns >= count or self._shut is not None)
            return self._turns >= count

    def await_end(self, group: Group, agent_timeout: float) -> str | None:
        """Block until every session has ended well (None), or until there is a reason to drop the group.

        `agent_timeout` counts active seconds: the clock stands still before the barrier and while generation is paused.
        """
        with self._changed:
            while True:
                if group.drop_reason is not None:
                    return group.drop_reason
                if all(session.result is not None for session in group.sessions):
                    return None
                left = agent_timeout - group.active_seconds(time.monotonic())
                if left <= 0:
                    self._drop(group, f"agents timed out after {agent_timeout:g} seconds", blameless=False)
                else:
                    self._changed.wait(left if group.active_since is not None else None)

    def forget(self, group: Group) -> None:
        with self._changed:
            del self._groups[group.id]

    def pause(self) -> None:
        """Close generation: no group is leased, no request is answered, no active time passes."""
        with self._changed:
            self._open = False
            for group in self._groups.values():
                group.active_before, group.active_since = group.active_seconds(time.monotonic()), None
            self._changed.notify_all()

    def resume(self) -> None:
        with self._changed:
            self._open = True
            for group in self._groups.values():
                if group.leased_at is not None:
                    group.active_since = time.monotonic()
                self._lease_if_ready(group)
            self._changed.notify_all()

    def snapshot(self) -> list[tuple[str, bool, list[tuple[str, str, float | None]]]]:
        """(group id, leased, (policy, phase, reward) by slot) of every resident group, oldest first."""
        with self._changed:
            return [
                (
                    group.id,
                    group.leased_at is not None,
                    [(s.policy, s.phase, s.result.reward if s.result else None) for s in group.sessions],
                )
                for group in self._groups.values()
            ]

    def _await(self, turn: Turn, ready: Callable[[], bool], seconds: float | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: turn.session.closed or ready(), seconds)
            if turn.session.closed:
                raise session_discarded()

    def _lease_if_ready(self, group: Group) -> None:
        waiting = self._open and group.leased_at is None and group.drop_reason is None
        if waiting and all(session.requests for session in group.sessions):
            group.leased_at = group.active_since = time.monotonic()
            self._tell(f"{group.id}: every session has asked, group leased")
            self._changed.notify_all()

    def _drop(self, group: Group, reason: str, *, blameless: bool) -> None:
        if group.drop_reason is None:
            group.drop_reason, group.blameless = reason, blameless
            self._changed.notify_all()

    def _close(self, sessions: Sequence[Session]) -> None:
        with self._changed:
            for session in sessions:
                session.closed = True
                self._live.pop(session.id, None)
            aborts = [turn.abort for session in sessions for turn in session.in_flight if turn.abort is not None]
            self._changed.notify_all()
        for abort in aborts:
            abort()
