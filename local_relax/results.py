"""What one run leaves behind: a result per session and per group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Ending = Literal["committed", "dropped", "cancelled"]


@dataclass(frozen=True)
class Sample:
    """One thing to train on: a whole session, or one record of an explicit export."""

    reward: float
    metadata: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    """The record's name; empty for a whole session."""


@dataclass(frozen=True)
class SessionResult:
    session_id: str
    group_id: str
    slot: int
    policy: str
    turns: int
    """Model answers committed to the session's history."""
    seconds: float
    """From launch to the end of the process group."""
    exit_code: int | None
    """None if the group was dropped before the process ended by itself."""
    samples: Sequence[Sample] = ()
    error: str | None = None
    """Why this session cannot be trained on."""

    @property
    def reward(self) -> float | None:
        """Mean over the session's samples; None if it has none."""
        return sum(sample.reward for sample in self.samples) / len(self.samples) if self.samples else None

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.samples[0].metadata if self.samples else {}

    @property
    def label(self) -> str:
        """Names the session to people."""
        return f"{self.policy} session {self.session_id} (slot {self.slot} of {self.group_id})"


@dataclass(frozen=True)
class GroupResult:
    group_id: str
    ending: Ending
    """`cancelled` groups fell to the end of a step or of the run, not to a fault."""
    seconds: float
    warm_seconds: float | None
    """From launch until every session had asked and generation was open; None if that never came."""
    sessions: Sequence[SessionResult]
    reason: str | None = None
    """Why the group was not committed."""
