"""Task rows as a scripted policy needs them: found by what the agent was told, with the gold change as a patch.

Only the needed columns are read, and the large one (the parsed commit) only for rows that are really played.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data.parsed_commit import rebuild_diff
from data.repository import is_test_file

_BATCH_ROWS = 16


@dataclass(frozen=True)
class GoldChange:
    """The non-test Python part of the commit that solves the task."""

    patch: str
    files: Sequence[str]
    """Paths in the order of the patch."""
    created: Sequence[str]
    deleted: Sequence[str]


@dataclass(frozen=True)
class Row:
    statement: str
    name: str
    file: Path
    row_group: int
    offset: int
    """Position inside the row group."""

    def gold(self) -> GoldChange:
        return _read_gold(self.file, self.row_group, self.offset)


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


def gold_change(parsed_commit: Mapping[str, Any]) -> GoldChange:
    """The non-test Python part of a parsed commit."""

    def path(diff: Mapping[str, Any]) -> str:
        return str(diff["header"]["file"]["path"])

    def missing(side: str) -> list[str]:
        """Files that are not there on that side of the change."""
        return [path(diff) for diff in diffs if (diff[side] or {}).get("path") == "/dev/null"]

    diffs = [
        diff for diff in parsed_commit["file_diffs"] if path(diff).endswith(".py") and not is_test_file(path(diff))
    ]
    return GoldChange(
        patch=rebuild_diff({**parsed_commit, "file_diffs": diffs}),
        files=[path(diff) for diff in diffs],
        created=missing("minus_file"),
        deleted=missing("plus_file"),
    )


def _read_index(file: Path) -> list[Row]:
    columns = ["problem_statement", "repo_name", "commit_hash"]
    rows = []
    try:
        parquet = pq.ParquetFile(file)
        missing = [name for name in (*columns, "parsed_commit_content") if name not in parquet.schema_arrow.names]
        if missing:
            raise ValueError(f"{file}: no column {', '.join(missing)}")
        for group in range(parquet.num_row_groups):
            for offset, row in enumerate(parquet.read_row_group(group, columns=columns).to_pylist()):
                name = f"{row['repo_name']}__{row['commit_hash'][:12]}"
                rows.append(Row(_told(row["problem_statement"]), name, file, group, offset))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"cannot read {file}: {error}") from error
    return [row for row in rows if row.statement]


def _told(problem_statement: str) -> str:
    """What an agent is told: the text inside the tags, or all of it if there are none."""
    tagged = re.search(r"\[ISSUE\](.*?)\[/ISSUE\]", problem_statement, re.DOTALL)
    return (tagged.group(1) if tagged else problem_statement).strip()


@functools.lru_cache(maxsize=256)
def _read_gold(file: Path, row_group: int, offset: int) -> GoldChange:
    batches = pq.ParquetFile(file).iter_batches(
        batch_size=_BATCH_ROWS, row_groups=[row_group], columns=["parsed_commit_content"]
    )
    for batch in batches:
        if offset < len(batch):
            return gold_change(json.loads(batch.column(0)[offset].as_py()))
        offset -= len(batch)
    raise LookupError(f"{file} has lost a row")
