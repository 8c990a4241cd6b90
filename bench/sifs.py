"""SIF building beside `apptainer build` with its defaults, and how fast SIFs that were verified are looked at again."""

import os
import re
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from rich.console import Console

from bench.registry import Registry
from swe_rollout.errors import StartupError
from swe_rollout.prepare.plan import BuildOptions
from swe_rollout.prepare.sifs import build_sifs
from swe_rollout.sandbox.images import sif_name

RATIO_TARGET = 2.0
CHECK_TARGET = 5.0
"""Seconds for `N_CHECKED` SIFs."""
N_CHECKED = 200
_IMAGE = "bench/task:v1"


@dataclass(frozen=True)
class SifFigures:
    """Seconds."""

    defaults: float
    ours: float
    """With the question for the digest, the check of the result and its checksum."""
    defaults_bytes: int
    ours_bytes: int
    first: float
    """`N_CHECKED` SIFs that no manifest vouches for: a program is run in each."""
    again: float

    def show(self, console: Console) -> None:
        """Figures and targets."""
        console.print(
            f"one SIF from a registry on loopback: apptainer build with defaults {self.defaults:.1f} s, "
            f"{self.defaults_bytes >> 20} MB; ours {self.ours:.1f} s, {self.ours_bytes >> 20} MB, verified "
            f"(ratio {self.defaults / self.ours:.1f}x, target {RATIO_TARGET}x)"
        )
        console.print(
            f"{N_CHECKED} SIFs: verified for the first time in {self.first:.1f} s, "
            f"looked at again in {self.again:.3f} s (target {CHECK_TARGET:.0f} s)"
        )


def measure_sifs(sif: Path) -> SifFigures:
    """Push the tree of `sif` to a registry and build it both ways. Raises `StartupError` if something cannot work."""
    with tempfile.TemporaryDirectory(prefix="swe-rollout-bench-sifs-") as name:
        folder = Path(name)
        tree = folder / "tree"
        unpack(sif, tree)
        registry = Registry()
        try:
            registry.push(_IMAGE, [tree])
            target = folder / "defaults.sif"
            began = time.perf_counter()
            source = f"docker://127.0.0.1:{registry.port}/{_IMAGE}"
            _run(folder, "apptainer", "build", "--no-https", target, source)
            defaults = time.perf_counter() - began
            began = time.perf_counter()
            _work(folder / "ours", [_IMAGE], registry.url)
            ours = time.perf_counter() - began
        finally:
            registry.close()
        built = folder / "ours" / sif_name(_IMAGE)
        many = [f"bench/task-{number}:v1" for number in range(N_CHECKED)]
        (folder / "many").mkdir()
        for image in many:
            (folder / "many" / sif_name(image)).hardlink_to(built)
        seconds = []
        for _ in range(2):
            began = time.perf_counter()
            _work(folder / "many", many, registry.url)
            seconds.append(time.perf_counter() - began)
        return SifFigures(defaults, ours, target.stat().st_size, built.stat().st_size, *seconds)


def unpack(sif: Path, tree: Path) -> None:
    """Make the folder `tree` of the root filesystem in `sif`."""
    # `apptainer build --sandbox` wants capabilities that root lacks in some containers.
    listed = _run(tree.parent, "apptainer", "sif", "list", sif)
    offset = re.search(r"\|(\d+)-\d+\s*\|FS \(Squashfs", listed)
    if offset is None:
        raise StartupError(f"{sif} has no root filesystem")
    _run(tree.parent, "unsquashfs", "-no-progress", "-o", offset[1], "-d", tree, sif)


def _work(folder: Path, images: list[str], mirror: str) -> None:
    options = BuildOptions(max_jobs=os.cpu_count() or 1, registry_mirror=mirror, min_free_bytes=0, attempts=1)
    report = build_sifs(images, folder, options, Console(file=StringIO()), threading.Event())
    if report.n_built + report.n_kept != len(images):
        raise StartupError(f"SIFs cannot be built here: {next(iter(report.failures.values()), report.note)}")


def _run(folder: Path, *command: str | Path) -> str:
    # A cache of its own, as ours has.
    places = {"APPTAINER_CACHEDIR": str(folder / "cache"), "APPTAINER_TMPDIR": str(folder)}
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env={**os.environ, **places}, check=False
    )
    if done.returncode != 0:
        raise StartupError(f"{command[0]} {command[1]} failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    return done.stdout.decode(errors="replace")
