"""The names of groups and sessions."""

import itertools
import uuid
from dataclasses import dataclass
from typing import Literal, Protocol

Mode = Literal["train", "eval"]


class Ids(Protocol):
    def group(self, mode: Mode, number: int) -> str:
        """The group with this number of the run, from 0."""
        ...

    def session(self, number: int, slot: int) -> str:
        """A new session in that slot of the group with this number."""
        ...


@dataclass(frozen=True)
class ResidentIds:
    """Generation C. Numbers start at 0 in every process, so group ids come again after a restart."""

    shards: int = 2
    eval_set: str = "r2e_eval"
    eval_step: int = 0

    def group(self, mode: Mode, number: int) -> str:
        prefix = "train" if mode == "train" else f"eval:{self.eval_set}:{self.eval_step}"
        return f"{prefix}:prepare_group_{number}"

    def session(self, number: int, slot: int) -> str:
        """Unique for all time; the first part names the shard that holds the group."""
        return f"agentic_session_shard_{number % self.shards}.session-{uuid.uuid4().hex}"


class CountedIds:
    """Generations A and B: plain counters. Nothing tells a training group from an evaluation group, nor one run's
    sessions from another's."""

    def __init__(self) -> None:
        self._sessions = itertools.count()

    def group(self, mode: Mode, number: int) -> str:
        return str(number)

    def session(self, number: int, slot: int) -> str:
        return f"agentic_session_{next(self._sessions)}_{number}_{slot}"
