"""The server's scratch folder: layers and channels of its sandboxes, and who removes them.

`<tmp_dir>/<run id>-<pid>/` belongs to one server. A janitor process in a session of its own watches
the server over a pipe and, when the server is gone by whatever way, ends what still works for the
folder and removes it. So nothing stays behind, also after `kill -9`. Should the janitor be killed too,
the next server sweeps: server and janitor hold the folder's lock as long as one of them lives.
"""

import contextlib
import itertools
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

from swe_rollout import locks
from swe_rollout.sandbox import processes
from swe_rollout.sandbox.confinement import Confinement

log = logging.getLogger(__name__)

_LOCK = "lock"


class Scratch:
    """One server's folder. Thread-safe: `new_folder` hands out every name once."""

    def __init__(self, tmp_dir: Path, run_id: str, confinement: Confinement) -> None:
        """Raises OSError when the folder cannot be made."""
        self.folder = tmp_dir / f"{run_id}-{os.getpid()}"
        self._confinement = confinement
        self._numbers = itertools.count(1)
        # A folder without a locked lock would look like a dead server's: it is locked before it has its name.
        aside = tmp_dir / f".{self.folder.name}"
        aside.mkdir(parents=True, mode=0o711)
        lock = locks.take(aside / _LOCK, create=True)
        assert lock is not None
        aside.rename(self.folder)
        self.empty = self.folder / "empty"
        self.empty.mkdir(mode=0o555)
        self.home = self.folder / "home"
        self.home.mkdir(mode=0o700)
        confinement.own(self.home)
        self._janitor = subprocess.Popen(
            [sys.executable, "-m", "swe_rollout.sandbox.scratch", str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
            pass_fds=[lock],
        )
        self._lock: int | None = lock

    def new_folder(self, kind: str) -> Path:
        """A fresh folder for one sandbox."""
        folder = self.folder / f"{kind}-{next(self._numbers)}"
        folder.mkdir(mode=0o711)
        return folder

    def close(self, *, seconds: float = 60.0) -> None:
        """End what is left and remove the folder. Idempotent; what takes longer than `seconds` goes on alone."""
        with contextlib.suppress(OSError):
            assert self._janitor.stdin is not None
            self._janitor.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._janitor.wait(seconds)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def sweep(tmp_dir: Path) -> list[Path]:
    """End and remove what dead servers have left in `tmp_dir`; their folders. Others' folders stay as they are."""
    swept = []
    for folder in sorted(tmp_dir.glob("*")):
        if not re.fullmatch(r"[^.].*-[0-9]+", folder.name) or folder.is_symlink():
            continue
        try:
            lock = locks.take(folder / _LOCK, create=False)
        except OSError:
            continue
        if lock is None:
            continue
        try:
            if left := processes.end_all(folder):
                log.warning("%s is left alone: its processes %s cannot be ended", folder, left)
                continue
            remove_tree(folder)
            swept.append(folder)
        finally:
            os.close(lock)
    return swept


def remove_tree(path: Path) -> None:
    """Remove what an agent filled. Its folders may be closed even to their owner, and nested deeper than a path is
    long or a stack is high, which `rm` copes with.
    """
    remove = ("rm", "-rf", "--", path)
    if subprocess.run(remove, stderr=subprocess.DEVNULL, check=False).returncode != 0:
        subprocess.run(("chmod", "-R", "u+rwx", "--", path), stderr=subprocess.DEVNULL, check=False)
        subprocess.run(remove, check=False)


def _watch(folder: Path) -> None:
    sys.stdin.buffer.read()
    processes.end_all(folder)
    remove_tree(folder)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
