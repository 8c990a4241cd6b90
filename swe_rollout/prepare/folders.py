"""What a run keeps beside the SIFs, in `.setup`; what dead runs left there goes."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from swe_rollout.locks import take

SETUP = ".setup"
_PREFIX = "sif-run-"


class RunFolder:
    """A new folder in `parent`, gone with the block; sweeps those of processes that are dead. Raises OSError."""

    def __init__(self, parent: Path) -> None:
        parent.mkdir(parents=True, exist_ok=True)
        for other in parent.glob(f"{_PREFIX}*"):
            _remove_dead(other)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        fd = take(self.path / "lock", create=True)
        if fd is None:
            raise OSError(f"{self.path} was taken by another run")
        self._fd = fd

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *_: object) -> None:
        _remove(self.path)
        os.close(self._fd)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        # Images have folders that their owner cannot write to.
        subprocess.run(["chmod", "-R", "u+rwX", folder], stderr=subprocess.DEVNULL, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_dead(folder: Path) -> None:
    try:
        fd = take(folder / "lock", create=False)
    except OSError:
        with contextlib.suppress(OSError):
            # Its lock went with a removal that something else wrote into. Empty, it may have been made this moment.
            if (any(folder.iterdir()) and not (folder / "lock").exists()) or _is_old(folder):
                _remove(folder)
        return
    if fd is not None:
        _remove(folder)
        os.close(fd)


def _is_old(folder: Path) -> bool:
    with tempfile.NamedTemporaryFile(dir=folder.parent) as now:
        return Path(now.name).stat().st_mtime - folder.stat().st_mtime > 60


class LayerCache:
    """Apptainer's cache for the builds of a run: images of one project share layers. Over `limit` bytes a new one is
    begun, and the old one goes with its last build.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._lock = threading.Lock()
        self._number = 0
        self._builds: dict[int, int] = {}

    @contextlib.contextmanager
    def used(self) -> Iterator[Path]:
        """The cache folder for one build."""
        with self._lock:
            number = self._number
            self._builds[number] = self._builds.get(number, 0) + 1
        path = self._folder / f"cache-{number}"
        path.mkdir(exist_ok=True)
        try:
            yield path
        finally:
            full = _size(path) > self._limit
            with self._lock:
                if full and number == self._number:
                    self._number += 1
                self._builds[number] -= 1
                over = number != self._number and self._builds[number] == 0
            if over:
                _remove(path)


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total
