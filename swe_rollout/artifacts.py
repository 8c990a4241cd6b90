"""What a session leaves behind for people: one folder in the work dir, written whole or not at all."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TRAJECTORY = "trajectory.traj.json"
PATCH = "patch.diff"
TEST_LOG = "test_log.txt"
TASK = "task.json"
OUTCOME = "outcome.json"


class SessionFolder:
    """`<work dir>/sessions/<day>/<session id>/`. Every file appears complete: written aside, then renamed."""

    def __init__(self, work_dir: Path, day: str, session_id: str) -> None:
        """`day` is YYYY-MM-DD."""
        self.path = work_dir / "sessions" / day / session_id

    def write(self, name: str, data: bytes) -> None:
        """Raises OSError when the work dir cannot take it."""
        self.path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.path, prefix=f".{name}.", delete=False) as file:
            aside = Path(file.name)
            try:
                file.write(data)
                file.flush()
                aside.chmod(0o644)
                aside.replace(self.path / name)
            except OSError:
                aside.unlink()
                raise

    def write_json(self, name: str, data: Mapping[str, Any]) -> None:
        """As `write`, for people: indented, non-ASCII text as it is."""
        text = json.dumps(data, indent=2, ensure_ascii=False, default=str)
        self.write(name, text.encode("utf-8", "replace"))
