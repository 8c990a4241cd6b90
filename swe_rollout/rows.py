"""Rows of an R2E-form parquet file, of which only a few columns are read."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from swe_rollout.errors import StartupError, UnsupportedRowsError

COLUMNS = ("repo_name", "docker_image", "commit_hash", "problem_statement", "expected_output_json")
"""All that is read: a whole row is most of a megabyte and holds the solution and the hidden tests."""
FETCH = "fetch the data with setup_r2e_data_and_sifs.sh"

_BATCH_ROWS = 256
_LFS_POINTER = b"version https://git-lfs"


def read_rows(file: Path) -> Iterator[dict[str, object]]:
    """Each row's `COLUMNS`, in order, a batch in memory at a time.

    Raises `StartupError`, one line naming the file and what to do, for a file that is not whole, has no rows
    or is not in R2E form.
    """
    # Imported here: pyarrow costs a second and 60 MB, which only a process that loads tasks should pay.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with file.open("rb") as stream:
            if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise StartupError(f"{file} is a Git LFS pointer, not the data: {FETCH}")
        with pq.ParquetFile(file) as parquet:
            _check_form(file, parquet.schema_arrow.names, parquet.metadata.num_rows)
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=list(COLUMNS)):
                yield from batch.to_pylist()
    except (OSError, ValueError, pa.ArrowException) as error:
        cause = str(error).partition("\n")[0] or type(error).__name__
        raise StartupError(f"{file} cannot be read as parquet ({cause}): {FETCH}") from error


def _check_form(file: Path, columns: Sequence[str], n_rows: int) -> None:
    missing = [column for column in COLUMNS if column not in columns]
    if "expected_output_json" in missing and "FAIL_TO_PASS" in columns:
        raise UnsupportedRowsError(
            f"{file} holds rows in SWE-bench form (FAIL_TO_PASS, no expected_output_json), but this server"
            " scores R2E-form rows only: configure a file in R2E form"
        )
    if missing:
        raise StartupError(f"{file} lacks the columns {', '.join(missing)}: configure a file in R2E form")
    if n_rows == 0:
        raise StartupError(f"{file} has no rows: {FETCH}, or check the filter it was made with")
