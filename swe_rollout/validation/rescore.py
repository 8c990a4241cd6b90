"""Stored patches judged again, without a model: what would their sessions be paid today?"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swe_rollout.artifacts import OUTCOME, PATCH, TASK
from swe_rollout.assembly import Workshop
from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import AgentFault, InfrastructureError, StartupError
from swe_rollout.session import Mode, one_line
from swe_rollout.tasks import Task
from swe_rollout.validation.crew import Crew
from swe_rollout.validation.progress import Progress


@dataclass(frozen=True)
class Stored:
    """A session that was judged."""

    folder: Path
    mode: Mode
    task_id: str
    reward: float


@dataclass(frozen=True)
class Rescored:
    stored: Stored
    reward: float | None
    """None if it could not be judged."""
    reason: str

    @property
    def is_news(self) -> bool:
        return self.reward != self.stored.reward


def find_sessions(folders: Iterable[Path]) -> list[Path]:
    """The folders of sessions among and below `folders`. Raises `StartupError` if there is none."""
    found: dict[Path, None] = {}
    for folder in folders:
        if not folder.is_dir():
            raise StartupError(f"{folder}: no such folder")
        found |= dict.fromkeys(file.parent.resolve() for file in sorted(folder.rglob(TASK)))
    if not found:
        raise StartupError(f"no session below {', '.join(map(str, folders))}: there is no {TASK}")
    return list(found)


def rescore(shop: Workshop, sessions: Sequence[Path], console: Console, cancellation: Cancellation) -> bool:
    """Judge those of `sessions` again that were judged, and print what changed; whether nothing did.

    Raises `Cancelled`.
    """
    stored = [session for session in map(_read, sessions) if session is not None]
    tasks: dict[tuple[Mode, str], Task] = {
        (mode, task.id): task for mode, loaded in shop.loaded.items() for task in loaded.tasks
    }
    results: list[Rescored] = []
    progress = Progress(console, len(stored), "sessions")

    def work(session: Stored) -> None:
        result = _judge(shop, tasks, session, cancellation)
        results.append(result)
        change = f"{session.reward} -> {result.reward}" if result.is_news else f"{session.reward} as before"
        progress.done(f"{session.folder.name} {session.task_id}: {change}", notable=result.is_news)

    if stored:
        n_threads = min(len(stored), shop.rollout.scoring_slots.capacity)
        with progress.shown():
            Crew(n_threads, work, cancellation).work_off(stored)
    news = sorted((one for one in results if one.is_news), key=lambda one: str(one.stored.folder))
    if news:
        console.print(_table(news))
    n_failed = sum(one.reward is None for one in news)
    console.print(
        Text(
            f"{len(sessions)} sessions: {len(stored) - len(news)} as before, {len(news) - n_failed} changed, "
            f"{n_failed} could not be judged, {len(sessions) - len(stored)} skipped (never judged)"
        ),
        soft_wrap=True,
    )
    return not news


def _judge(
    shop: Workshop, tasks: Mapping[tuple[Mode, str], Task], session: Stored, cancellation: Cancellation
) -> Rescored:
    task = tasks.get((session.mode, session.task_id))
    if task is None:
        return Rescored(session, None, f"no {session.mode} row that can be used has the id {session.task_id}")
    try:
        patch = (session.folder / PATCH).read_bytes()
        with shop.rollout.scoring_slots.hold(cancellation):
            verdict = shop.rollout.judges[session.mode].judge_patch(task, patch, cancellation).verdict
    except AgentFault as fault:
        return Rescored(session, 0.0, one_line(str(fault)))
    except (InfrastructureError, OSError) as error:
        return Rescored(session, None, one_line(f"{type(error).__name__}: {error}"))
    assert verdict is not None
    return Rescored(session, verdict.reward, one_line(verdict.reason))


def _read(folder: Path) -> Stored | None:
    """None for a session without a verdict: failed, cancelled, ended at a limit, or cut short by a kill."""
    try:
        task, outcome = _json(folder / TASK), _json(folder / OUTCOME)
        judged = outcome["grading_status"] is not None and (folder / PATCH).is_file()
        return Stored(folder, task["mode"], task["task_id"], float(outcome["reward"])) if judged else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def _table(news: Iterable[Rescored]) -> Table:
    table = Table()
    for heading in ("session", "task", "old reward", "new reward", "reason"):
        table.add_column(heading, overflow="fold")
    for one in news:
        new = "none" if one.reward is None else str(one.reward)
        table.add_row(one.stored.folder.name, one.stored.task_id, str(one.stored.reward), new, Text(one.reason))
    return table
