"""What a sample task is made from, and how the releases get here."""

import importlib.util
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data.commands import BuildError, need, run

_HERE = Path(__file__).parent
_VENV = _HERE / "venv-requirements.txt"
_TESTBED = _HERE / "testbed-requirements.txt"
IMAGE_PYTHON = "3.11"
"""The Python of Debian bookworm, which the wheels must fit."""

_NETWORK = "check the network and pip's package index, then run this again"


@dataclass(frozen=True)
class Release:
    """One release of a project, pinned by the hash of its sdist."""

    project: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True)
class SampleTask:
    """A bug of a real release that a later release mended."""

    project: str
    buggy: Release
    fixed: Release
    sources: tuple[str, ...]
    """Files and folders whose `.py` files make up the fix; tests and packaging stay out."""
    tests: tuple[str, ...]
    """Test files of the fixed release that show the bug."""
    problem_statement: str


@dataclass(frozen=True)
class R2ETask(SampleTask):
    """One file of `tasks/`. Its `tests` become the hidden test_1.py, test_2.py, ..."""

    test_support: tuple[str, ...]
    """Files and folders of the fixed release that the tests need beside them."""


@dataclass(frozen=True)
class SWEBenchTask(SampleTask):
    """One file of `tasks/swebench/`. What the fixed release changed in its `tests` is the test patch."""

    repo: str
    """`owner/name`, by which the harness finds its log parser."""
    version: str
    created_at: str


def load_r2e_tasks() -> list[R2ETask]:
    """All tasks in R2E-Gym's form, by name of their project."""
    return [R2ETask(**_common(raw), test_support=tuple(raw["test_support"])) for raw in _read("tasks")]


def load_swebench_tasks() -> list[SWEBenchTask]:
    """All tasks in SWE-bench's form, by name of their project."""
    more = ("repo", "version", "created_at")
    return [SWEBenchTask(**_common(raw), **{name: raw[name] for name in more}) for raw in _read("tasks/swebench")]


def _read(folder: str) -> list[dict[str, Any]]:
    return [yaml.safe_load(file.read_text("utf-8")) for file in sorted((_HERE / folder).glob("*.yaml"))]


def _common(raw: dict[str, Any]) -> dict[str, Any]:
    return {
        "project": raw["project"],
        "buggy": Release(raw["project"], **raw["buggy"]),
        "fixed": Release(raw["project"], **raw["fixed"]),
        "sources": tuple(raw["sources"]),
        "tests": tuple(raw["tests"]),
        "problem_statement": raw["problem_statement"].strip(),
    }


def fetch_venv_wheels(to: Path) -> list[Path]:
    """Download what every image's environment holds, pip itself included, and return the wheels."""
    return _fetch_wheels("pytest", _VENV, to)


def fetch_testbed_wheels(to: Path) -> list[Path]:
    """Download what the testbed environment of SWE-bench form images holds beside that, and return the wheels."""
    return _fetch_wheels("what SWE-bench form tests need", _TESTBED, to)


def _fetch_wheels(what: str, requirements: Path, to: Path) -> list[Path]:
    _pip_download(what, requirements, to, ["--only-binary", ":all:", "--python-version", IMAGE_PYTHON])
    return sorted(to.glob("*.whl"))


def fetch_sdists(releases: Sequence[Release], to: Path) -> None:
    """Download the sdists of releases of different projects (pip takes one version of each at a time)."""
    to.mkdir(parents=True, exist_ok=True)
    wanted = to / "requirements.txt"
    wanted.write_text("".join(f"{release.requirement}\n" for release in releases), "utf-8")
    # Only the projects themselves: with ":all:" pip would build their build tools from source, too.
    names = [release.project for release in releases]
    _pip_download(f"the sdists of {', '.join(names)}", wanted, to, ["--no-binary", ",".join(names)])


def unpack(release: Release, downloads: Path, to: Path) -> Path:
    """Lay the files of a fetched sdist down in `to`, without what only packaging adds."""
    archives = list(downloads.glob(f"{release.project}-{release.version}.tar.gz"))
    if not archives:
        raise BuildError(f"pip brought no {release.project}-{release.version}.tar.gz; {_NETWORK}")
    packed = to.with_name(f"{to.name}.packed")
    packed.mkdir(parents=True)
    run(
        ["tar", "-xzf", archives[0], "-C", packed, "--strip-components=1", "--no-same-owner"],
        f"unpacking {archives[0].name}",
        "run this again",
    )
    not_source = shutil.ignore_patterns("PKG-INFO", "*.egg-info", "__pycache__", "*.pyc")
    shutil.copytree(packed, to, symlinks=True, ignore=not_source)
    shutil.rmtree(packed)
    return to


def _pip_download(what: str, requirements: Path, to: Path, flags: Sequence[str]) -> None:
    to.mkdir(parents=True, exist_ok=True)
    common = ["download", "-q", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    run(
        [*_pip(), *common, *flags, "-d", to, "-r", requirements],
        f"downloading {what}",
        _NETWORK,
    )


def _pip() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    return [need("pip3", "Python's pip (Debian: python3-pip)")]
