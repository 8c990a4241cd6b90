"""The manifest that `agent_server.py validate` writes: which rows can be trusted."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rollout.errors import StartupError
from swe_rollout.states import MODES, Mode
from swe_rollout.tasks import LoadedTasks

if TYPE_CHECKING:
    import pyarrow as pa

VALIDATE = "run `python agent_server.py validate`"
UNKNOWN = "not_in_manifest"
"""Why a row is left out that the manifest does not have."""

_COLUMNS = ("task_id", "mode", "result")
_VALID = "valid"


@dataclass(frozen=True)
class Validated:
    """What a manifest says of each row that it has."""

    manifest: Path
    results: Mapping[Mode, Mapping[str, str]]
    """One word by task id, for the modes that it has any row of."""

    def knows(self, mode: Mode) -> bool:
        """Whether it has any row of `mode`."""
        return mode in self.results

    def sift(self, mode: Mode, tasks: LoadedTasks) -> LoadedTasks:
        """Without the rows that are not called valid. Raises `StartupError` if none is left.

        A mode that was not validated at all is leased as it is.
        """
        if not self.knows(mode):
            return dataclasses.replace(tasks, n_unvalidated=len(tasks.tasks))
        results = {task.id: self.results[mode].get(task.id, UNKNOWN) for task in tasks.tasks}
        valid = tuple(task for task in tasks.tasks if results[task.id] == _VALID)
        left_out = Counter(result for result in results.values() if result != _VALID)
        if not valid:
            raise StartupError(
                f"none of the {len(results)} rows is valid by AGENT_SERVER_VALIDATED={self.manifest} "
                f"({', '.join(f'{count} {why}' for why, count in left_out.most_common())}): {VALIDATE} with the same "
                "data, or start without the manifest"
            )
        return dataclasses.replace(tasks, tasks=valid, left_out=dict(left_out.most_common()))


def read_manifest(manifest: Path) -> Validated:
    """What the parquet file `manifest` says. Raises `StartupError`, one line, for any other file and for no row."""
    # Imported here: it costs a second and 60 MB, which only a process that loads tasks should pay.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with manifest.open("rb") as stream, pq.ParquetFile(stream) as parquet:
            absent = [name for name in _COLUMNS if name not in parquet.schema_arrow.names]
            if absent:
                raise _refused(manifest, f"is not a manifest: it has no column {', '.join(absent)}")
            table = parquet.read(columns=[*_COLUMNS])
    except (OSError, ValueError, pa.ArrowException) as error:
        cause = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        raise _refused(manifest, f"cannot be read: {cause}") from None
    return Validated(manifest, _results(manifest, table))


def _results(manifest: Path, table: "pa.Table") -> dict[Mode, dict[str, str]]:
    results: dict[Mode, dict[str, str]] = {}
    modes: dict[object, Mode] = {mode: mode for mode in MODES}
    for row in table.to_pylist():
        task_id, mode, result = (row[name] for name in _COLUMNS)
        if not isinstance(task_id, str) or not isinstance(result, str) or mode not in modes:
            raise _refused(manifest, f"is not a manifest: it has the row {row}")
        if task_id in results.setdefault(modes[mode], {}):
            raise _refused(manifest, f"is not a manifest: it has {task_id} of {mode} twice")
        results[modes[mode]][task_id] = result
    if not results:
        raise _refused(manifest, "has no rows")
    return results


def _refused(manifest: Path, why: str) -> StartupError:
    return StartupError(f"AGENT_SERVER_VALIDATED={manifest} {why}: {VALIDATE}, or start without the manifest")
