"""`python -m local_relax`: one run from the command line.

Exit code 0: all as wanted; 1: not; 2: bad options; 130 and 143: stopped by SIGINT and SIGTERM.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from local_relax import options as command_line
from local_relax.chat_api import ChatApi, ModelLimits
from local_relax.generation import GENERATIONS
from local_relax.groups import GroupRunner
from local_relax.model_proxy import ModelProxy
from local_relax.policies import ScriptedEngine
from local_relax.replies import Engine
from local_relax.report import broken_expectation, write_report
from local_relax.rollout import Plan, Rollout
from local_relax.rows import Rows
from local_relax.sessions import SessionTable
from local_relax.view import View

_REFRESH_SECONDS = 0.2


def main() -> int:
    options = command_line.parse()
    try:
        engine = _engine(options)
    except ValueError as error:
        print(f"local_relax: {error}", file=sys.stderr)
        return 2
    with contextlib.closing(engine):
        return _run(options, engine)


def _run(options: argparse.Namespace, engine: Engine) -> int:
    view = View()
    table = SessionTable(view.tell)
    generation = GENERATIONS[options.generation]()
    plan = Plan(
        prompts=options.groups,
        group_size=options.group_size,
        concurrency=options.concurrency,
        policies=[options.model_name] if options.model_name else options.policies,
        mode=options.mode,
        refills=options.refills,
        step_groups=options.step_groups,
        step_seconds=options.step_seconds,
        step_close=options.step_close,
        singletons=options.mode == "eval" and generation.eval_singletons,
        pause_turns=options.pause_after,
        pause_seconds=options.pause_seconds or 0.0,
    )
    limits = ModelLimits(
        name=Path(options.model_name or "scripted").name,
        context=options.context_limit,
        response=options.response_limit,
        think_seconds=options.think,
    )
    # One held request per session is the rule; the rest is for agents that ask in parallel and for health checks.
    threads = 2 * plan.concurrency * plan.group_size + 8
    api = ChatApi(table, engine, generation, limits, threads=threads)
    runner = GroupRunner(
        table, options.agent, api.base_url, generation, plan.mode, options.agent_timeout, options.reward_key
    )
    rollout = Rollout(plan, runner, table, view.tell)
    stopped: list[int] = []
    with _stop_signals(stopped):
        try:
            rollout.start()
            with view.live(rollout, table):
                while not rollout.wait(_REFRESH_SECONDS):
                    view.update(rollout, table)
                    if stopped:
                        rollout.stop(f"stopped by {signal.Signals(stopped[0]).name}")
        finally:
            rollout.stop("the run is over")
            rollout.join()
            api.close()
            for group_id in generation.launcher.close():
                view.tell(f"process group {group_id} did not end on SIGTERM and was killed now that the run is over")
    view.update(rollout, table)
    results = rollout.results
    view.results(results)
    if options.report:
        write_report(options.report, results, rollout.failure)
    if stopped:
        return 128 + stopped[0]
    committed = sum(result.ending == "committed" for result in results)
    problem = rollout.failure or (
        broken_expectation(results, plan.total, generation.rewards) if options.expect else None
    )
    if problem is None and committed < plan.total:
        problem = f"{committed} of {plan.total} groups committed"
    if problem is not None:
        print(f"local_relax: {problem}", file=sys.stderr)
        return 1
    return 0


def _engine(options: argparse.Namespace) -> Engine:
    """Raises `ValueError` with one line."""
    if options.model_url is None:
        return ScriptedEngine(Rows(options.data))
    key = None
    if options.model_key_env:
        key = os.environ.get(options.model_key_env)
        if not key:
            raise ValueError(f"--model-key-env: the variable {options.model_key_env} is not set")
    return ModelProxy(options.model_url, options.model_name, key, options.response_limit)


@contextlib.contextmanager
def _stop_signals(stopped: list[int]) -> Iterator[None]:
    """Within the block, SIGINT and SIGTERM are only written down; the main loop acts on them."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda received, _: stopped.append(received)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
