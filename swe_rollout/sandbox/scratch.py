"""The server's scratch folder: layers and channels of its sandboxes, and who removes them.

`<tmp_dir>/<run id>-<pid>/` belongs to one server. A janitor process in a session of its own watches
the server over a pipe and, when the server is gone by whatever way, ends what still works for the
folder and removes it. So nothing stays behind, also after `kill -9`.
"""

import contextlib
import itertools
import os
import subprocess
import sys
from pathlib import Path

from swe_rollout.sandbox import processes
from swe_rollout.sandbox.confinement import Confinement


class Scratch:
    """One server's folder. Thread-safe: `new_folder` hands out every name once."""

    def __init__(self, tmp_dir: Path, run_id: str, confinement: Confinement) -> None:
        """Raises OSError when the folder cannot be made."""
        self.folder = tmp_dir / f"{run_id}-{os.getpid()}"
        self._confinement = confinement
        self._numbers = itertools.count(1)
        self.folder.mkdir(parents=True, mode=0o711)
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
        )

    def new_folder(self, kind: str) -> Path:
        """A fresh folder for one sandbox."""
        folder = self.folder / f"{kind}-{next(self._numbers)}"
        folder.mkdir(mode=0o711)
        return folder

    def close(self) -> None:
        """End what is left and remove the folder. Idempotent."""
        with contextlib.suppress(OSError):
            assert self._janitor.stdin is not None
            self._janitor.stdin.close()
        self._janitor.wait()


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
