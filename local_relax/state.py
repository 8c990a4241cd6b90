"""What is known of a live group, session and request: plain records, owned and guarded by `SessionTable`."""

from collections.abc import Callable
from dataclasses import dataclass, field

from local_relax.forest import Forest, Node
from local_relax.results import SessionResult
from local_relax.validation import ChatRequest


@dataclass(eq=False)
class Group:
    id: str
    number: int
    opened_at: float
    sessions: "list[Session]" = field(default_factory=list)
    leased_at: float | None = None
    """When the group was admitted: every session had asked and generation was open."""
    active_before: float = 0.0
    """Active seconds up to the last pause."""
    active_since: float | None = None
    """Start of the running active period; None while the group is gated or paused."""
    drop_reason: str | None = None
    blameless: bool = False
    """The drop is a decision of the scheduler, not the fault of a session."""

    def active_seconds(self, now: float) -> float:
        return self.active_before + (0.0 if self.active_since is None else now - self.active_since)


@dataclass(eq=False)
class Session:
    id: str
    group: Group
    slot: int
    policy: str
    forest: Forest = field(default_factory=Forest)
    requests: int = 0
    turns: int = 0
    in_flight: "set[Turn]" = field(default_factory=set)
    closed: bool = False
    """Finished or discarded: its token is worth nothing any more."""
    result: SessionResult | None = None

    @property
    def phase(self) -> str:
        if self.result is not None:
            return "exited"
        if self.closed:
            return "ending"
        if not self.requests:
            return "launched"
        return f"turn {self.requests}" if self.group.leased_at is not None else "gated"


@dataclass(eq=False)
class Turn:
    """One accepted chat request, until its answer is on the wire."""

    session: Session
    request: ChatRequest
    node: Node
    abort: Callable[[], object] | None = None
    """Ends the backend's attempt at this turn."""
