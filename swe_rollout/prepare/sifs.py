"""Docker images to verified SIFs."""

import threading
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from swe_rollout.prepare.plan import BuildOptions, BuildReport

__all__ = ["BuildOptions", "BuildReport", "build_sifs", "check_sifs", "unneeded_sifs"]


def build_sifs(
    images: Sequence[str], sif_dir: Path, options: BuildOptions, console: Console, stop: threading.Event
) -> BuildReport:
    """Build what is missing or damaged; a failure of one image leaves the others going.

    Raises `StartupError`, one line, when nothing can be built: the folder cannot be written to, no room on the disk.
    """
    raise NotImplementedError


def check_sifs(
    images: Sequence[str], sif_dir: Path, options: BuildOptions, console: Console, stop: threading.Event
) -> BuildReport:
    """Look at every SIF, build none: what is missing or damaged is in the report's failures."""
    raise NotImplementedError


def unneeded_sifs(images: Sequence[str], sif_dir: Path) -> list[Path]:
    """The SIFs in the folder that none of `images` is made into."""
    raise NotImplementedError
