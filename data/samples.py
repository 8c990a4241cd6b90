"""From releases to finished samples: fetch, build, test, and only then put in place."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from data import rows, swebench_rows
from data.commands import BuildError, need, say
from data.image import build_sif, debian_root
from data.parsed_commit import parse_commit
from data.r2e_image import HiddenTests, r2e_base, r2e_root
from data.repository import commit_fix, commit_nothing, commit_release, commit_tests, git
from data.sources import (
    R2ETask,
    SampleTask,
    SWEBenchTask,
    fetch_sdists,
    fetch_testbed_wheels,
    fetch_venv_wheels,
    load_r2e_tasks,
    load_swebench_tasks,
    unpack,
)
from data.swebench_image import swebench_base, swebench_root

_STAGING = ".staging-"
_R2E_PARQUET = Path("data/R2E-Gym-Subset/data/train-00000-of-00001.parquet")
_SWEBENCH_PARQUET = Path("data/SWE-Bench-Verified/data/test-00000-of-00001.parquet")


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
    r2e, swebench = load_r2e_tasks(), load_swebench_tasks()
    tasks: list[SampleTask] = [*r2e, *swebench]
    say("base", "building the Debian root that all images share")
    with debian_root(staging / "debian", staging / "debian.log"):
        wheels = fetch_venv_wheels(staging / "wheels")
        more_wheels = fetch_testbed_wheels(staging / "testbed-wheels")
        fetch_sdists([task.buggy for task in tasks], staging / "sdists")
        fetch_sdists([task.fixed for task in tasks], staging / "sdists")
        say("sources", f"fetched {', '.join(task.project for task in tasks)}")
    (staging / "sifs").mkdir()
    sifs: list[Path] = []

    r2e_base(staging / "debian", wheels, staging / "r2e")
    train_rows = [_build_r2e(task, staging, sifs) for task in r2e]
    (staging / _R2E_PARQUET).parent.mkdir(parents=True)
    rows.write_parquet(train_rows, staging / _R2E_PARQUET)

    swebench_base(staging / "debian", [*wheels, *more_wheels], staging / "swebench")
    eval_rows = [row for task in swebench for row in _build_swebench(task, staging, sifs)]
    (staging / _SWEBENCH_PARQUET).parent.mkdir(parents=True)
    swebench_rows.write_parquet(eval_rows, staging / _SWEBENCH_PARQUET)
    # In the order in which they are put in place: no row without its image.
    return [*sifs, _R2E_PARQUET, _SWEBENCH_PARQUET]


def _build_r2e(task: R2ETask, staging: Path, sifs: list[Path]) -> dict[str, object]:
    """Build a task's image, which is added to `sifs`; its row."""
    work = staging / task.project
    repository, fixed, old = _unpack(task, staging, work)
    new = commit_fix(task, repository, fixed, work / "fixed_repository")
    image = f"swe-rollout-samples/{task.project}_final:{new}"
    r2e_root(task, staging / "r2e", repository, fixed, work / "root")
    sif = _pack(task.project, image, work / "root", staging, sifs)
    parsed = parse_commit(work / "fixed_repository", old, new)
    tests = HiddenTests(sif, work / "fixed_repository", work)
    runs = rows.run_tests(task, tests, parsed)
    say(task.project, f"{len(runs.mended)} of {len(runs.expected)} tests fail before the fix, and pass after it")
    return rows.make_row(task, image, parsed, work / "root/r2e_tests", runs)


def _build_swebench(task: SWEBenchTask, staging: Path, sifs: list[Path]) -> list[swebench_rows.Row]:
    """Build the images of a task's rows, which are added to `sifs`; the rows."""
    # It takes four seconds to import.
    from data.swebench_runs import measured

    work = staging / task.project
    repository, fixed, base = _unpack(task, staging, work)
    new = commit_fix(task, repository, fixed, work / "fixed_repository")
    tested = commit_tests(task, work / "fixed_repository", fixed)
    patches = [git(work / "fixed_repository", "diff", *commits) for commits in ((base, new), (new, tested))]
    # As in the official images, HEAD is not the base commit.
    commit_nothing(repository, "SWE-bench")
    script = swebench_rows.eval_script(task, base, patches[1])
    finished = []
    for row, baked in (
        (swebench_rows.baked_row(task, 1001, base, *patches), script),
        (swebench_rows.scripted_row(task, 1002, base, *patches), None),
    ):
        root = work / row["instance_id"]
        swebench_root(staging / "swebench", repository, root, baked)
        sif = _pack(task.project, swebench_rows.image_of(row), root, staging, sifs)
        finished.append(measured(row, sif, work))
        counts = [len(json.loads(finished[-1][name])) for name in ("FAIL_TO_PASS", "PASS_TO_PASS")]
        say(task.project, f"{counts[0]} tests fail before the fix and pass after it, {counts[1]} pass in both")
    return finished


def _unpack(task: SampleTask, staging: Path, work: Path) -> tuple[Path, Path, str]:
    """The repository with the buggy release, the files of the fixed one, and the hash of the base commit."""
    work.mkdir()
    repository = unpack(task.buggy, staging / "sdists", work / "buggy")
    fixed = unpack(task.fixed, staging / "sdists", work / "fixed")
    return repository, fixed, commit_release(repository, f"{task.project} {task.buggy.version}")


def _pack(project: str, image: str, root: Path, staging: Path, sifs: list[Path]) -> Path:
    say(project, "packing the image")
    sif = Path("sifs", image.replace("/", "__").replace(":", "__") + ".sif")
    build_sif(root, staging / sif)
    sifs.append(sif)
    say(project, f"image of {(staging / sif).stat().st_size / 1e6:.0f} MB built; running the hidden tests")
    return staging / sif
