"""The change that solves a row: read from the row when its turn comes, since a row is up to a megabyte."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from data.parsed_diff import python_diff
from swe_rollout.errors import StartupError
from swe_rollout.validation.rows import Row

_COMMITS = ("parsed_commit_content", "parsed_commit")
"""Columns that hold a ParsedCommit: of R2E-Gym's rows, and of SWE-bench rows in R2E form."""
_COLUMNS = ("patch", *_COMMITS)
"""The first that a row has anything in counts."""
_BATCH_ROWS = 8


@dataclass(frozen=True)
class Solution:
    """What a row says about its solution."""

    column: str
    """Where it stands; "" for a row without one."""
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).hexdigest()

    def patch(self) -> str:
        """The solution as `git apply` takes it. Raises `ValueError` with one line if the row has none."""
        if not self.column:
            raise ValueError("the row holds no solution")
        if self.column not in _COMMITS:
            return self.text
        try:
            patch = python_diff(json.loads(self.text))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{self.column} is no parsed commit: {type(error).__name__} {error}") from error
        if not patch:
            raise ValueError(f"{self.column} changes no Python file")
        return patch


def with_solutions(rows: Iterable[Row]) -> Iterator[tuple[Row, Solution]]:
    """Each of `rows` with its solution, file by file; a few rows are in memory at a time.

    Raises `StartupError` naming a file that is damaged.
    """
    by_file: dict[Path, dict[int, Row]] = {}
    for row in rows:
        by_file.setdefault(row.file, {})[row.number] = row
    for file, wanted in by_file.items():
        for number, solution in _read(file, wanted):
            yield wanted[number], solution


def _read(file: Path, wanted: Collection[int]) -> Iterator[tuple[int, Solution]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file, buffer_size=1 << 20) as parquet:
            columns = [name for name in _COLUMNS if name in parquet.schema_arrow.names]
            first, last = 0, max(wanted)
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=columns):
                for number in range(first, first + batch.num_rows):
                    if number in wanted:
                        texts = {name: batch.column(name)[number - first].as_py() for name in columns}
                        yield number, _solution(texts)
                first += batch.num_rows
                if first > last:
                    return
    except (OSError, pa.ArrowException) as error:
        raise StartupError(f"{file} cannot be read: {str(error).partition(chr(10))[0]}") from error


def _solution(texts: Mapping[str, object]) -> Solution:
    for column, text in texts.items():
        if isinstance(text, str) and text.strip():
            return Solution(column, text)
    return Solution("", "")
