"""results.jsonl: one line per finished row, only ever added, so that a run can be killed at any instant."""

import dataclasses
import hashlib
import json
import os
import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rollout import jsonl, locks
from swe_rollout.errors import StartupError
from swe_rollout.session import Mode
from swe_rollout.validation.checks import Finding, Finished, Run
from swe_rollout.validation.rows import Row
from swe_rollout.validation.solutions import Solution

if TYPE_CHECKING:
    from swe_rollout.config import RolloutConfig

NAME = "results.jsonl"
_LOCK = "lock"


@dataclass(frozen=True)
class Record:
    """What is kept of one row."""

    task_id: str
    mode: Mode
    result: Finding
    reason: str
    runs: tuple[Run, ...]
    seconds: float | None
    """Mean of the gold judgements."""
    docker_image: str
    repo: str
    checked_at: str
    """UTC, ISO 8601."""
    repeat: int
    fingerprint: str
    """Of all that the result depends on."""

    @property
    def key(self) -> tuple[Mode, str]:
        return self.mode, self.task_id


def record_of(row: Row, finished: Finished, repeat: int, fingerprint: str) -> Record:
    return Record(
        row.id,
        row.mode,
        finished.result,
        finished.reason,
        finished.runs,
        finished.seconds,
        row.docker_image,
        row.repo,
        datetime.now(timezone.utc).isoformat(),
        repeat,
        fingerprint,
    )


def fingerprint(config: "RolloutConfig", row: Row, solution: Solution) -> str:
    """Changes with the row, its SIF's size or time, and the configuration of sandboxes and tests."""
    if row.task is None:
        return ""
    sections = (config.environment, config.setup, config.scoring)
    try:
        sif = row.task.sif.stat()
        image = f"{sif.st_size} {sif.st_mtime_ns}"
    except OSError:
        image = "gone"  # the check will say so
    said = [
        *(section.model_dump_json() for section in sections),
        json.dumps(dataclasses.asdict(row.task.tests), sort_keys=True, default=sorted),
        row.task.problem_statement,
        row.docker_image,
        image,
        solution.digest,
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:24]


class Results:
    """The records in one folder, the latest of each row; of one run at a time. Thread-safe."""

    def __init__(self, folder: Path, *, again: bool) -> None:
        """`again` forgets what is there. Raises `StartupError` if the folder cannot be used or is in use."""
        self._file = folder / NAME
        self._lock = threading.Lock()
        self._records: dict[tuple[Mode, str], Record] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "logs").mkdir(exist_ok=True)
            taken = locks.take(folder / _LOCK, create=True)
            if taken is None:
                raise StartupError(f"another validation works in {folder}: wait for it, or choose another --output")
            self._owner = taken
            if again:
                self._file.unlink(missing_ok=True)
            self._read()
        except OSError as error:
            raise StartupError(f"--output {folder}: {error.strerror}; choose another folder") from None

    def finished(self, row: Row, fingerprint: str, repeat: int) -> Record | None:
        """The record of a row that need not be checked again; an error is not the row's last word."""
        with self._lock:
            record = self._records.get((row.mode, row.id))
        if record is None or record.result == "error" or record.repeat < repeat:
            return None
        return record if record.fingerprint == fingerprint else None

    def add(self, record: Record) -> None:
        """Append it with one write. Raises OSError."""
        with self._lock:
            jsonl.append(self._file, dataclasses.asdict(record))
            self._records[record.key] = record

    def all(self) -> list[Record]:
        with self._lock:
            return list(self._records.values())

    def close(self) -> None:
        os.close(self._owner)

    def _read(self) -> None:
        """A line that a kill cut short is passed over."""
        if not self._file.exists():
            return
        with self._file.open("rb") as lines:
            for line in lines:
                try:
                    found = json.loads(line)
                    record = Record(**{**found, "runs": tuple(Run(**run) for run in found["runs"])})
                except (ValueError, TypeError, LookupError):
                    continue
                self._records[record.key] = record
