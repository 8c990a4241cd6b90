"""The run: keeps groups resident, replaces dropped ones, closes steps, and stops after enough committed groups."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from local_relax.errors import StepError
from local_relax.groups import GroupRunner
from local_relax.ids import Mode
from local_relax.results import GroupResult
from local_relax.sessions import SessionTable


@dataclass(frozen=True)
class Plan:
    prompts: int
    """Groups to commit (train), or prompts to evaluate once per slot."""
    group_size: int
    concurrency: int
    """Resident groups: launched and not yet ended."""
    policies: Sequence[str]
    """Handed out to the slots of a group in turn."""
    mode: Mode
    refills: int
    """Dropped groups that are replaced before the run gives up."""
    step_groups: int | None = None
    """Committed groups per training step; None for one endless step."""
    step_seconds: float = 0.0
    """How long generation is closed between two steps."""
    step_close: Literal["cancel", "retain"] = "cancel"
    """What happens at the end of a step to groups that were leased and have not finished."""

    singletons: bool = False
    """Every sample is a group of its own."""
    pause_turns: int | None = None
    """Answers after which generation is closed once, with everything left as it is; None for never."""
    pause_seconds: float = 0.0
    """How long that lasts."""

    @property
    def total(self) -> int:
        return self.prompts * self.group_size if self.singletons else self.prompts

    def policies_of(self, number: int) -> list[str]:
        """Policy per slot of the group with this number."""
        slots = [number % self.group_size] if self.singletons else range(self.group_size)
        return [self.policies[slot % len(self.policies)] for slot in slots]


class Rollout:
    """One thread per resident group. `_lock` guards the books: `results`, `failure` and the counters."""

    def __init__(self, plan: Plan, runner: GroupRunner, table: SessionTable, tell: Callable[[str], object]) -> None:
        self.plan = plan
        self._runner = runner
        self._table = table
        self._tell = tell
        self._lock = threading.Lock()
        self._step = threading.Lock()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._results: list[GroupResult] = []
        self._failure: str | None = None
        self._to_start = plan.total
        self._next_number = 0
        self._dropped = 0
        width = min(plan.concurrency, plan.total)
        self._workers = [threading.Thread(target=self._work, name=f"groups-{n}") for n in range(width)]
        if plan.pause_turns is not None:
            self._workers.append(threading.Thread(target=self._pause_once, args=(plan.pause_turns,), name="pause"))
        self._busy = width

    def start(self) -> None:
        for worker in self._workers:
            worker.start()

    def wait(self, seconds: float) -> bool:
        """True once the run has ended."""
        return self._ended.wait(seconds)

    def stop(self, reason: str) -> None:
        """Drop everything and start nothing more; returns at once."""
        self._stopping.set()
        self._table.shut(reason)

    def join(self) -> None:
        for worker in self._workers:
            worker.join()

    @property
    def results(self) -> list[GroupResult]:
        """Ended groups in the order they ended."""
        with self._lock:
            return list(self._results)

    @property
    def failure(self) -> str | None:
        """Why the run gave up, in one line; None if it did not."""
        with self._lock:
            return self._failure

    def _work(self) -> None:
        try:
            while (number := self._take()) is not None:
                policies = self.plan.policies_of(number)
                self._tell(f"{self._runner.generation.ids.group(self.plan.mode, number)}: launch {', '.join(policies)}")
                self._book(self._runner.run(number, policies))
        except StepError as error:
            self._give_up(str(error))
        finally:
            with self._lock:
                self._busy -= 1
                if not self._busy:
                    self._ended.set()

    def _take(self) -> int | None:
        with self._lock:
            if self._stopping.is_set() or not self._to_start:
                return None
            self._to_start -= 1
            self._next_number += 1
            return self._next_number - 1

    def _book(self, result: GroupResult) -> None:
        self._tell(f"{result.group_id}: {result.ending} after {result.seconds:.1f} s{_because(result)}")
        with self._lock:
            self._results.append(result)
            committed = sum(ended.ending == "committed" for ended in self._results)
            if result.ending == "dropped":
                self._dropped += 1
            if result.ending == "cancelled" or (result.ending == "dropped" and self.plan.mode == "train"):
                self._to_start += 1
            given_up = self.plan.mode == "train" and self._dropped > self.plan.refills
            step = self.plan.step_groups
            step_over = result.ending == "committed" and step is not None and committed % step == 0
        if given_up:
            self._give_up(f"gave up after {self._dropped} dropped groups; the last one{_because(result)}")
        elif step_over and committed < self.plan.total:
            self._close_step(committed)

    def _pause_once(self, turns: int) -> None:
        """What a partial rollout does between two steps: requests are held, agents work on, nobody is told."""
        if self._table.await_turns(turns):
            with self._step:
                self._table.pause()
                self._tell(f"generation closed after {turns} answers")
                self._ended.wait(self.plan.pause_seconds)
                self._table.resume()
                self._tell("generation open again")

    def _close_step(self, committed: int) -> None:
        """What a training step does to generation: nobody is answered until it is over."""
        with self._step:
            self._table.pause()
            self._tell(f"step over after {committed} committed groups, generation closed")
            if self.plan.step_close == "cancel":
                for group in self._table.leased_groups():
                    self._table.drop(group, "the step is over")
            self._stopping.wait(self.plan.step_seconds)
            self._table.resume()
            self._tell("generation open again")

    def _give_up(self, reason: str) -> None:
        with self._lock:
            self._failure = self._failure or reason
        self.stop("the run has failed")


def _because(result: GroupResult) -> str:
    if result.reason is None:
        return ""
    words = " ".join(result.reason.split())
    return f": {words if len(words) <= 400 else words[:200] + ' ... ' + words[-200:]}"
