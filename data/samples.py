"""From releases to finished samples: fetch, build, test, and only then put in place."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from data.commands import BuildError, need, say
from data.image import HiddenTests, base_root, build_sif, task_root
from data.parsed_commit import parse_commit
from data.repository import commit_fix, commit_release
from data.rows import make_row, run_tests, write_parquet
from data.sources import SampleTask, fetch_sdists, fetch_wheels, load_tasks, unpack

_STAGING = ".staging-"
_PARQUET = Path("data/R2E-Gym-Subset/data/train-00000-of-00001.parquet")


def build_samples(root: Path) -> list[Path]:
    """Build all samples and put them under `root`; returns the finished files, relative to `root`.

    Works in a folder beside them, so `root` never holds a half-written file. Raises BuildError.
    """
    if os.geteuid() != 0:
        raise BuildError("the sample images have files of root: run this as root")
    for program, package in (("git", "git"), ("mmdebstrap", "mmdebstrap"), ("apptainer", "Apptainer")):
        need(program, package)
    # What goes into the images must be readable there whatever the umask here.
    os.umask(0o022)
    for left in root.glob(f"{_STAGING}*"):
        # A build that was killed may have left a program that still writes there.
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_STAGING, dir=root, ignore_cleanup_errors=True) as name:
        staging = Path(name)
        finished = _build(staging)
        for file in finished:
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (staging / file).replace(root / file)
    return finished


def _build(staging: Path) -> list[Path]:
    tasks = load_tasks()
    say("base", "fetching pytest for the images")
    wheels = fetch_wheels(staging / "wheels")
    say("base", "building the Debian root that all images share")
    with base_root(staging / "base", wheels, staging / "base.log"):
        fetch_sdists([task.buggy for task in tasks], staging / "sdists")
        fetch_sdists([task.fixed for task in tasks], staging / "sdists")
        say("sources", f"fetched {', '.join(task.project for task in tasks)}")
    (staging / "sifs").mkdir()
    rows: list[dict[str, Any]] = []
    sifs: list[Path] = []
    for task in tasks:
        row, sif = _build_task(task, staging)
        rows.append(row)
        sifs.append(sif)
    (staging / _PARQUET).parent.mkdir(parents=True)
    write_parquet(rows, staging / _PARQUET)
    # In the order in which they are put in place: no row without its image.
    return [*sifs, _PARQUET]


def _build_task(task: SampleTask, staging: Path) -> tuple[dict[str, Any], Path]:
    work = staging / task.project
    work.mkdir()
    repository = unpack(task.buggy, staging / "sdists", work / "buggy")
    fixed = unpack(task.fixed, staging / "sdists", work / "fixed")
    old = commit_release(repository, f"{task.project} {task.buggy.version}")
    new = commit_fix(task, repository, fixed, work / "fixed_repository")
    image = f"swe-rollout-samples/{task.project}_final:{new}"
    sif = Path("sifs", image.replace("/", "__").replace(":", "__") + ".sif")

    task_root(task, staging / "base", repository, fixed, work / "root")
    say(task.project, "packing the image")
    build_sif(work / "root", staging / sif)
    megabytes = (staging / sif).stat().st_size / 1e6
    say(task.project, f"image of {megabytes:.0f} MB built; running the hidden tests")
    parsed = parse_commit(work / "fixed_repository", old, new)
    tests = HiddenTests(staging / sif, work / "fixed_repository", work)
    runs = run_tests(task, tests, parsed)
    say(task.project, f"{len(runs.mended)} of {len(runs.expected)} tests fail before the fix, and pass after it")
    return make_row(task, image, parsed, work / "root/r2e_tests", runs), sif
