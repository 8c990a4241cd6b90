"""The command line.

argparse on purpose: Relax parses its options with it, so a list option behaves the same, and a second occurrence
replaces the first.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from local_relax.generation import GENERATIONS
from local_relax.launcher import AgentCommand
from local_relax.policies import SCRIPTS


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Exits with code 2 and one clear line if the options do not fit together."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if (options.model_url is None) != (options.model_name is None):
        parser.error("--model-url and --model-name belong together")
    if options.model_url is None and not options.data:
        parser.error("scripted policies need --data, the parquet files with the tasks the agents will meet")
    if options.model_url is not None and options.expect:
        parser.error("--expect judges scripted policies, it means nothing with --model-url")
    if (options.pause_after is None) != (options.pause_seconds is None):
        parser.error("--pause-after and --pause-seconds belong together")
    try:
        options.agent = AgentCommand(options.agent_command, options.agent_cwd, dict(options.agent_env))
    except ValueError as error:
        parser.error(f"--agent-cwd or --agent-env: {error}")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m local_relax",
        description="Launches agents in groups, serves them the chat API of a training run, collects their rewards.",
    )
    parser.add_argument(
        "--generation",
        choices=tuple(GENERATIONS),
        default="C",
        help="which published form of the trainer's contract to follow; A has no tool parser, so an agent that needs"
        " tool calls can do nothing there (default: %(default)s)",
    )
    agent = parser.add_argument_group("agents")
    agent.add_argument("--agent-command", required=True, metavar="COMMAND", help="run by `bash -lc`, once per session")
    agent.add_argument(
        "--agent-cwd",
        type=Path,
        default=Path.cwd(),
        metavar="DIR",
        help="working folder of the agents (default: this one)",
    )
    agent.add_argument(
        "--agent-env",
        nargs="+",
        type=_assignment,
        default=[],
        metavar="KEY=VALUE",
        help="variables for the agents, all in one occurrence of this option; names must not start with RELAX_",
    )
    agent.add_argument(
        "--agent-timeout",
        type=_positive_float,
        default=1800.0,
        metavar="SECONDS",
        help="active time a group may take (default: %(default)s)",
    )
    agent.add_argument("--reward-key", metavar="KEY", help="field of reward objects that is the reward")

    groups = parser.add_argument_group("groups")
    groups.add_argument(
        "--mode",
        choices=("train", "eval"),
        default="train",
        help="eval: in generation C every sample is a group (default: %(default)s)",
    )
    groups.add_argument(
        "--groups", type=_positive_int, default=1, metavar="N", help="prompts: groups to commit (default: %(default)s)"
    )
    groups.add_argument(
        "--group-size", type=_positive_int, default=4, metavar="N", help="sessions per prompt (default: %(default)s)"
    )
    groups.add_argument(
        "--concurrency", type=_positive_int, default=2, metavar="N", help="resident groups (default: %(default)s)"
    )
    groups.add_argument(
        "--refills",
        type=_count,
        default=8,
        metavar="N",
        help="dropped groups to replace before giving up (default: %(default)s)",
    )
    groups.add_argument(
        "--step-groups", type=_positive_int, metavar="N", help="committed groups per training step; unset: one step"
    )
    groups.add_argument(
        "--step-seconds",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="closed generation between two steps (default: %(default)s)",
    )
    groups.add_argument(
        "--step-close",
        choices=("cancel", "retain"),
        default="cancel",
        help="what happens to unfinished leased groups at the end of a step (default: %(default)s)",
    )

    groups.add_argument(
        "--pause-after",
        type=_positive_int,
        metavar="ANSWERS",
        help="close generation once, after so many answers in all sessions together; nothing is cancelled",
    )
    groups.add_argument(
        "--pause-seconds", type=_seconds, metavar="SECONDS", help="how long generation is closed by --pause-after"
    )

    model = parser.add_argument_group("model")
    model.add_argument("--data", type=Path, nargs="+", metavar="PARQUET", help="task rows the scripted policies know")
    model.add_argument(
        "--policies",
        type=_policies,
        default=",".join(SCRIPTS),
        metavar="NAME,NAME",
        help="scripted policies for the slots of a group, in turn (default: %(default)s)",
    )
    model.add_argument("--model-url", metavar="URL", help="ask this OpenAI-compatible endpoint instead of a policy")
    model.add_argument("--model-name", metavar="NAME", help="model to ask for at --model-url")
    model.add_argument("--model-key-env", metavar="VAR", help="environment variable that holds the endpoint's API key")
    model.add_argument(
        "--think", type=_seconds, default=0.0, metavar="SECONDS", help="least time per answer (default: %(default)s)"
    )
    model.add_argument(
        "--context-limit",
        type=_positive_int,
        default=32768,
        metavar="TOKENS",
        help="longest conversation (default: %(default)s)",
    )
    model.add_argument(
        "--response-limit",
        type=_positive_int,
        default=8192,
        metavar="TOKENS",
        help="longest single answer (default: %(default)s)",
    )

    result = parser.add_argument_group("result")
    result.add_argument("--report", type=Path, metavar="FILE", help="write all results there as JSON")
    result.add_argument(
        "--expect",
        action="store_true",
        help="succeed only if gold and chatty scored 1.0 (in generation A 0.0), noop and wrong 0.0, and no group was"
        " dropped",
    )
    return parser


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return name, value


def _policies(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SCRIPTS]:
        raise argparse.ArgumentTypeError(f"unknown policy {', '.join(unknown)}; there are {', '.join(SCRIPTS)}")
    return names


def _count(text: str) -> int:
    return _at_least(int(text), 0)


def _positive_int(text: str) -> int:
    return _at_least(int(text), 1)


def _at_least(value: int, least: int) -> int:
    if value < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number of seconds")
    return value


def _positive_float(text: str) -> float:
    value = _seconds(text)
    if not value:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value
