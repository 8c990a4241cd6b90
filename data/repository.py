"""The git histories of a sample task: its release for the image, and the fix on top of that elsewhere."""

import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from data.commands import run
from data.sources import SampleTask

FIX_DATE = "2020-01-02T00:00:00+00:00"
_BUGGY_DATE = "2020-01-01T00:00:00+00:00"
_IDENTITY = {
    "GIT_AUTHOR_NAME": "sample",
    "GIT_AUTHOR_EMAIL": "sample@localhost",
    "GIT_COMMITTER_NAME": "sample",
    "GIT_COMMITTER_EMAIL": "sample@localhost",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
"""Names, dates and no configuration of this machine: the same files give the same hashes everywhere."""

_UNTRACKED = "/.venv\n/run_tests.sh\n/r2e_tests\n__pycache__/\n"


def git(repository: Path, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Standard output of a git command in `repository`, byte for byte. Raises BuildError if it fails."""
    out = run(
        ["git", *arguments],
        f"`git {arguments[0]}` in {repository}",
        "check git's installation and the free disk space",
        env={**_IDENTITY, **(env or {})},
        cwd=repository,
    )
    return out.decode("utf-8")


def commit_release(tree: Path, message: str) -> str:
    """Turn a folder into a repository with its files as the only commit; returns the commit's hash."""
    git(tree, "init", "-q", "-b", "main", "--template=")
    info = tree / ".git/info"
    info.mkdir(exist_ok=True)
    (info / "exclude").write_text(_UNTRACKED, "utf-8")
    return _commit_all(tree, message, _BUGGY_DATE)


def commit_fix(task: SampleTask, buggy: Path, fixed: Path, scratch: Path) -> str:
    """Copy the repository `buggy` to `scratch`, commit the fixed sources there and return the hash."""
    shutil.copytree(buggy, scratch, symlinks=True)
    for file in _sources(task, scratch):
        (scratch / file).unlink()
    for file in _sources(task, fixed):
        (scratch / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(fixed / file, scratch / file)
    return _commit_all(scratch, f"{task.project} {task.fixed.version}, sources only", FIX_DATE)


def commit_tests(task: SampleTask, repository: Path, fixed: Path) -> str:
    """Commit the fixed release's tests of the task in `repository` and return the hash."""
    for name in task.tests:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(fixed / name, repository / name)
    return _commit_all(repository, f"{task.project} {task.fixed.version}, tests", FIX_DATE)


def commit_nothing(repository: Path, message: str) -> None:
    """Put an empty commit on top."""
    git(repository, "commit", "-q", "--no-verify", "--allow-empty", "-m", message, env=_dates(_BUGGY_DATE))


def is_test_file(path: str) -> bool:
    """R2E-Gym's rule for what counts as a test."""
    parts = PurePosixPath(path).parts
    return (
        path.endswith("_test.py")
        or parts[0].startswith("test_")
        or parts[-1].startswith("test_")
        or not {"tests", "Tests", "test", "Test"}.isdisjoint(parts)
    )


def _sources(task: SampleTask, tree: Path) -> list[Path]:
    found: list[Path] = []
    for name in task.sources:
        top = tree / name
        found += sorted(top.rglob("*.py")) if top.is_dir() else [top]
    files = [file.relative_to(tree) for file in found]
    return [file for file in files if not is_test_file(file.as_posix())]


def _commit_all(tree: Path, message: str, date: str) -> str:
    # --force: what a release ships is source, whatever its .gitignore says.
    git(tree, "add", "--all", "--force")
    git(tree, "commit", "-q", "--no-verify", "-m", message, env=_dates(date))
    # One pack instead of hundreds of loose objects in the image.
    git(tree, "gc", "--quiet", "--prune=now")
    return git(tree, "rev-parse", "HEAD").strip()


def _dates(date: str) -> dict[str, str]:
    return {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
