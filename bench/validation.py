"""How many rows an hour `agent_server.py validate` gets through on this machine."""

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from data.rows import write_parquet
from swe_rollout.assembly import open_workshop
from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import StartupError
from swe_rollout.settings import settings_from
from swe_rollout.validation.flow import Plan, Report, validate

_PARQUET = "R2E-Gym-Subset/data/train-00000-of-00001.parquet"
_COPIES = 2
"""Rows made of each sample task: the figure should not hang on how the last ones happen to share the cores."""


@dataclass(frozen=True)
class Throughput:
    together: Report
    alone: Report
    """The same rows, one judgement and one agent at a time."""
    judges: int

    def show(self, console: Console) -> None:
        seconds = [record.seconds for record in self.alone.records if record.seconds]
        rate, one = self.together.rows_per_hour, self.alone.rows_per_hour
        console.print(
            f"validation: {rate:.0f} rows/hour with {self.judges} judgements at a time on {os.cpu_count()} cores, "
            f"{one:.0f} one at a time (ratio {rate / one:.2f}; there {sum(seconds) / len(seconds):.2f} s per gold "
            f"judgement); {self.together.n_checked} rows, 3 sandboxes to judge and 1 to work in per row"
        )


def measure_validation(samples: Path, folder: Path, *, judges: int = 4) -> Throughput:
    """Raises `StartupError` if there are no samples or one of them is not valid."""
    if not (samples / "data" / _PARQUET).is_file():
        raise StartupError(f"no sample tasks in {samples}: run `make samples`")
    rows: list[dict[str, Any]] = pq.read_table(samples / "data" / _PARQUET).to_pylist()
    copies = [{**row, "commit_hash": str(n) * 40} for n in range(_COPIES) for row in rows]
    (folder / "data" / _PARQUET).parent.mkdir(parents=True)
    write_parquet(copies, folder / "data" / _PARQUET)
    return Throughput(_run(samples, folder, judges), _run(samples, folder, 1), judges)


def _run(samples: Path, folder: Path, judges: int) -> Report:
    settings = settings_from(
        {
            "r2e_data_path": folder / "data",
            "r2e_sif_dir": samples / "sifs",
            "work_dir": folder / "work",
            "tmp_dir": folder / "tmp",
            "reward_concurrency": judges,
            "train_concurrency": judges,
        }
    )
    shop = open_workshop(settings)
    said = io.StringIO()
    try:
        plan = Plan(folder / f"validation-{judges}")
        report = validate(shop, plan, Console(file=said, width=120), Cancellation())
    finally:
        shop.close()
    if not report.all_valid:
        raise StartupError(f"not all samples are valid:\n{said.getvalue()}")
    return report
