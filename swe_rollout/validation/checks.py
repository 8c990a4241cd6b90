"""What makes a row one that can be trusted, tried in sandboxes."""

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from swe_rollout.artifacts import TEST_LOG, TRAJECTORY
from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import AgentFault, Cancelled, InfrastructureError
from swe_rollout.rollout import Rollout
from swe_rollout.scoring.judgement import Judgement
from swe_rollout.session import one_line
from swe_rollout.tasks import Task
from swe_rollout.validation.replay import replay
from swe_rollout.validation.rows import Row
from swe_rollout.validation.solutions import Solution

log = logging.getLogger(__name__)

Kind = Literal["noop", "gold", "replay"]
Finding = Literal["valid", "gold_fails", "noop_passes", "replay_fails", "flaky", "error"]

RIGHT: dict[Kind, float] = {"noop": 0.0, "gold": 1.0, "replay": 1.0}
"""The reward that each kind of run must get, in the order in which they are done."""
WRONG: dict[Kind, Finding] = {"noop": "noop_passes", "gold": "gold_fails", "replay": "replay_fails"}
_TRIES = 2
"""Runs that a fault of the machine ends are begun this often."""


@dataclass(frozen=True)
class Run:
    """One judgement."""

    kind: Kind
    reward: float | None
    """None if there was no judgement: a fault of the machine, the image or the data."""
    reason: str
    seconds: float
    """Without waits for slots, unless there was no judgement."""
    log: str
    """Path below the output folder; "" if there is none."""


@dataclass(frozen=True)
class Finished:
    """What is known of a row when all its runs are done."""

    result: Finding
    reason: str
    runs: tuple[Run, ...]

    @property
    def seconds(self) -> float | None:
        """The mean of the gold runs."""
        golds = [run.seconds for run in self.runs if run.kind == "gold" and run.reward is not None]
        return sum(golds) / len(golds) if golds else None


@dataclass(frozen=True)
class Checker:
    """Checks rows, each in one thread."""

    rollout: Rollout
    """Its work folder is `folder`."""
    folder: Path
    repeat: int
    cancellation: Cancellation

    def check(self, row: Row, solution: Solution) -> Finished:
        """Runs every kind `repeat` times, in turns, as long as that can still change the result.

        Raises `Cancelled`, and OSError when the folder takes no more logs.
        """
        if row.task is None:
            return Finished("error", row.problem, ())
        try:
            patch = solution.patch()
        except ValueError as error:
            return Finished("gold_fails", str(error), ())
        runs: list[Run] = []
        for turn in range(1, self.repeat + 1):
            for kind, right in RIGHT.items():
                run = self._run(kind, turn, row, row.task, patch)
                runs.append(run)
                if run.reward is None:
                    return Finished("error", f"{kind}: {run.reason}", tuple(runs))
                if reason := _differ(runs, run):
                    return Finished("flaky", reason, tuple(runs))
                if run.reward != right:
                    break  # a kind that comes later builds on this one
        wrong = next((run for run in runs if run.reward != RIGHT[run.kind]), None)
        return Finished(WRONG[wrong.kind] if wrong else "valid", wrong.reason if wrong else "", tuple(runs))

    def _run(self, kind: Kind, turn: int, row: Row, task: Task, patch: str) -> Run:
        judge, solution = self.rollout.judges[row.mode], patch.encode("utf-8", "replace")
        work: dict[Kind, Callable[[str], Run]] = {
            "noop": lambda name: self._judged(kind, name, lambda: judge.judge_untouched(task, self.cancellation)),
            "gold": lambda name: self._judged(kind, name, lambda: judge.judge_patch(task, solution, self.cancellation)),
            "replay": lambda name: self._replayed(name, row, task, patch),
        }
        name = f"{row.mode}-{_as_name(row.id)}-{kind}-{turn}"
        for left in reversed(range(_TRIES)):
            started = time.monotonic()
            try:
                return work[kind](name)
            except (InfrastructureError, AgentFault) as error:
                # No agent was here: what an image does to its own sandbox is a fault of the image.
                reason = f"{type(error).__name__}: {error}".removeprefix("InfrastructureError: ")
            except (Cancelled, OSError):
                raise
            except Exception as error:
                log.exception("%s", name)
                reason = f"internal error: {type(error).__name__}: {error}"
            if left:
                log.warning("%s: %s; it is tried once more", name, one_line(reason))
        return Run(kind, None, one_line(reason), time.monotonic() - started, "")

    def _judged(self, kind: Kind, name: str, judge: Callable[[], Judgement]) -> Run:
        with self.rollout.scoring_slots.hold(self.cancellation):
            started = time.monotonic()
            judgement = judge()
            seconds = time.monotonic() - started
        assert judgement.verdict is not None
        path = ""
        if judgement.log:
            path = f"logs/{name}.txt"
            (self.folder / path).write_bytes(judgement.log)
        return Run(kind, judgement.verdict.reward, one_line(judgement.verdict.reason), seconds, path)

    def _replayed(self, name: str, row: Row, task: Task, patch: str) -> Run:
        outcome, seconds = replay(self.rollout, task, row.mode, patch, name, self.cancellation)
        files = [path for log in (TEST_LOG, TRAJECTORY) for path in self.folder.glob(f"sessions/*/{name}/{log}")]
        path = str(files[0].relative_to(self.folder)) if files else ""
        return Run("replay", outcome.reward, one_line(outcome.reason), seconds, path)


def _differ(runs: Sequence[Run], last: Run) -> str:
    """How the latest run contradicts an earlier one; "" if it does not."""
    for run in runs:
        if run.kind == last.kind and run.reward != last.reward:
            return f"{run.kind}: {run.reward} ({run.reason}), then {last.reward} ({last.reason})"
    return ""


def _as_name(task_id: str) -> str:
    """`task_id` as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", task_id)[:150]
