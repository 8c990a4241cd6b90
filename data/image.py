"""The images: one Debian root for all, a task's files on top, packed as a SIF."""

import contextlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

from data.commands import BuildError, finish, run, run_any, started
from data.sources import SampleTask

RUN_TESTS = (
    "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' .venv/bin/python -W ignore -m pytest -rA r2e_tests"
)
"""R2E-Gym's run_tests.sh, byte for byte: one line without an end, relative to /testbed."""

_ENVIRONMENT = """\
#!/bin/sh
export VIRTUAL_ENV="/testbed/.venv"
export PATH="/testbed/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""
"""Where Apptainer puts the environment of an image that came from Docker."""

_SUITE = "bookworm"
_PACKAGES = "python3,git"
_LEFT_OUT = ("man", "doc", "locale", "info")
_TEST_SECONDS = 300


@contextlib.contextmanager
def base_root(root: Path, wheels: Sequence[Path], log: Path) -> Iterator[None]:
    """Make the root that all images share; the block runs meanwhile, and after it the root is complete."""
    argv: list[str | Path] = ["mmdebstrap", "--variant=essential", f"--include={_PACKAGES}"]
    argv += [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in _LEFT_OUT]
    inside = " ".join(f"/tmp/{wheel.name}" for wheel in wheels if not wheel.name.startswith("pip-"))
    pip = next(f"/tmp/{wheel.name}/pip" for wheel in wheels if wheel.name.startswith("pip-"))
    python = "/testbed/.venv/bin/python"
    for hook in (
        f"copy-in {shlex.join(map(str, wheels))} /tmp",
        'chroot "$1" python3 -m venv --without-pip /testbed/.venv',
        f'chroot "$1" {python} {pip} install -q --no-index --no-cache-dir --root-user-action=ignore {inside}',
        'rm "$1"/tmp/*.whl',
    ):
        argv.append(f"--customize-hook={hook}")
    argv += [_SUITE, root, *_mirror()]
    with started(argv, log) as mmdebstrap:
        yield
        finish(mmdebstrap, log, "mmdebstrap (the images' Debian root)", "check the network and apt's sources")
    _complete(root)


def _mirror() -> list[str]:
    """This machine's Debian mirror, so that a site's own is used; nothing means mmdebstrap's default."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    listed = run_any(targets) if shutil.which("apt-get") else None
    uris = listed.stdout.decode().split() if listed else []
    return [uri for uri in uris if re.search(r"/debian/?$", uri)][:1]


def _complete(root: Path) -> None:
    # mmdebstrap copies these two from the machine that builds.
    (root / "etc/hostname").write_text("testbed\n", "utf-8")
    (root / "etc/resolv.conf").write_text("", "utf-8")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n", "utf-8")
    environment = root / ".singularity.d/env"
    environment.mkdir(parents=True)
    (environment / "10-docker2singularity.sh").write_text(_ENVIRONMENT, "utf-8")
    testbed = root / "testbed"
    (testbed / "run_tests.sh").write_text(RUN_TESTS, "utf-8")
    # What an editable install comes down to: the project is imported from its sources.
    site_packages = next((testbed / ".venv/lib").glob("python3*/site-packages"))
    (site_packages / "testbed.pth").write_text("/testbed\n", "utf-8")


def task_root(task: SampleTask, base: Path, repository: Path, fixed: Path, root: Path) -> None:
    """Make a task's root: base (by hard links), buggy release as /testbed, hidden tests as /r2e_tests."""
    run(["cp", "-al", base, root], f"copying the base root to {root}", "check the free disk space")
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


def build_sif(root: Path, sif: Path) -> None:
    """Pack a root as a SIF."""
    squashfs = "-comp zstd -Xcompression-level 3"
    run(
        ["apptainer", "--silent", "build", "--force", "--mksquashfs-args", squashfs, sif, root],
        f"packing {sif.name}",
        "check the free disk space",
        env={"APPTAINER_TMPDIR": str(sif.parent)},
    )


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
        with tempfile.TemporaryDirectory(dir=self.scratch) as overlay:
            argv = ["apptainer", "--silent", "exec", "--contain", "--cleanenv", "--no-home", "--no-mount", "tmp"]
            argv += ["--no-privs", "--pid", "--ipc", "--net", "--network", "none", "--overlay", overlay]
            argv += ["--bind", f"{self.fixed_repository}:/fixed:ro", "--pwd", "/testbed", str(self.sif)]
            try:
                done = run_any([*argv, "bash", "-c", script], stdin=stdin.encode(), timeout=_TEST_SECONDS)
            except TimeoutExpired as error:
                raise BuildError(f"tests in {self.sif.name} took over {_TEST_SECONDS} s; run this again") from error
        if done.returncode not in (0, 1):
            said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines() or ["nothing"]
            raise BuildError(
                f"tests in {self.sif.name} after `{prepare}` ended with {done.returncode}, saying: {said[-1]}; "
                "check that `apptainer exec` works here, then the task's file in data/tasks"
            )
        return done
