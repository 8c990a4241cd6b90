"""Rows of parquet files in R2E form or in SWE-bench form, of which only a few columns are read."""

import enum
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rollout.errors import StartupError
from swe_rollout.sandbox.images import official_image
from swe_rollout.scoring.swebench import SWEBENCH_COLUMNS

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FETCH = "fetch the data with `bash setup_r2e_data_and_sifs.sh`"
IMAGE_COLUMNS = ("docker_image", "image", "instance_id")
"""What `image_of` looks at; a file has some of them."""
ID_COLUMNS = ("instance_id", "repo_name", "commit_hash")
"""What `id_of` looks at; a file has some of them."""
SOLUTION_PATHS = "modified_files"
"""The column of R2E-Gym's rows with the paths of the commit that solves them; a file may do without."""

_BATCH_ROWS = 256
_LFS_POINTER = b"version https://git-lfs"
_ID_DIGITS = 12


class RowForm(enum.Enum):
    """What a file's rows say about their tests; told by one column."""

    R2E = "R2E"
    """The status of every hidden test."""
    SWE_BENCH = "SWE-bench"
    """The tests that have to pass."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What each file of this form must have; the first one tells the form."""
        if self is RowForm.R2E:
            return ("expected_output_json", "repo_name", "docker_image", "commit_hash", "problem_statement")
        return ("FAIL_TO_PASS", "PASS_TO_PASS", "instance_id", "repo", "version", "problem_statement")


def check_parquet(file: Path) -> RowForm:
    """The form of the rows in `file`, which is whole as far as its first and last bytes tell.

    Raises `StartupError`, one line naming the file and what to do, for a Git LFS pointer, a file that is cut short or
    no parquet, has no rows or lacks columns.
    """
    with _opened(file) as parquet:
        return _form(file, parquet)


def read_rows(file: Path) -> Iterator[dict[str, object]]:
    """Each row's columns that its form needs or may use, in order, a batch in memory at a time.

    A whole row is up to a megabyte and holds the solution and the hidden tests.

    Raises `StartupError` as `check_parquet` does, and for a file that is damaged further in.
    """
    with _opened(file) as parquet:
        form = _form(file, parquet)
        wanted = dict.fromkeys((*form.columns, *ID_COLUMNS, *IMAGE_COLUMNS))
        wanted |= dict.fromkeys(SWEBENCH_COLUMNS if form is RowForm.SWE_BENCH else (SOLUTION_PATHS,))
        present = parquet.schema_arrow.names
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=[name for name in wanted if name in present]):
            yield from batch.to_pylist()


def id_of(row: Mapping[str, object]) -> str:
    """The task id: `instance_id`, or `<repo_name>__<first 12 digits of commit_hash>`. ValueError if there is none."""
    if instance_id := text_of(row, "instance_id"):
        return instance_id
    repo, commit = text_of(row, "repo_name"), text_of(row, "commit_hash")
    if not repo or not commit:
        empty = [column for column in ID_COLUMNS if column in row and not text_of(row, column)]
        raise ValueError(f"has no id: {', '.join(empty or ID_COLUMNS)} is empty or not a text")
    return f"{repo}__{commit[:_ID_DIGITS]}"


def image_of(row: Mapping[str, object]) -> str:
    """The docker image of a row's tree: the one it names, or else the official one of its `instance_id`.

    ValueError if there is none.
    """
    if named := text_of(row, "docker_image"):
        return named
    if named := text_of(row, "image"):
        return named.removeprefix("docker.io/")
    if instance_id := text_of(row, "instance_id"):
        return official_image(instance_id)
    empty = [column for column in IMAGE_COLUMNS if column in row]
    raise ValueError(f"names no image: {', '.join(empty or IMAGE_COLUMNS)} is empty or not a text")


def text_of(row: Mapping[str, object], column: str) -> str:
    """The text in `column`; "" if it is blank, no text or not there."""
    value = row.get(column)
    return value if isinstance(value, str) and value.strip() else ""


@contextmanager
def _opened(file: Path) -> Iterator["pq.ParquetFile"]:
    # Imported here: pyarrow costs a second and 60 MB, which only a process that loads tasks should pay.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open("rb") as stream:
            if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise StartupError(f"{file} is a Git LFS pointer, not the data: {FETCH}")
        with pq.ParquetFile(file) as parquet:
            yield parquet
    except (OSError, ValueError, pa.ArrowException) as error:
        cause = str(error).partition("\n")[0] or type(error).__name__
        raise StartupError(f"{file} cannot be read as parquet ({cause}): {FETCH}") from error


def _form(file: Path, parquet: "pq.ParquetFile") -> RowForm:
    present = parquet.schema_arrow.names
    form = next((form for form in RowForm if form.columns[0] in present), None)
    if form is None:
        telling = " nor ".join(f"{form.columns[0]} ({form.value} form)" for form in RowForm)
        raise StartupError(f"{file} holds no task rows, it has neither the column {telling}: {FETCH}")
    if missing := [column for column in form.columns if column not in present]:
        raise StartupError(f"{file} holds rows in {form.value} form, but lacks {', '.join(missing)}: {FETCH}")
    if parquet.metadata.num_rows == 0:
        raise StartupError(f"{file} has no rows: {FETCH}, or check the filter it was made with")
    return form
