"""The last words of a validation."""

from collections import defaultdict
from collections.abc import Sequence
from typing import get_args

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swe_rollout.validation.checks import RIGHT, Finding
from swe_rollout.validation.results import Record

_NAMED = 10
"""Rows named one by one; the manifest has all."""


def show(console: Console, records: Sequence[Record]) -> None:
    """A table by repository, and the first rows that are not valid."""
    findings = get_args(Finding)
    table = Table()
    table.add_column("repository", overflow="fold", min_width=10)
    for heading in ("rows", *findings, "s/gold"):
        table.add_column(heading.replace("_", " "), justify="right")
    by_repo: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_repo[record.repo or "?"].append(record)
    for repo, rows in sorted(by_repo.items()):
        table.add_row(repo, *_cells(rows))
    if len(by_repo) > 1:
        table.add_section()
        table.add_row("all", *_cells(records))
    console.print(table)
    bad = [record for record in records if record.result != "valid"]
    for record in bad[:_NAMED]:
        console.print(Text(describe(record)), soft_wrap=True)
    if len(bad) > _NAMED:
        console.print(f"and {len(bad) - _NAMED} more")


def describe(record: Record) -> str:
    """One row in one line, with the log that shows why."""
    words = f"{record.result} {record.task_id}" + (f": {record.reason}" if record.reason else "")
    logs = [run.log for run in record.runs if run.log and run.reward != RIGHT[run.kind]]
    return words + (f" ({logs[-1]})" if logs else "")


def _cells(records: Sequence[Record]) -> list[str]:
    counts = [sum(record.result == finding for record in records) for finding in get_args(Finding)]
    seconds = [record.seconds for record in records if record.seconds is not None]
    mean = f"{sum(seconds) / len(seconds):.1f}" if seconds else ""
    return [str(len(records)), *(str(count) if count else "" for count in counts), mean]
