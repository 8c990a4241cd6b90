"""What sessions have told of their rows, and which rows are set aside for it."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from swe_rollout.outcome import Outcome

Trouble = Literal["set_aside", "failing", "stopped_paying"]
"""Why somebody should look at a row, the worst first:

- `set_aside`: it is not leased for now, see `SetAside`;
- `failing`: at least half of its latest results are infrastructure failures, of the last 16, or of all if it has 4;
- `stopped_paying`: its last 16 rewards, two groups of eight, are 0.0, although it gave 1.0 before.

That a policy never solves a row is no trouble of the row.
"""
TROUBLES: tuple[Trouble, ...] = get_args(Trouble)

_LATEST = 16
_FEWEST = 4


@dataclass(frozen=True)
class SetAside:
    """When a row is set aside."""

    failures: int
    """After so many infrastructure failures in a row, which no completed session came between; 0: never."""
    pause_seconds: float
    """It is not leased for so long. Then one group tries it: a failure sets it aside again, a completed session ends
    it, and if the group says nothing of the row the next one tries it after another pause."""


@dataclass(frozen=True)
class RowHealth:
    """What is known of one row. All times are Unix times."""

    ended: int = 0
    """Sessions that have ended. Grows with every change, so that of two records the newer one is known."""
    completed: int = 0
    """Those with a reward."""
    reward_sum: float = 0.0
    zeros_in_a_row: int = 0
    """Rewards of 0.0 since the last 1.0."""
    failures: int = 0
    """Sessions that failed in the row's image, setup, sandbox or scoring."""
    failures_in_a_row: int = 0
    """Those since the last completed session."""
    last_failure: str = ""
    other_failures: int = 0
    """Sessions that failed for what is not the row's, such as the model endpoint."""
    cancelled: int = 0
    session_seconds: float = 0.0
    """Of the completed sessions, from creation to end."""
    scored: int = 0
    """Completed sessions whose submission was judged."""
    scoring_seconds: float = 0.0
    """Of those, without the wait for a slot."""
    latest: tuple[float | None, ...] = ()
    """The last rewards, None for a failure of the row, the newest last."""
    used_at: float = 0.0
    """When its last session ended."""
    paused_at: float = 0.0
    """When it failed last, or was tried after a pause. Says something only of a row that fails."""

    def after(self, outcome: "Outcome", timings: Mapping[str, float], now: float) -> "RowHealth":
        """What is known when one more session has ended, at `now`."""
        known = dataclasses.replace(self, ended=self.ended + 1, used_at=now)
        if outcome.reward is not None:
            scoring = timings.get("scoring") if outcome.agent_exit_status == "Submitted" else None
            return dataclasses.replace(
                known,
                completed=self.completed + 1,
                reward_sum=self.reward_sum + outcome.reward,
                zeros_in_a_row=0 if outcome.reward else self.zeros_in_a_row + 1,
                failures_in_a_row=0,
                session_seconds=self.session_seconds + timings.get("total", 0.0),
                scored=self.scored + (scoring is not None),
                scoring_seconds=self.scoring_seconds + (scoring or 0.0),
                latest=(*self.latest, outcome.reward)[-_LATEST:],
            )
        if outcome.blames_row:
            return dataclasses.replace(
                known,
                failures=self.failures + 1,
                failures_in_a_row=self.failures_in_a_row + 1,
                last_failure=outcome.error or "",
                latest=(*self.latest, None)[-_LATEST:],
                paused_at=now,
            )
        if outcome.status == "failed":
            return dataclasses.replace(known, other_failures=self.other_failures + 1)
        return dataclasses.replace(known, cancelled=self.cancelled + 1)

    def troubles(self, *, set_aside: bool) -> list[Trouble]:
        """What is wrong with a row that is `set_aside` or not, the worst first."""
        found: dict[Trouble, bool] = {
            "set_aside": set_aside,
            "failing": len(self.latest) >= _FEWEST and 2 * self.latest.count(None) >= len(self.latest),
            "stopped_paying": self.zeros_in_a_row >= _LATEST and self.reward_sum > 0,
        }
        return [trouble for trouble, is_there in found.items() if is_there]


@dataclass(frozen=True)
class RowState:
    """A row as it stands now."""

    health: RowHealth
    set_aside_until: float | None
    """Unix time; None for a row that is leased at its turn."""
    troubles: list[Trouble]


class RowBook:
    """The health of the rows of one mode. Not thread-safe: its owner's lock guards it."""

    def __init__(self, task_ids: Iterable[str], rule: SetAside, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` gives Unix time: what is known outlives the server."""
        self._rule = rule
        self._clock = clock
        self._known = dict.fromkeys(task_ids, RowHealth())
        self._failing: set[str] = set()
        """Rows with as many failures in a row as the rule allows: set aside, to be tried, or being tried."""
        self._suspect: set[str] = set()
        """Rows that are in trouble even if they are not set aside."""

    def restore(self, known: Mapping[str, RowHealth]) -> None:
        """Go on with what an earlier book knew; of other rows nothing is taken."""
        for task_id in known.keys() & self._known.keys():
            self._set(task_id, known[task_id])

    def aside(self) -> set[str]:
        """The rows that are not to be leased now; may be all."""
        return {task_id for task_id in self._failing if self._aside_until(task_id) is not None}

    def leased(self, task_id: str) -> str:
        """A group begins with the row; what is to be logged of that, if anything."""
        if task_id not in self._failing:
            return ""
        health = self._known[task_id]
        rows = len(self._known)
        doubt = (
            f"all {rows} rows are set aside, the machine is probably at fault; " if len(self.aside()) == rows else ""
        )
        self._known[task_id] = dataclasses.replace(health, paused_at=self._clock())
        return f"{doubt}tried again, {_why(health)}"

    def ended(self, task_id: str, outcome: "Outcome", timings: Mapping[str, float]) -> tuple[RowHealth, str]:
        """A session of the row has ended; what is known now, and what is to be logged of it, if anything."""
        was_failing = task_id in self._failing
        health = self._known[task_id].after(outcome, timings, self._clock())
        self._set(task_id, health)
        is_failing = task_id in self._failing
        if is_failing and not was_failing:
            return health, f"set aside for {self._rule.pause_seconds:g} s, {_why(health)}"
        return health, "no longer set aside, a session has completed" if was_failing and not is_failing else ""

    def counts(self) -> dict[str, int]:
        """set_aside: rows not leased now; in_trouble: rows with any `Trouble`, those included."""
        aside = self.aside()
        return {"set_aside": len(aside), "in_trouble": len(self._suspect | aside)}

    def states(self) -> dict[str, RowState]:
        """All rows as they stand, by task id, in their order."""
        states = {}
        for task_id, health in self._known.items():
            until = self._aside_until(task_id)
            states[task_id] = RowState(health, until, health.troubles(set_aside=until is not None))
        return states

    def _aside_until(self, task_id: str) -> float | None:
        until = self._known[task_id].paused_at + self._rule.pause_seconds
        return until if task_id in self._failing and self._clock() < until else None

    def _set(self, task_id: str, health: RowHealth) -> None:
        self._known[task_id] = health
        is_failing = 0 < self._rule.failures <= health.failures_in_a_row
        (self._failing.add if is_failing else self._failing.discard)(task_id)
        is_suspect = bool(health.troubles(set_aside=False))
        (self._suspect.add if is_suspect else self._suspect.discard)(task_id)


def _why(health: RowHealth) -> str:
    return f"after {health.failures_in_a_row} infrastructure failures in a row, the last: {health.last_failure}"
