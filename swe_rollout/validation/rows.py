"""Every row of the data sets, also those that no session can work on."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.errors import StartupError
from swe_rollout.ids import read_ids
from swe_rollout.rows import id_of, image_of, read_rows, text_of
from swe_rollout.session import Mode
from swe_rollout.tasks import LoadedTasks, Task


@dataclass(frozen=True)
class Row:
    """One row and where it stands."""

    mode: Mode
    id: str
    """The task id, or file and row number if the row has none."""
    docker_image: str
    repo: str
    file: Path
    number: int
    """Of the row in its file, from 0."""
    task: Task | None
    problem: str
    """Why there is no task; "" if there is one."""


def list_rows(loaded: Mapping[Mode, LoadedTasks]) -> list[Row]:
    """All rows of `loaded`, in order. Of rows with the same id in one mode the first is listed."""
    rows: dict[tuple[Mode, str], Row] = {}
    for mode, tasks in loaded.items():
        for row in _rows_of(mode, tasks):
            rows.setdefault((mode, row.id), row)
    return list(rows.values())


def choose(rows: Collection[Row], ids: Path | None, limit: int | None) -> list[Row]:
    """The rows whose ids the file `ids` names; of these the first `limit` of each mode.

    Raises `StartupError` for a file that cannot be read, names no row or names unknown ones.
    """
    chosen = list(rows)
    if ids is not None:
        wanted = read_ids(ids)
        if unknown := wanted.keys() - {row.id for row in rows}:
            raise StartupError(f"{ids}: no row has the id {min(unknown)} (in all {len(unknown)} unknown ids)")
        chosen = [row for row in rows if row.id in wanted]
    if limit is None:
        return chosen
    return [row for mode in ("train", "eval") for row in [one for one in chosen if one.mode == mode][:limit]]


def _rows_of(mode: Mode, loaded: LoadedTasks) -> Iterator[Row]:
    tasks = {task.id: task for task in loaded.tasks}
    bad = {row.id: row.reason for row in loaded.bad_rows}
    for file in loaded.files:
        for number, row in enumerate(read_rows(file)):
            try:
                name = id_of(row)
            except ValueError:
                name = f"{file.name} row {number}"
            try:
                image = image_of(row)
            except ValueError:
                image = ""
            task = tasks.get(name)
            problem = bad.get(name) or loaded.damaged_images.get(image) or f"image {image} has no SIF"
            repo = text_of(row, "repo_name") or text_of(row, "repo")
            yield Row(mode, name, image, repo, file, number, task, "" if task else problem)
