"""Task rows: from parquet files to `Task`s."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from swe_rollout.errors import ImageError, StartupError
from swe_rollout.rows import SOLUTION_PATHS, id_of, image_of, read_rows, text_of
from swe_rollout.sandbox.images import BUILD, SifFolder
from swe_rollout.scoring.r2e import R2ETests, parse_expected
from swe_rollout.scoring.swebench import SWEBenchTests, parse_tests


@dataclass(frozen=True)
class Task:
    """One row a session can work on and be judged by."""

    id: str
    """`<repo_name>__<first 12 digits of commit_hash>` or `instance_id`; unique among the tasks loaded together."""
    docker_image: str
    sif: Path
    """The image's SIF; was as long as its header says when the tasks were loaded."""
    repo: str
    """A short name in R2E form, owner/name in SWE-bench form."""
    problem_statement: str
    """What the agent is told: in R2E form the text between [ISSUE] and [/ISSUE], or all of it without these tags."""
    tests: R2ETests | SWEBenchTests
    """What a change is judged by."""


@dataclass(frozen=True)
class BadRow:
    """A row no submission could be judged by; it is left out."""

    id: str
    """The task id, or file and row number if the row has none."""
    reason: str


@dataclass(frozen=True)
class LoadedTasks:
    """What the files gave. Every row read is a task, a bad row, one left out, or one of `n_without_image`."""

    files: tuple[Path, ...]
    tasks: tuple[Task, ...]
    n_rows: int
    missing_images: list[str]
    """Distinct docker images without a SIF file, sorted."""
    damaged_images: Mapping[str, str]
    """What is wrong with the SIF, naming the file, by docker image, sorted."""
    bad_rows: list[BadRow]
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Rows that could be used and are not to be, counted by why, in one word."""
    n_unvalidated: int = 0
    """Tasks that nobody vouches for, although there is a manifest of those that can be trusted."""

    @property
    def n_without_image(self) -> int:
        """Rows left out because their image is missing or damaged."""
        return self.n_rows - len(self.tasks) - len(self.bad_rows) - sum(self.left_out.values())

    @property
    def lost_images(self) -> str:
        """Which images cannot be used, and what to do; "" if all can."""
        causes = []
        if missing := self.missing_images:
            causes.append(f"images without a SIF: {len(missing)}, the first is {missing[0]}")
        if damaged := self.damaged_images:
            causes.append(f"damaged SIFs: {len(damaged)}, the first: {next(iter(damaged.values()))}")
        return "; ".join([*causes, f"set R2E_SIF_DIR, or {BUILD}"]) if causes else ""

    def without(self, refused: Mapping[str, str]) -> "LoadedTasks":
        """The tasks of these ids become bad rows, for the reasons given. Raises `StartupError` if no task is left."""
        tasks = tuple(task for task in self.tasks if task.id not in refused)
        bad = [BadRow(task.id, refused[task.id]) for task in self.tasks if task.id in refused]
        return _checked(dataclasses.replace(self, tasks=tasks, bad_rows=[*self.bad_rows, *bad]))


def find_files(root: Path, pattern: str) -> list[Path]:
    """The files below `root` that match the glob `pattern`, sorted."""
    if Path(pattern).is_absolute():
        raise StartupError(f"file pattern {pattern!r} must be relative to R2E_DATA_PATH ({root})")
    return sorted(path for path in root.glob(pattern) if path.is_file())


def load_tasks(files: Sequence[Path], sifs: SifFolder) -> LoadedTasks:
    """Read all rows of the parquet `files`, in order.

    A row that cannot be judged, whose SIF is missing or damaged, or whose id an earlier row has, is left out and
    accounted for. A repeated id is one commit read twice: kept, it would be trained twice as often.

    Raises `StartupError`, one line naming the file and what to do, for a file that is not whole, has no rows or the
    wrong columns, and if no task is left.
    """
    tasks: dict[str, Task] = {}
    bad_rows: list[BadRow] = []
    images: dict[str, Path | None] = {}
    damaged: dict[str, str] = {}
    n_rows = 0
    for file in files:
        for number, row in enumerate(read_rows(file)):
            n_rows += 1
            name = f"{file.name} row {number}"
            try:
                name = id_of(row)
                if name in tasks:
                    raise ValueError("repeats the id of an earlier row")
                image = image_of(row)
                repo, statement, tests = _r2e(row) if "expected_output_json" in row else _swebench(row)
            except ValueError as error:
                bad_rows.append(BadRow(name, str(error)))
                continue
            if image not in images:
                try:
                    images[image] = sifs.find(image)
                except ImageError as error:
                    images[image] = None
                    damaged[image] = str(error)
            if sif := images[image]:
                tasks[name] = Task(name, image, sif, repo, statement, tests)
    missing = sorted(image for image, sif in images.items() if not sif and image not in damaged)
    return _checked(
        LoadedTasks(tuple(files), tuple(tasks.values()), n_rows, missing, dict(sorted(damaged.items())), bad_rows)
    )


def _r2e(row: Mapping[str, object]) -> tuple[str, str, R2ETests]:
    statement = _issue(_text(row, "problem_statement"))
    expected = parse_expected(_text(row, "expected_output_json"))
    return _text(row, "repo_name"), statement, R2ETests(expected, _solution_paths(row.get(SOLUTION_PATHS)))


def _solution_paths(value: object) -> frozenset[str]:
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(isinstance(path, str) for path in value):
        raise ValueError(f"{SOLUTION_PATHS} is not a list of paths")
    return frozenset(value)


def _swebench(row: Mapping[str, object]) -> tuple[str, str, SWEBenchTests]:
    tests = parse_tests(row)
    return tests.repo, _text(row, "problem_statement"), tests


def _text(row: Mapping[str, object], column: str) -> str:
    if text := text_of(row, column):
        return text
    raise ValueError(f"{column} is empty or not a text")


def _issue(statement: str) -> str:
    tagged = re.search(r"\[ISSUE\](.*)\[/ISSUE\]", statement, re.DOTALL)
    issue = (tagged[1] if tagged else statement).strip()
    if not issue:
        raise ValueError("problem_statement is empty between its tags")
    return issue


def _checked(loaded: LoadedTasks) -> LoadedTasks:
    if loaded.tasks:
        return loaded
    causes = [loaded.lost_images] if loaded.lost_images else []
    if bad := loaded.bad_rows:
        causes.append(f"rows that cannot be judged: {len(bad)}, the first is {bad[0].id}: {bad[0].reason}")
    files = ", ".join(map(str, loaded.files))
    raise StartupError(f"none of the {loaded.n_rows} rows of {files} can be used: {'; '.join(causes)}")
