"""The published generations of Relax's contract, each as the set of rules it follows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from local_relax import rules_ab, rules_c
from local_relax.ids import CountedIds, Ids, Mode, ResidentIds
from local_relax.launcher import Launcher
from local_relax.log_launcher import LogLauncher
from local_relax.output import AgentOutput, read_output, read_strict_output
from local_relax.pipe_launcher import PipeLauncher
from local_relax.policies import REWARDS
from local_relax.validation import ChatRequest
from local_relax.wire import Form, FormA, FormB, FormC


@dataclass(frozen=True)
class Generation:
    ids: Ids
    parse_request: Callable[[bytes], ChatRequest]
    """Raises `ApiError` 400."""
    form: Form
    read_output: Callable[[Path], AgentOutput]
    """Raises `AgentExecutionError`."""
    launcher: Launcher
    eval_singletons: bool
    """Evaluation makes a group of its own for every sample of a prompt."""
    rewards: Mapping[str, float]
    """What each scripted policy scores if all is well."""
    early_exit_ends_run: Sequence[Mode] = ()
    """Where an agent that exits before its first request ends the run, not only its group."""


def generation_a(grace_seconds: float = 5.0) -> Generation:
    """No parsers: an agent never sees a tool call, and no policy can solve anything."""
    return Generation(
        ids=CountedIds(),
        parse_request=rules_ab.parse_request_a,
        form=FormA(),
        read_output=read_strict_output,
        launcher=PipeLauncher(grace_seconds),
        eval_singletons=False,
        rewards=dict.fromkeys(REWARDS, 0.0),
        early_exit_ends_run=("train",),
    )


def generation_b(grace_seconds: float = 5.0) -> Generation:
    return Generation(
        ids=CountedIds(),
        parse_request=rules_ab.parse_request_b,
        form=FormB(),
        read_output=read_strict_output,
        launcher=PipeLauncher(grace_seconds),
        eval_singletons=False,
        rewards=REWARDS,
    )


def generation_c(grace_seconds: float = 5.0) -> Generation:
    """Resident groups on shards, one log file per process, SIGTERM followed by SIGKILL."""
    return Generation(
        ids=ResidentIds(),
        parse_request=rules_c.parse_request,
        form=FormC(),
        read_output=read_output,
        launcher=LogLauncher(grace_seconds),
        eval_singletons=True,
        rewards=REWARDS,
    )


GENERATIONS: Mapping[str, Callable[[], Generation]] = {"A": generation_a, "B": generation_b, "C": generation_c}
