"""A minute of chaos: what must hold whatever fails, and when."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from bench.chaos import Chaos


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("samples")
def test_the_books_balance_after_chaos(open_folder: Callable[[], Path]) -> None:
    """CHAOS_SEED chooses another run; `make soak` runs for longer."""
    seed = int(os.environ.get("CHAOS_SEED", "20"))
    report = asyncio.run(Chaos(open_folder(), seed, 60.0, kill_every=12.0).run())
    report.show(Console(width=130))
    failures = report.books.failures
    assert not failures, "\n".join(f"seed {seed}: {failure}" for failure in failures)
    assert report.starts > 1
    records = report.books.records.values()
    assert {record["status"] for record in records} == {"completed", "failed", "cancelled"}
    assert {record["reward"] for record in records} == {None, 0.0, 1.0}
