"""What the data and SIF folders hold for each mode: loaded, checked and told before the server takes sessions."""

import itertools
import logging
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rollout.errors import StartupError
from swe_rollout.rows import FETCH
from swe_rollout.sandbox.images import SifFolder
from swe_rollout.scoring.swebench import SWEBenchTests
from swe_rollout.session import Mode
from swe_rollout.tasks import LoadedTasks, find_files, load_tasks

if TYPE_CHECKING:
    from swe_rollout.config import DataConfig
    from swe_rollout.scoring.harness import Harness

log = logging.getLogger(__name__)

_NAMED = 10
"""Damaged files named one by one; a copy that broke off may have left thousands."""


def load_modes(data: "DataConfig", root: Path, sif_dir: Path, harness: "Harness") -> dict[Mode, LoadedTasks]:
    """The tasks of each mode that is used: its pattern is not empty and files below `root` match it.

    What is left out is logged. Raises `StartupError`, one line that says what to do, if no mode is used and if the data
    of a used one is damaged or gives no task.
    """
    files = _files(data, root)
    sifs = SifFolder(sif_dir)
    loaded: dict[Mode, LoadedTasks] = {}
    for mode, found in files.items():
        try:
            loaded[mode] = _gradable(load_tasks(found, sifs), harness)
        except StartupError as error:
            other = f"; without {mode} sessions the server starts with --config data.{mode}="
            raise StartupError(f"{mode}: {error}{other if len(files) > 1 else ''}") from error
    for mode, tasks in loaded.items():
        _tell(mode, tasks)
    return loaded


def counts(tasks: LoadedTasks) -> dict[str, int]:
    """rows_read; images with a whole SIF that tasks need; what was left out, and why."""
    return {
        "rows_read": tasks.n_rows,
        "images": len({task.sif for task in tasks.tasks}),
        "missing_images": len(tasks.missing_images),
        "damaged_images": len(tasks.damaged_images),
        "rows_without_image": tasks.n_without_image,
        "bad_rows": len(tasks.bad_rows),
    }


def in_words(mode: Mode, counted: Mapping[str, int]) -> str:
    """One mode's part of the start line; `rows` are those in use. Says nothing of what there is none of."""
    rows = _of(counted["rows"], counted.get("rows_read", counted["rows"]))
    lost = {kind: counted.get(f"{kind}_images", 0) for kind in ("missing", "damaged")}
    images = _of(counted["images"], counted["images"] + sum(lost.values()))
    return f"{mode}: {rows} rows{_troubles({'bad': counted.get('bad_rows', 0)})}, {images} images{_troubles(lost)}"


def _troubles(counted: Mapping[str, int]) -> str:
    said = ", ".join(f"{count} {kind}" for kind, count in counted.items() if count)
    return f" ({said})" if said else ""


def _of(used: int, total: int) -> str:
    return str(used) if used == total else f"{used} of {total}"


def _files(data: "DataConfig", root: Path) -> dict[Mode, list[Path]]:
    patterns: dict[Mode, str] = {"train": data.train, "eval": data.eval}
    used = {mode: pattern for mode, pattern in patterns.items() if pattern}
    if not used:
        raise StartupError("data.train and data.eval are both empty: name the files of one")
    found = {mode: find_files(root, pattern) for mode, pattern in used.items()}
    absent = {mode: f"no file matches {used[mode]} below {root}" for mode, files in found.items() if not files}
    if len(absent) == len(used):
        raise StartupError(f"{' and '.join(absent.values())}: set R2E_DATA_PATH, or {FETCH}")
    for mode, reason in absent.items():
        log.info("no %s sessions: %s", mode, reason)
    return {mode: files for mode, files in found.items() if files}


def _gradable(tasks: LoadedTasks, harness: "Harness") -> LoadedTasks:
    """Without the rows that the harness would fail to grade."""
    tests = [task.tests for task in tasks.tasks if isinstance(task.tests, SWEBenchTests)]
    return tasks.without(harness.ungradable(tests)) if tests else tasks


def _tell(mode: Mode, tasks: LoadedTasks) -> None:
    if tasks.n_without_image:
        log.warning("%s: %d of %d rows left out: %s", mode, tasks.n_without_image, tasks.n_rows, tasks.lost_images)
    for reason in itertools.islice(tasks.damaged_images.values(), 1, _NAMED):
        log.warning("%s: %s", mode, reason)
    ids_by_reason = defaultdict(list)
    for row in tasks.bad_rows:
        ids_by_reason[row.reason].append(row.id)
    for reason, ids in ids_by_reason.items():
        log.warning("%s: rows left out, %s: %s", mode, reason, ", ".join(ids))
