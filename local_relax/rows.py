"""Task rows as a scripted policy needs them: found by what the agent was told, with the gold change as a patch.

Only the needed columns are read, and the large one (the parsed commit) only for rows that are really played.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

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
    """Rebuild the diff of a parsed commit, non-test Python files only."""
    diffs = [diff for diff in parsed_commit["file_diffs"] if _is_source(diff["header"]["file"]["path"])]

    def paths(side: str) -> list[str]:
        """Files that do not exist on that side."""
        return [_path(diff) for diff in diffs if (diff[side] or {}).get("path") == "/dev/null"]

    return GoldChange(
        patch="".join(line + "\n" for diff in diffs for line in _diff_lines(diff)),
        files=[_path(diff) for diff in diffs],
        created=paths("minus_file"),
        deleted=paths("plus_file"),
    )


def _path(diff: Mapping[str, Any]) -> str:
    return str(diff["header"]["file"]["path"])


def _is_source(path: str) -> bool:
    parts = PurePosixPath(path).parts
    is_test = (
        path.endswith("_test.py")
        or path.startswith("test_")
        or parts[-1].startswith("test_")
        or any(part in ("tests", "Tests", "test", "Test") for part in parts)
    )
    return path.endswith(".py") and not is_test


def _diff_lines(diff: Mapping[str, Any]) -> list[str]:
    path = _path(diff)
    lines = [f"diff --git a/{path} b/{path}"]
    if diff["header"].get("misc_line"):
        lines.append(diff["header"]["misc_line"])
    if index := diff.get("index_line"):
        mode = f" {index['mode']}" if index.get("mode") else ""
        lines.append(f"index {index['old_commit_hash']}..{index['new_commit_hash']}{mode}")
    if diff.get("binary_line"):
        lines.append(diff["binary_line"])
    if diff.get("minus_file") and diff.get("plus_file"):
        lines += [f"--- {diff['minus_file']['path']}", f"+++ {diff['plus_file']['path']}"]
    for hunk in diff.get("hunks") or ():
        lines += _hunk_lines(hunk)
    return lines


def _hunk_lines(hunk: Mapping[str, Any]) -> list[str]:
    def span(part: Mapping[str, Any]) -> str:
        return str(part["start"]) if part.get("length") is None else f"{part['start']},{part['length']}"

    descriptor = hunk["descriptor"]
    head = f"@@ -{span(descriptor['old_range'])} +{span(descriptor['new_range'])} @@"
    if section := descriptor.get("section"):
        head += f" {section.strip()}"
    marks = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}
    return [head, *(marks[line["type"]] + line["content"] for line in hunk["line_group"]["all_lines"])]


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
