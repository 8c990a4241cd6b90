"""What a run amounts to: metrics over its samples, the verdict on the policies' rewards, the report file."""

import dataclasses
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from local_relax.results import GroupResult

NOT_METRICS = frozenset(
    {
        "agentic_trace",
        "base_state_hash",
        "chat_template_kwargs",
        "base_url",
        "group_index",
        "id",
        "index",
        "request_id",
        "request_kind",
        "rm_type",
        "rollout_turns",
        "sample_index",
        "start_rollout_id",
        "tools",
    }
)
"""Metadata keys with a meaning of their own."""


def aggregate(groups: Sequence[GroupResult]) -> dict[str, float]:
    """`<key>/mean`, `/median`, `/max`, `/min` of numeric top-level metadata, over committed samples that have it."""
    values: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        if group.ending != "committed":
            continue
        for sample in (sample for session in group.sessions for sample in session.samples):
            values["reward"].append(sample.reward)
            for key, value in sample.metadata.items():
                if key and not key.startswith("_") and key not in NOT_METRICS and isinstance(value, int | float):
                    values[key].append(float(value))
    folds: dict[str, Callable[[list[float]], float]] = {
        "mean": statistics.fmean,
        "median": statistics.median,
        "max": max,
        "min": min,
    }
    return {f"{key}/{name}": fold(numbers) for key, numbers in values.items() for name, fold in folds.items()}


def broken_expectation(groups: Sequence[GroupResult], wanted: int, rewards: Mapping[str, float]) -> str | None:
    """One line on the first session that did not score what `rewards` says of its policy, or on a dropped group.

    None if all is as it should be and `wanted` groups are committed.
    """
    for group in groups:
        if group.ending == "dropped":
            return f"group {group.group_id} was dropped: {' '.join((group.reason or '').split())}"
        if group.ending != "committed":
            continue
        for session in group.sessions:
            expected = rewards.get(session.policy)
            if expected is not None and session.reward != expected:
                facts = {key: session.metadata[key] for key in ("task_id", "exit_status") if key in session.metadata}
                return f"{session.label} scored {session.reward}, expected {expected}; {facts}"
    committed = sum(group.ending == "committed" for group in groups)
    return None if committed == wanted else f"{committed} of {wanted} groups committed"


def write_report(file: Path, groups: Sequence[GroupResult], failure: str | None) -> None:
    """All results as JSON; numbers that are not finite are written as Python's JSON writer spells them."""
    report: dict[str, Any] = {
        "failure": failure,
        "groups": [dataclasses.asdict(group) for group in groups],
        "metrics": aggregate(groups),
    }
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
