"""What a person sees: a live table on a terminal, plain lines elsewhere, and the results at the end."""

import contextlib
import queue
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from local_relax.report import aggregate
from local_relax.results import GroupResult
from local_relax.rollout import Rollout
from local_relax.sessions import SessionTable

_PLAIN_WIDTH = 200
_SUMMARY_SECONDS = 10.0


class View:
    """Used by the main thread only, but for `tell`, which only fills a queue."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._console = Console()
        if not self._console.is_interactive:
            self._console = Console(width=_PLAIN_WIDTH)
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._summary = ""
        self._next_summary = self._started + _SUMMARY_SECONDS

    def tell(self, event: str) -> None:
        """Say one line about what happened; any thread may."""
        self._events.put(f"[{time.monotonic() - self._started:8.1f}s] {event}")

    @contextlib.contextmanager
    def live(self, rollout: Rollout, table: SessionTable) -> Iterator[None]:
        """Within the block, `update` prints events above a table that keeps itself up to date."""
        if not self._console.is_interactive:
            yield
            return
        with Live(get_renderable=lambda: _progress(rollout, table), console=self._console, refresh_per_second=4):
            yield

    def update(self, rollout: Rollout, table: SessionTable) -> None:
        """Print the events told so far and, where there is no live table, now and then what goes on."""
        if not self._console.is_interactive and time.monotonic() > self._next_summary:
            self._next_summary = time.monotonic() + _SUMMARY_SECONDS
            summary = _summary(rollout, table)
            if summary != self._summary:
                self.tell(summary)
                self._summary = summary
        with contextlib.suppress(queue.Empty):
            while True:
                self._console.print(self._events.get_nowait(), markup=False, highlight=False, soft_wrap=True)

    def results(self, groups: Sequence[GroupResult]) -> None:
        """Print a row per session of every group, and the metrics."""
        self._console.print(_sessions(groups))
        metrics = aggregate(groups)
        if metrics:
            self._console.print(_metrics(metrics))


def _progress(rollout: Rollout, table: SessionTable) -> RenderableType:
    view = Table("group", "state", "sessions", title=_score(rollout))
    for group_id, leased, sessions in table.snapshot():
        cells = [f"{policy}: {phase if reward is None else f'reward {reward:g}'}" for policy, phase, reward in sessions]
        view.add_row(group_id, "leased" if leased else "warming", escape("  ".join(cells)))
    return view


def _summary(rollout: Rollout, table: SessionTable) -> str:
    phases = Counter(phase for _, _, sessions in table.snapshot() for _, phase, _ in sessions)
    resident = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items()))
    return f"{_score(rollout)}; sessions: {resident or 'none'}"


def _score(rollout: Rollout) -> str:
    groups = rollout.results
    ended = Counter(group.ending for group in groups)
    rewards: dict[str, list[float]] = defaultdict(list)
    for session in (session for group in groups for session in group.sessions):
        if session.reward is not None:
            rewards[session.policy].append(session.reward)
    means = "".join(f", {policy} {statistics.fmean(numbers):g}" for policy, numbers in rewards.items())
    return f"{ended['committed']} of {rollout.plan.total} groups committed, {ended['dropped']} dropped{means}"


def _sessions(groups: Sequence[GroupResult]) -> Table:
    """Metadata that counts seconds gets a column per key, in the order the keys come up."""
    sessions = [(group, session) for group in groups for session in group.sessions]
    phases = list(
        dict.fromkeys(
            key
            for _, session in sessions
            for key, value in session.metadata.items()
            if key.endswith("_seconds") and isinstance(value, int | float)
        )
    )
    table = Table("group", "task", "policy", "exit status", title="sessions")
    for header in (
        "reward",
        "steps",
        "wall s",
        *(f"{key.removesuffix('_seconds').replace('_', ' ')} s" for key in phases),
    ):
        table.add_column(header, justify="right")
    for group, session in sessions:
        status = str(session.metadata.get("exit_status", "")) if group.ending == "committed" else group.ending
        table.add_row(
            session.group_id.rpartition("_")[2],
            escape(str(session.metadata.get("task_id", ""))),
            session.policy,
            escape(status),
            _number(session.reward),
            str(session.metadata.get("n_calls", session.turns)),
            _number(session.seconds),
            *(_number(session.metadata.get(key)) for key in phases),
        )
    return table


def _metrics(metrics: dict[str, float]) -> Table:
    table = Table("metric", title="metrics over committed samples")
    names = ("mean", "median", "max", "min")
    for name in names:
        table.add_column(name, justify="right")
    for key in dict.fromkeys(key.rpartition("/")[0] for key in metrics):
        table.add_row(escape(key), *(f"{metrics[f'{key}/{name}']:.3f}" for name in names))
    return table


def _number(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, int | float) else ""
