"""Task rows as a scripted policy needs them: found by what the agent was told, with the gold change as a patch.

Only the needed columns are read, and the large one (the gold change) only for rows that are really played.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from local_relax.gold import GoldChange, RowForm, form_of

_BATCH_ROWS = 16


@dataclass(frozen=True)
class Row:
    statement: str
    name: str
    file: Path
    row_group: int
    offset: int
    """Position inside the row group."""
    form: RowForm

    def gold(self) -> GoldChange:
        return _read_gold(self.form, self.file, self.row_group, self.offset)


class Rows:
    """All rows of some parquet files, by problem statement. Immutable."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Raises `ValueError` with one line if a file is not usable."""
        self._rows: list[Row] = []
        for file in files:
            self._rows += _read_index(file)
        if not self._rows:
            raise ValueError(f"no rows in {', '.join(map(str, files))}")
        # A statement may be part of another one: the longest match is the right one.
        self._rows.sort(key=lambda row: len(row.statement), reverse=True)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, text: str) -> Row:
        """The row whose problem statement is part of `text`. Raises `LookupError` if there is none."""
        for row in self._rows:
            if row.statement in text:
                return row
        raise LookupError("no row's problem statement is part of the first user message; is --data the served data?")


def _read_index(file: Path) -> list[Row]:
    rows = []
    try:
        parquet = pq.ParquetFile(file)
        try:
            form = form_of(parquet.schema_arrow.names)
        except ValueError as error:
            raise ValueError(f"{file}: {error}") from error
        columns = ["problem_statement", *form.name_columns]
        for group in range(parquet.num_row_groups):
            for offset, row in enumerate(parquet.read_row_group(group, columns=columns).to_pylist()):
                rows.append(Row(_told(row["problem_statement"]), form.name(row), file, group, offset, form))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"cannot read {file}: {error}") from error
    return [row for row in rows if row.statement]


def _told(problem_statement: str) -> str:
    """What an agent is told: the text inside the tags, or all of it if there are none."""
    tagged = re.search(r"\[ISSUE\](.*?)\[/ISSUE\]", problem_statement, re.DOTALL)
    return (tagged.group(1) if tagged else problem_statement).strip()


@functools.lru_cache(maxsize=256)
def _read_gold(form: RowForm, file: Path, row_group: int, offset: int) -> GoldChange:
    batches = pq.ParquetFile(file).iter_batches(
        batch_size=_BATCH_ROWS, row_groups=[row_group], columns=[form.gold_column]
    )
    for batch in batches:
        if offset < len(batch):
            return form.gold(batch.column(0)[offset].as_py())
        offset -= len(batch)
    raise LookupError(f"{file} has lost a row")
