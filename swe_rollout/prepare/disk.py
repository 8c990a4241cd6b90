"""Is there room: asked before the first build and before each one."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from swe_rollout.errors import StartupError

_TYPICAL_SIF = 600_000_000
"""Bytes; compressed images of R2E-Gym take 300 to 950 MB."""


def check_room(n_missing: int, mean_size: float | None, sif_dir: Path, tmp_dir: Path, min_free: int) -> None:
    """Raise `StartupError` if that many SIFs will not fit. `mean_size`: bytes per SIF, None if none is known."""
    each = mean_size or _TYPICAL_SIF
    need, free = n_missing * each, shutil.disk_usage(sif_dir).free
    if n_missing and need + min_free > free:
        raise StartupError(
            f"not enough room in {sif_dir}: {n_missing} SIFs need about {gb(need)} ({gb(each)} each) and "
            f"{gb(min_free)} must stay free, but only {gb(free)} are free: "
            f"take fewer with --limit or --repos, or another R2E_SIF_DIR"
        )
    if n_missing and (short := too_low([tmp_dir], min_free)):
        raise StartupError(f"{short}: free some, or set APPTAINER_TMPDIR to a folder on a larger disk")


def too_low(folders: Iterable[Path], min_free: int) -> str:
    """Names the first folder with less than `min_free` bytes left; "" if there is none."""
    for folder in folders:
        free = shutil.disk_usage(folder).free
        if free < min_free:
            return f"only {gb(free)} are free in {folder}, less than the {gb(min_free)} that must stay free"
    return ""


def gb(n_bytes: float) -> str:
    """Bytes for people."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
