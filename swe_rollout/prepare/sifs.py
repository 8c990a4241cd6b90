"""Docker images to verified SIFs.

Any number of runs may work on one folder: each image has a lock, finished SIFs appear by rename, and the manifest says
which are good. A run that was killed leaves only what the next one sweeps.
"""

import contextlib
import errno
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from swe_rollout.errors import StartupError
from swe_rollout.prepare.build import Places
from swe_rollout.prepare.folders import SETUP, RunFolder
from swe_rollout.prepare.plan import BuildOptions, BuildReport
from swe_rollout.prepare.work import BuildWork, CheckWork
from swe_rollout.sandbox.images import sif_name


def build_sifs(
    images: Sequence[str], sif_dir: Path, options: BuildOptions, console: Console, stop: threading.Event
) -> BuildReport:
    """Build what is missing or damaged; a failure of one image leaves the others going.

    Raises `StartupError`, one line, when nothing can be built: the folder cannot be written to, no room on the disk,
    no sandbox runs on this machine; `Stopped` if `stop` is set before the first image.
    """
    setup = sif_dir / SETUP
    make_folder(sif_dir)
    with contextlib.ExitStack() as claimed:
        run = _below(setup, "R2E_SIF_DIR", setup, claimed)
        unpacked = _below(os.environ.get("APPTAINER_TMPDIR"), "APPTAINER_TMPDIR", run, claimed)
        cache = _below(os.environ.get("APPTAINER_CACHEDIR"), "APPTAINER_CACHEDIR", run, claimed)
        places = Places(sif_dir, setup / "locks", setup / "logs", run, unpacked, cache)
        return BuildWork(images, places, options, console, stop).run()


def make_folder(sif_dir: Path) -> None:
    """Make the folder, and in it what runs share. Raises `StartupError` if it cannot be written to."""
    setup = sif_dir / SETUP
    try:
        if not sif_dir.exists():
            sif_dir.mkdir(parents=True, exist_ok=True)
            sif_dir.chmod(0o755)
        for folder in (setup, setup / "locks", setup / "logs"):
            folder.mkdir(mode=0o700, exist_ok=True)
        if not os.access(setup, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise StartupError(f"cannot write to {sif_dir}: {error.strerror}; set R2E_SIF_DIR to another") from None


def _below(given: Path | str | None, variable: str, default: Path, claimed: contextlib.ExitStack) -> Path:
    """A folder of the run's own in a folder that the user named."""
    if not given:
        return default
    try:
        return claimed.enter_context(RunFolder(Path(given).absolute())).path
    except OSError as error:
        raise StartupError(f"cannot write to {given}: {error.strerror}; set {variable} to another") from None


def check_sifs(
    images: Sequence[str], sif_dir: Path, options: BuildOptions, console: Console, stop: threading.Event
) -> BuildReport:
    """Look at every SIF, build none: what is missing or damaged is in the report's failures.

    Raises `StartupError`, one line, when no sandbox runs on this machine; `Stopped` if `stop` is set before the first.
    """
    # The SIF folder may be closed to us for writing.
    with tempfile.TemporaryDirectory(prefix="swe-rollout-check-") as name:
        logs = Path(name)
        return CheckWork(images, Places(sif_dir, logs, logs, logs, logs, logs), options, console, stop).run()


def unneeded_sifs(images: Sequence[str], sif_dir: Path) -> list[Path]:
    """The SIFs in the folder that none of `images` is made into."""
    needed = {sif_name(image) for image in images}
    return sorted(sif for sif in sif_dir.glob("*.sif") if sif.name not in needed and sif.is_file())
