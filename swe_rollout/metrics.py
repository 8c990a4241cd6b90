"""What the server tells Prometheus."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from swe_rollout.session import STAGES, Mode, Session, Status

if TYPE_CHECKING:
    from swe_rollout.slots import Slots

_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200)


class Metrics:
    """Counts what has ended; reads what is now when it is asked."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._phases = Histogram(
            "swe_rollout_phase_seconds",
            "Seconds that a session spent in a phase, total being its whole life",
            ["mode", "phase"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._rewards = Counter(
            "swe_rollout_rewards",
            "Completed sessions by reward and by how the agent ended",
            ["mode", "reward", "exit_status"],
            registry=self._registry,
        )

    def watch(
        self,
        counts: Callable[[], Mapping[Mode, Mapping[Status, int]]],
        slots: Mapping[str, "Slots"],
        tasks: Callable[[], Mapping[Mode, Mapping[str, int]]],
    ) -> None:
        """Report these from now on; called once."""
        self._registry.register(_Now(counts, slots, tasks))

    def ended(self, session: Session) -> None:
        """Count a session that has ended."""
        mode, outcome = session.request.mode, session.outcome
        for phase, seconds in session.timings.items():
            self._phases.labels(mode, phase).observe(seconds)
        if outcome is not None and outcome.reward is not None:
            self._rewards.labels(mode, f"{outcome.reward:g}", outcome.agent_exit_status).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)


class _Now(Collector):
    def __init__(
        self,
        counts: Callable[[], Mapping[Mode, Mapping[Status, int]]],
        slots: Mapping[str, "Slots"],
        tasks: Callable[[], Mapping[Mode, Mapping[str, int]]],
    ) -> None:
        self._counts = counts
        self._slots = slots
        self._tasks = tasks

    def collect(self) -> Iterable[Metric]:
        open_now = GaugeMetricFamily("swe_rollout_sessions", "Open sessions", labels=["mode", "status"])
        ended = CounterMetricFamily("swe_rollout_sessions_ended", "Sessions that have ended", labels=["mode", "status"])
        for mode, counts in self._counts().items():
            for status, count in counts.items():
                (open_now if status in STAGES else ended).add_metric([mode, status], count)
        slots = GaugeMetricFamily("swe_rollout_slots", "Slots and who waits", labels=["pool", "state"])
        for name, pool in self._slots.items():
            slots.add_metric([name, "in_use"], pool.in_use)
            slots.add_metric([name, "waiting"], pool.waiting)
            slots.add_metric([name, "capacity"], pool.capacity)
        rows = GaugeMetricFamily("swe_rollout_rows", "Rows, and those that need a look", labels=["mode", "state"])
        for mode, tasks in self._tasks().items():
            rows.add_metric([mode, "all"], tasks["rows"])
            rows.add_metric([mode, "set_aside"], tasks["set_aside"])
            rows.add_metric([mode, "in_trouble"], tasks["in_trouble"])
        return open_now, ended, slots, rows
