"""Validation from first row to manifest."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from swe_rollout.assembly import Workshop
from swe_rollout.cancellation import Cancellation
from swe_rollout.session import MODES
from swe_rollout.validation.checks import Checker
from swe_rollout.validation.crew import Crew
from swe_rollout.validation.manifest import write_manifest
from swe_rollout.validation.progress import Progress
from swe_rollout.validation.results import Record, Results, fingerprint, record_of
from swe_rollout.validation.rows import Row, choose, list_rows
from swe_rollout.validation.solutions import Solution, with_solutions
from swe_rollout.validation.summary import describe, show


@dataclass(frozen=True)
class Report:
    """What became of the chosen rows."""

    records: tuple[Record, ...]
    manifest: Path
    n_checked: int
    """Rows that this run checked itself."""
    seconds: float

    @property
    def all_valid(self) -> bool:
        return all(record.result == "valid" for record in self.records)

    @property
    def rows_per_hour(self) -> float:
        return self.n_checked / self.seconds * 3600


class _Job(NamedTuple):
    row: Row
    solution: Solution
    fingerprint: str


@dataclass(frozen=True)
class Plan:
    """What is to be validated, and where the results go."""

    folder: Path
    ids: Path | None = None
    limit: int | None = None
    repeat: int = 1
    again: bool = False


def validate(shop: Workshop, plan: Plan, console: Console, cancellation: Cancellation) -> Report:
    """Check the rows that no earlier run has checked, and write the manifest of all that is known.

    Raises `StartupError`, `Cancelled`, and OSError when the folder takes no more.
    """
    listed = list_rows(shop.loaded)
    rows = choose(listed, plan.ids, plan.limit)
    results = Results(plan.folder, again=plan.again)
    try:
        rollout = dataclasses.replace(shop.rollout, work_dir=plan.folder)
        checker = Checker(rollout, plan.folder, plan.repeat, cancellation)
        progress = Progress(console, len(rows), "rows")
        current: dict[object, str] = {}

        def jobs() -> Iterator[_Job]:
            for row, solution in with_solutions(rows):
                print_ = fingerprint(rollout.config, row, solution)
                current[row.mode, row.id] = print_
                if results.finished(row, print_, plan.repeat):
                    progress.kept()
                else:
                    yield _Job(row, solution, print_)

        def work(job: _Job) -> None:
            record = record_of(job.row, checker.check(job.row, job.solution), plan.repeat, job.fingerprint)
            results.add(record)
            seconds = sum(run.seconds for run in record.runs)
            progress.done(f"{describe(record)}, {seconds:.1f} s", notable=record.result != "valid")

        judges = rollout.scoring_slots.capacity
        agents = max(rollout.slots[mode].capacity for mode in shop.loaded)
        with progress.shown():
            Crew(min(len(rows), judges + min(judges, agents)), work, cancellation).work_off(jobs())
        known = {(row.mode, row.id) for row in listed}
        records = [
            # Those of a mode that is not looked at this time stay, those of rows that are gone do not.
            record
            for record in results.all()
            if record.key in known or record.mode not in shop.loaded
        ]
        order = {(row.mode, row.id): number for number, row in enumerate(listed)}
        records.sort(key=lambda record: (MODES.index(record.mode), order.get(record.key, 0)))
        manifest = write_manifest(records, plan.folder)
    finally:
        results.close()
    mine = tuple(record for record in records if record.key in current)
    report = Report(mine, manifest, progress.n_done, progress.seconds)
    show(console, mine)
    n_valid = sum(record.result == "valid" for record in mine)
    words = f"{n_valid} of {len(mine)} rows valid"
    if report.n_checked:
        words += f"; {report.n_checked} checked in {report.seconds:.1f} s ({report.rows_per_hour:.0f} rows/hour)"
    console.print(Text(f"{words}; manifest: {manifest}"), soft_wrap=True)
    return report
