"""Task rows: from parquet files to `Task`s."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.errors import StartupError
from swe_rollout.rows import FETCH, RowForm, read_rows
from swe_rollout.sandbox.images import sif_name
from swe_rollout.scoring.r2e import parse_expected


@dataclass(frozen=True)
class Task:
    """One row a session can work on and be judged by."""

    id: str
    """`<repo_name>__<first 12 digits of commit_hash>`; unique among the tasks loaded together."""
    docker_image: str
    sif: Path
    """The image's SIF; was a file when the tasks were loaded."""
    repo: str
    problem_statement: str
    """What the agent is told: the text between [ISSUE] and [/ISSUE], or all of it without these tags."""
    expected: Mapping[str, str]
    """The status each hidden test must have, by test key."""


@dataclass(frozen=True)
class BadRow:
    """A row no submission could be judged by; it is left out."""

    id: str
    """The task id, or file and row number if the row has none."""
    reason: str


@dataclass(frozen=True)
class LoadedTasks:
    """What the files gave. Every row read is a task, a bad row, or one of `n_without_image`."""

    tasks: tuple[Task, ...]
    n_rows: int
    missing_images: list[str]
    """Distinct docker images without a SIF file, sorted."""
    bad_rows: list[BadRow]

    @property
    def n_without_image(self) -> int:
        """Rows left out because their image is one of `missing_images`."""
        return self.n_rows - len(self.tasks) - len(self.bad_rows)


def find_files(root: Path, pattern: str) -> list[Path]:
    """The files below `root` that match the glob `pattern`, sorted; `StartupError` if there is none."""
    if not pattern or Path(pattern).is_absolute():
        raise StartupError(f"file pattern {pattern!r} must be relative to R2E_DATA_PATH ({root})")
    files = sorted(path for path in root.glob(pattern) if path.is_file())
    if not files:
        raise StartupError(f"no file matches {pattern} below {root}: set R2E_DATA_PATH, or {FETCH}")
    return files


def load_tasks(files: Sequence[Path], sif_dir: Path) -> LoadedTasks:
    """Read all rows of the R2E-form parquet `files`, in order.

    A row that cannot be judged, whose SIF is not in `sif_dir`, or whose id an earlier row has, is left out
    and accounted for. A repeated id is one commit read twice: kept, it would be trained twice as often.

    Raises `StartupError`, one line naming the file and what to do, for a file that is not whole, has no rows
    or the wrong columns, and if no task is left.
    """
    if not files:
        raise StartupError("no parquet file is configured: name at least one under data.*.files")
    if not sif_dir.is_dir():
        raise StartupError(f"SIF folder {sif_dir} does not exist: set R2E_SIF_DIR, or build the SIFs first")
    tasks: dict[str, Task] = {}
    bad_rows: list[BadRow] = []
    sifs: dict[str, Path | None] = {}
    n_rows = 0
    for file in files:
        for number, row in enumerate(read_rows(file)):
            n_rows += 1
            name = f"{file.name} row {number}"
            try:
                fields = {column: _text(row, column) for column in RowForm.R2E.columns}
                name = f"{fields['repo_name']}__{fields['commit_hash'][:12]}"
                if name in tasks:
                    raise ValueError("repeats the id of an earlier row")
                statement = _issue(fields["problem_statement"])
                expected = parse_expected(fields["expected_output_json"])
            except ValueError as error:
                bad_rows.append(BadRow(name, str(error)))
                continue
            image = fields["docker_image"]
            if image not in sifs:
                path = sif_dir / sif_name(image)
                sifs[image] = path if path.is_file() else None
            if sif := sifs[image]:
                tasks[name] = Task(name, image, sif, fields["repo_name"], statement, expected)
    missing = sorted(image for image, sif in sifs.items() if not sif)
    loaded = LoadedTasks(tuple(tasks.values()), n_rows, missing, bad_rows)
    if not tasks:
        raise StartupError(_nothing_left(files, sif_dir, loaded))
    return loaded


def _text(row: Mapping[str, object], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{column} is empty or not a text")
    return value


def _issue(statement: str) -> str:
    tagged = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", statement, re.DOTALL)
    issue = (tagged[1] if tagged else statement).strip()
    if not issue:
        raise ValueError("problem_statement is empty between its tags")
    return issue


def _nothing_left(files: Sequence[Path], sif_dir: Path, loaded: "LoadedTasks") -> str:
    parts = [f"none of the {loaded.n_rows} rows of {', '.join(map(str, files))} can be used"]
    if images := loaded.missing_images:
        parts.append(
            f"{loaded.n_without_image} have no SIF in {sif_dir} (the first is {images[0]}): set R2E_SIF_DIR"
            " or build the SIFs"
        )
    if bad := loaded.bad_rows:
        parts.append(f"{len(bad)} cannot be judged (the first is {bad[0].id}: {bad[0].reason})")
    return "; ".join(parts)
