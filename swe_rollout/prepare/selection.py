"""Which images are wanted: DuckDB reads a few columns of the rows, flags narrow them down."""

import contextlib
import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from swe_rollout.errors import StartupError
from swe_rollout.ids import read_ids
from swe_rollout.prepare.options import Options, UsageError
from swe_rollout.rows import ID_COLUMNS, IMAGE_COLUMNS, id_of, image_of

_REPO_COLUMNS = ("repo_name", "repo")
_SECONDS = 600


@dataclass(frozen=True)
class Entry:
    """What matters of a row here."""

    mode: str
    id: str
    """Empty if the row has none."""
    repo: str
    """R2E-Gym's short name, or SWE-bench's owner/name."""
    image: str
    """Empty if the row names none."""


def read_entries(mode: str, files: Sequence[Path]) -> list[Entry]:
    """One for each row of `files`, which are of one form and in one folder, in order.

    Raises `StartupError`, one line, if DuckDB cannot read them.
    """
    folder = files[0].parent
    # Names without a folder: DuckDB takes brackets and stars in a path for a pattern.
    names = ", ".join("'" + file.name.replace("'", "''") + "'" for file in files)
    present = [row["column_name"] for row in _query(folder, f"DESCRIBE SELECT * FROM read_parquet([{names}])")]
    columns = [name for name in dict.fromkeys((*IMAGE_COLUMNS, *ID_COLUMNS, *_REPO_COLUMNS)) if name in present]
    if not columns:
        raise StartupError(f"{files[0]} has none of the columns that name an image: {', '.join(IMAGE_COLUMNS)}")
    rows = _query(
        folder,
        f"SELECT {', '.join(columns)} FROM read_parquet([{names}], filename=true, file_row_number=true)"
        " ORDER BY filename, file_row_number",
    )
    return [_entry(mode, row) for row in rows]


def select(entries: Iterable[Entry], options: Options) -> list[str]:
    """The distinct images that `options` ask for: train first, those of one repo together, since they share layers.

    With a limit, train and eval take turns, each in the order of its rows, so that both have some.

    Raises `UsageError` for a repo or an id that no row has, and if nothing is left.
    """
    entries = list(entries)
    wanted = [entry for entry in entries if entry.image]
    if options.repos:
        known = {entry.repo for entry in entries}
        if unknown := [repo for repo in options.repos if repo not in known]:
            raise UsageError(f"no row is of the repo {', '.join(unknown)}; there are: {', '.join(sorted(known))}")
        wanted = [entry for entry in wanted if entry.repo in options.repos]
    if options.ids:
        ids, known = wanted_ids(options.ids), {entry.id for entry in entries}
        if unknown := [name for name in ids if name not in known]:
            raise UsageError(f"no row has the id {', '.join(unknown)} ({options.ids})")
        wanted = [entry for entry in wanted if entry.id in ids]
    images = {entry.image for entry in wanted}
    if options.limit is not None:
        modes = {
            entry.mode: dict.fromkeys(each.image for each in wanted if each.mode == entry.mode) for entry in wanted
        }
        turns = chain.from_iterable(zip_longest(*modes.values()))
        images = set(list(dict.fromkeys(image for image in turns if image))[: options.limit])
    if not images:
        asked = "with these flags" if options.repos or options.ids else "in the data"
        raise UsageError(f"0 of {len(entries)} rows name an image that is wanted {asked}: nothing to build")
    first_seen = {(entry.mode, entry.repo): number for number, entry in reversed(list(enumerate(wanted)))}
    wanted.sort(key=lambda entry: first_seen[entry.mode, entry.repo])
    return list(dict.fromkeys(entry.image for entry in wanted if entry.image in images))


def wanted_ids(file: Path) -> dict[str, None]:
    """As `read_ids`; a file that is no good is the fault of who wrote the command: raises `UsageError`."""
    try:
        return read_ids(file)
    except StartupError as error:
        raise UsageError(str(error)) from None


def _entry(mode: str, row: dict[str, Any]) -> Entry:
    task_id = image = ""
    with contextlib.suppress(ValueError):
        task_id = id_of(row)
    with contextlib.suppress(ValueError):
        image = image_of(row)
    return Entry(mode, task_id, str(row.get("repo_name") or row.get("repo") or ""), image)


def _query(folder: Path, sql: str) -> list[dict[str, Any]]:
    argv = ["setpriv", "--pdeathsig=KILL", "--", "duckdb", "-no-init", "-bail", "-json", "-c", sql, ":memory:"]
    try:
        done = subprocess.run(
            argv, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, start_new_session=True
        )
    except subprocess.TimeoutExpired as error:
        raise StartupError(f"duckdb has not read {folder} within {_SECONDS} s") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.decode("utf-8", "replace").split()) or f"it ended with {done.returncode}"
        raise StartupError(f"duckdb cannot read {folder}: {said}; remove its files to fetch them again")
    # No rows at all may also be told by saying nothing.
    rows: list[dict[str, Any]] = json.loads(done.stdout or b"[]")
    return rows
