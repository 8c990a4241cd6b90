"""A session of an earlier start of the server: what is left of it is what may be told."""

from dataclasses import dataclass, field

from swe_rollout.answers import SessionSummary, SessionView, public, view_of
from swe_rollout.outcome import Outcome
from swe_rollout.states import Mode, Status

INTERRUPTED = "the server was restarted while the session was open; its sandbox died with the server"


@dataclass(frozen=True)
class Remembered:
    """A `Record` whose session has ended, for good."""

    id: str
    mode: Mode
    group_id: str
    request_key: str | None
    request_digest: str
    opened_at: str
    age: float
    """Seconds since its end."""
    stored: SessionView = field(repr=False)

    @property
    def status(self) -> Status:
        return self.stored["status"]

    def view(self) -> SessionView:
        """As it was told before, but for the client's own name of the session: that is a key, and not kept."""
        return self.stored

    def summary(self) -> SessionSummary:
        """What anybody may know."""
        return public(self.stored, self.opened_at)

    def cancel(self, reason: str) -> bool:
        """It has ended: False."""
        return False

    def wait(self, seconds: float) -> None:
        """It has ended."""


def interrupted(session_id: str, mode: Mode, group_id: str, task_id: str) -> SessionView:
    """The view of a session that died with its server."""
    return view_of(session_id, None, group_id, mode, task_id, "failed", Outcome.failed(INTERRUPTED), 0, {})
