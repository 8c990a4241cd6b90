"""The closed set of ways a session can end."""

from dataclasses import dataclass
from typing import Literal

Ending = Literal["completed", "failed", "cancelled"]

EXIT_CODES: dict[Ending, int] = {"completed": 0, "failed": 1, "cancelled": 143}
"""Exit code of the client process per ending. Relax reads 0 as a sample and anything else as a dropped group."""


@dataclass(frozen=True)
class Outcome:
    """How one session ended. Build it with `completed`, `failed` or `cancelled`, which keep the fields consistent."""

    status: Ending
    agent_exit_status: str = ""
    """mini-swe-agent's word for the end of the run (Submitted, LimitsExceeded, ...); empty if it never ended itself."""
    submission: str = ""
    """What the agent printed after the submit marker, as UTF-8 with replacement characters."""
    reward: float | None = None
    """1.0 or 0.0 for a completed session, None otherwise."""
    reason: str = ""
    """Why the reward is what it is, for people."""
    error: str | None = None
    """One line naming the cause, for failed and cancelled sessions."""
    n_calls: int = 0
    """Model calls made."""
    blames_row: bool = False
    """Whether a failed session met its fault in the row's image, sandbox, setup or scoring, as the next may too."""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @classmethod
    def completed(
        cls, exit_status: str, reward: float, *, submission: str = "", reason: str = "", n_calls: int = 0
    ) -> "Outcome":
        if reward not in (0.0, 1.0):
            raise ValueError(f"a reward is 0.0 or 1.0, not {reward!r}")
        return cls("completed", exit_status, submission, reward, reason, None, n_calls)

    @classmethod
    def failed(cls, error: str, *, n_calls: int = 0, blames_row: bool = False) -> "Outcome":
        return cls("failed", error=error, n_calls=n_calls, blames_row=blames_row)

    @classmethod
    def cancelled(cls, error: str, *, n_calls: int = 0) -> "Outcome":
        return cls("cancelled", error=error, n_calls=n_calls)
