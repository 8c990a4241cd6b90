"""Task rows: from parquet files to `Task`s, and from a group of sessions to its row."""

import random
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.errors import StartupError
from swe_rollout.rows import COLUMNS, FETCH, read_rows
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
                fields = {column: _text(row, column) for column in COLUMNS}
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
    value = row[column]
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


class TaskPool:
    """Which row each group of sessions works on. Thread-safe.

    Invariants, under one lock:
    - within an epoch each row is given to exactly one group, in an order that depends only on the tasks, the
      seed and the epoch;
    - the first `group_size` leases of a group id share one row, the next one opens a new group of that id;
    - an open group has had fewer leases than `group_size`. One whose siblings never come (its group was given
      up) is forgotten `group_ttl_seconds` after its last lease, so ids that start anew do not meet old rows.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        group_size: int,
        shuffle: bool,
        seed: int,
        group_ttl_seconds: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `shuffle` every epoch keeps the order of `tasks`. `clock` gives seconds.

        Raises `ValueError` for no tasks and for a group size below 1.
        """
        if not tasks:
            raise ValueError("a pool needs at least one task")
        if group_size < 1:
            raise ValueError(f"the group size must be at least 1, not {group_size}")
        self._tasks = tuple(tasks)
        self._group_size = group_size
        self._shuffle = shuffle
        self._seed = seed
        self._ttl = group_ttl_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[str, _Group] = {}
        """Least recently leased first."""
        self._leased = 0
        self._begin_epoch(0)

    def lease(self, group_id: str) -> Task:
        """The row of the group `group_id`, for one session. There is nothing to give back."""
        with self._lock:
            now = self._clock()
            self._forget_stale(now)
            group = self._open.pop(group_id, None) or _Group(self._next_task(), self._group_size, now)
            group.left -= 1
            group.leased_at = now
            if group.left:
                self._open[group_id] = group
            self._leased += 1
            return group.task

    def counts(self) -> dict[str, int]:
        """rows; leased: sessions served; epoch, from 0; position: its rows given out; open_groups."""
        with self._lock:
            self._forget_stale(self._clock())
            return {
                "rows": len(self._tasks),
                "leased": self._leased,
                "epoch": self._epoch,
                "position": self._position,
                "open_groups": len(self._open),
            }

    def _next_task(self) -> Task:
        if self._position == len(self._order):
            self._begin_epoch(self._epoch + 1)
        self._position += 1
        return self._tasks[self._order[self._position - 1]]

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._position = 0
        self._order = list(range(len(self._tasks)))
        if self._shuffle:
            random.Random(f"{self._seed}:{epoch}").shuffle(self._order)

    def _forget_stale(self, now: float) -> None:
        while self._open:
            group_id, group = next(iter(self._open.items()))
            if now - group.leased_at < self._ttl:
                return
            del self._open[group_id]


@dataclass
class _Group:
    task: Task
    left: int
    leased_at: float
