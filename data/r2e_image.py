"""What R2E-Gym's images have on top of the Debian root: /testbed/.venv, the hidden tests, and how they run."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

from data.commands import BuildError
from data.image import add_environment, add_venv, copy_root, run_in_image, said_last
from data.sources import R2ETask

RUN_TESTS = (
    "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' .venv/bin/python -W ignore -m pytest -rA r2e_tests"
)
"""R2E-Gym's run_tests.sh, byte for byte: one line without an end, relative to /testbed."""

_PATH = "/testbed/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def r2e_base(debian: Path, wheels: Sequence[Path], root: Path) -> None:
    """Make what the roots of all R2E form tasks share."""
    copy_root(debian, root)
    add_venv(root, "/testbed/.venv", wheels, "/testbed")
    add_environment(root, {"VIRTUAL_ENV": "/testbed/.venv", "PATH": _PATH})
    (root / "testbed/run_tests.sh").write_text(RUN_TESTS, "utf-8")


def r2e_root(task: R2ETask, base: Path, repository: Path, fixed: Path, root: Path) -> None:
    """Make a task's root: base (by hard links), buggy release as /testbed, hidden tests as /r2e_tests."""
    copy_root(base, root)
    shutil.copytree(repository, root / "testbed", symlinks=True, dirs_exist_ok=True)
    tests = root / "r2e_tests"
    tests.mkdir()
    (tests / "__init__.py").touch()
    for number, name in enumerate(task.tests, 1):
        _copy_test(fixed / name, tests / f"test_{number}.py")
    for name in task.test_support:
        source = fixed / name
        if source.is_dir():
            shutil.copytree(source, tests / source.name)
        else:
            _copy_test(source, tests / source.name)


def _copy_test(source: Path, target: Path) -> None:
    """Copy a test module; what it imports from its own package it now finds in r2e_tests."""
    text = source.read_text("utf-8")
    target.write_text(re.sub(r"^(from|import) tests\b", r"\1 r2e_tests", text, flags=re.MULTILINE), "utf-8")


@dataclass(frozen=True)
class HiddenTests:
    """The hidden tests of one image; each run is in a fresh writable layer without network."""

    sif: Path
    fixed_repository: Path
    """Visible inside as /fixed."""
    scratch: Path

    def run(self, prepare: str = "true", stdin: str = "") -> "CompletedProcess[bytes]":
        """Run the tests after the shell command `prepare` in /testbed. Raises BuildError if that fails."""
        # 9 is none of pytest's own exit codes.
        script = f"{{ {prepare}; }} >&2 && ln -s /r2e_tests r2e_tests || exit 9; exec bash run_tests.sh </dev/null"
        done = run_in_image(self.sif, script, self.scratch, binds={self.fixed_repository: "/fixed"}, stdin=stdin)
        if done.returncode not in (0, 1):
            raise BuildError(
                f"tests in {self.sif.name} after `{prepare}` ended with {done.returncode}, saying: {said_last(done)}; "
                "check that `apptainer exec` works here, then the task's file in data/tasks"
            )
        return done
