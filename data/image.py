"""The images: one Debian root for all, a Python environment and a task's files on top, packed as a SIF."""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired

from data.commands import BuildError, finish, run, run_any, started

_SUITE = "bookworm"
_PACKAGES = "python3,git"
_LEFT_OUT = ("man", "doc", "locale", "info")
_TEST_SECONDS = 300


@contextlib.contextmanager
def debian_root(root: Path, log: Path) -> Iterator[None]:
    """Make the root that all images share; the block runs meanwhile, and after it the root is complete."""
    # In a mount namespace of its own: what it mounts in the root goes with it, however it ends. Nobody shall remove a
    # half-made root with this machine's /proc and /dev in it.
    argv: list[str | Path] = ["unshare", "--mount", "mmdebstrap", "--variant=essential", f"--include={_PACKAGES}"]
    argv += [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in _LEFT_OUT]
    argv += [_SUITE, root, *_mirror()]
    with started(argv, log) as mmdebstrap:
        yield
        finish(mmdebstrap, log, "mmdebstrap (the images' Debian root)", "check the network and apt's sources")
    # mmdebstrap copies these two from the machine that builds.
    (root / "etc/hostname").write_text("testbed\n", "utf-8")
    (root / "etc/resolv.conf").write_text("", "utf-8")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n", "utf-8")


def _mirror() -> list[str]:
    """This machine's Debian mirror, so that a site's own is used; nothing means mmdebstrap's default."""
    targets = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    listed = run_any(targets) if shutil.which("apt-get") else None
    uris = listed.stdout.decode().split() if listed else []
    return [uri for uri in uris if re.search(r"/debian/?$", uri)][:1]


def copy_root(base: Path, root: Path) -> None:
    """Copy a root by hard links: what is then written must be new files, never a change of one that is there."""
    run(["cp", "-al", base, root], f"copying the root {base}", "check the free disk space")


def add_venv(root: Path, venv: str, wheels: Sequence[Path], sources: str) -> None:
    """Make a virtual environment at the path `venv` inside `root`, with `wheels`.

    One of the wheels is pip itself, which only installs the others. The project is imported from the folder
    `sources` inside, which is what an editable install comes down to.
    """
    for wheel in wheels:
        shutil.copy(wheel, root / "tmp")
    inside = [f"/tmp/{wheel.name}" for wheel in wheels]
    (pip,) = [path for path in inside if path.startswith("/tmp/pip-")]
    install = ["install", "-q", "--no-index", "--no-cache-dir", "--root-user-action=ignore"]
    remedy = "check the free disk space, then run this again"
    run(["chroot", root, "python3", "-m", "venv", "--without-pip", venv], f"making {venv}", remedy)
    python = f"{venv}/bin/python"
    others = [path for path in inside if path != pip]
    run(["chroot", root, python, f"{pip}/pip", *install, *others], f"installing packages in {venv}", remedy)
    for path in inside:
        (root / path.lstrip("/")).unlink()
    site_packages = next((root / venv.lstrip("/") / "lib").glob("python3*/site-packages"))
    (site_packages / "testbed.pth").write_text(f"{sources}\n", "utf-8")


def add_environment(root: Path, variables: Mapping[str, str]) -> None:
    """Set the variables that an image from Docker would bring, where Apptainer puts these."""
    folder = root / ".singularity.d/env"
    folder.mkdir(parents=True)
    exports = "".join(f'export {name}="{value}"\n' for name, value in variables.items())
    (folder / "10-docker2singularity.sh").write_text(f"#!/bin/sh\n{exports}", "utf-8")


def build_sif(root: Path, sif: Path) -> None:
    """Pack a root as a SIF."""
    squashfs = "-comp zstd -Xcompression-level 3"
    run(
        ["apptainer", "--silent", "build", "--force", "--mksquashfs-args", squashfs, sif, root],
        f"packing {sif.name}",
        "check the free disk space",
        env={"APPTAINER_TMPDIR": str(sif.parent)},
    )


def run_in_image(
    sif: Path, script: str, scratch: Path, *, binds: Mapping[Path, str], stdin: str = ""
) -> "CompletedProcess[bytes]":
    """Run a bash script that runs tests in /testbed of an image, in a fresh writable layer without network.

    `binds` are what it sees of this machine, read-only. Raises BuildError after five minutes.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as overlay:
        argv = ["apptainer", "--silent", "exec", "--contain", "--cleanenv", "--no-home", "--no-mount", "tmp"]
        argv += ["--no-privs", "--pid", "--ipc", "--net", "--network", "none", "--overlay", overlay]
        for here, inside in binds.items():
            argv += ["--bind", f"{here}:{inside}:ro"]
        argv += ["--pwd", "/testbed", str(sif)]
        try:
            return run_any([*argv, "bash", "-c", script], stdin=stdin.encode(), timeout=_TEST_SECONDS)
        except TimeoutExpired as error:
            raise BuildError(f"tests in {sif.name} took over {_TEST_SECONDS} s; run this again") from error


def said_last(done: "CompletedProcess[bytes]") -> str:
    """The last line that a program printed."""
    return ((done.stderr or done.stdout).decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
