"""The change that solves a task, in the two forms in which rows have it.

Rows of R2E-Gym have the whole commit, tests included, as JSON; rows of SWE-bench a patch of everything but tests.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.parsed_diff import rebuild_diff
from data.repository import is_test_file

_FILE = re.compile(
    r"^diff --git a/(?P<path>.+) b/(?P=path)\n(?:(?:old|new) mode .*\n)*(?P<mode>new|deleted)?", re.MULTILINE
)


@dataclass(frozen=True)
class GoldChange:
    """The part of the change that is no test; of R2E-Gym's rows only what is Python."""

    patch: str
    files: Sequence[str]
    """Paths in the order of the patch."""
    created: Sequence[str]
    deleted: Sequence[str]


@dataclass(frozen=True)
class RowForm:
    """Where rows of one form have a task's name and its gold change."""

    name_columns: Sequence[str]
    gold_column: str
    name: Callable[[Mapping[str, str]], str]
    gold: Callable[[str], GoldChange]
    """The change, from the text in `gold_column`."""


def form_of(columns: Sequence[str]) -> RowForm:
    """The form of a file with these columns. Raises `ValueError` if one is missing."""
    form = _SWEBENCH if "FAIL_TO_PASS" in columns else _R2E
    needed = ("problem_statement", *form.name_columns, form.gold_column)
    if missing := [name for name in needed if name not in columns]:
        raise ValueError(f"no column {', '.join(missing)}")
    return form


def parsed_commit_gold(text: str) -> GoldChange:
    """The non-test Python part of a parsed commit."""

    def path(diff: Mapping[str, Any]) -> str:
        return str(diff["header"]["file"]["path"])

    def missing(side: str) -> list[str]:
        """Files that are not there on that side of the change."""
        return [path(diff) for diff in diffs if (diff[side] or {}).get("path") == "/dev/null"]

    commit = json.loads(text)
    diffs = [diff for diff in commit["file_diffs"] if path(diff).endswith(".py") and not is_test_file(path(diff))]
    return GoldChange(
        patch=rebuild_diff({**commit, "file_diffs": diffs}),
        files=[path(diff) for diff in diffs],
        created=missing("minus_file"),
        deleted=missing("plus_file"),
    )


def patch_gold(patch: str) -> GoldChange:
    """A git patch without renames, as it is."""
    files = [(match["path"], match["mode"]) for match in _FILE.finditer(patch)]
    return GoldChange(
        patch=patch,
        files=[path for path, _ in files],
        created=[path for path, mode in files if mode == "new"],
        deleted=[path for path, mode in files if mode == "deleted"],
    )


_R2E = RowForm(
    name_columns=("repo_name", "commit_hash"),
    gold_column="parsed_commit_content",
    name=lambda row: f"{row['repo_name']}__{row['commit_hash'][:12]}",
    gold=parsed_commit_gold,
)
_SWEBENCH = RowForm(
    name_columns=("instance_id",), gold_column="patch", name=lambda row: row["instance_id"], gold=patch_gold
)
