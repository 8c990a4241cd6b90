"""One real sandbox before any session is taken: what this machine cannot do is said at once, in one line.

`python -m swe_rollout.sandbox.probe` does it with a tiny image of its own, for a machine without tasks.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import AgentFault, ImageError, SandboxError, StartupError
from swe_rollout.sandbox.confinement import Confinement, choose
from swe_rollout.sandbox.sandbox import SandboxHost, running
from swe_rollout.sandbox.scratch import Scratch

INSTALL_GUIDE = "https://apptainer.org/docs/admin/main/installation.html"
_SECONDS = 60.0
# What an agent does to its tree: new folders, renames, links, modes, programs of its own.
_EXERCISE = r"""
set -e
mkdir /.probe /.probe/old && mv /.probe/old /.probe/new
printf '#!/bin/bash\nexit 7\n' >/.probe/new/program && chmod 755 /.probe/new/program
ln -s program /.probe/new/link
/.probe/new/link || [ $? = 7 ]
rm -rf /.probe
"""


def check_apptainer(apptainer: str = "apptainer") -> None:
    """Raise `StartupError` unless the program is there."""
    if shutil.which(apptainer) is None:
        raise StartupError(f"no {apptainer} on PATH: run `make setup`, or install it: {INSTALL_GUIDE}")


def open_scratch(tmp_dir: Path, run_id: str, confinement: Confinement) -> Scratch:
    """The server's scratch folder. Raises `StartupError` naming the setting when it cannot be made."""
    try:
        return Scratch(tmp_dir, run_id, confinement)
    except OSError as error:
        raise StartupError(
            f"cannot make a scratch folder: {error}; set AGENT_SERVER_TMP_DIR to a folder on a local disk"
        ) from None


def try_sandbox(host: SandboxHost, *images: Path) -> None:
    """Start one sandbox from the first of `images` and use it; of the others, look whether sandboxes can read them.

    Raises `StartupError` that says what to set.
    """
    confinement, scratch = host.confinement, host.scratch.folder
    if not _may(confinement, "-x", scratch):
        raise StartupError(
            f"sandboxes cannot enter {scratch} ({confinement.reason}): "
            "set AGENT_SERVER_TMP_DIR to a folder that every user can enter, for example below /tmp"
        )
    if closed := _closed(confinement, images):
        more = f" and {len(closed) - 1} more" if len(closed) > 1 else ""
        raise StartupError(
            f"sandboxes cannot read {closed[0]}{more} ({confinement.reason}): make the file and the folders above it "
            "readable for every user (chmod o+rX), or set R2E_SIF_DIR to such a folder"
        )
    if confinement.needs_fuse and not (
        _may(confinement, "-r", Path("/dev/fuse")) and _may(confinement, "-w", Path("/dev/fuse"))
    ):
        raise StartupError(
            f"/dev/fuse is missing or closed to sandboxes ({confinement.reason}): open it with `chmod 666 /dev/fuse`"
        )
    try:
        with running(host, images[0], Cancellation()) as sandbox:
            result = sandbox.run(_EXERCISE, timeout=_SECONDS, cancellation=Cancellation())
    except ImageError as error:
        raise StartupError(str(error)) from None
    except (SandboxError, AgentFault) as error:
        raise StartupError(f"{error} ({_advice(scratch)})") from None
    if result.returncode != 0 or result.timed_out:
        raise StartupError(
            f"a sandbox starts but cannot be written to: {result.output.strip()[-300:]} ({_advice(scratch)})"
        )


def _may(confinement: Confinement, right: str, path: Path) -> bool:
    return subprocess.run([*confinement.drop(), "test", right, path], check=False).returncode == 0


def _closed(confinement: Confinement, images: Sequence[Path]) -> list[str]:
    """Those that the sandboxes' user may not read, or all if that cannot be seen; one process for thousands."""
    look = 'while IFS= read -r -d "" image; do [ -r "$image" ] || printf "%s\\0" "$image"; done'
    names = b"".join(os.fsencode(image) + b"\0" for image in images)
    found = subprocess.run([*confinement.drop(), "bash", "-c", look], input=names, stdout=subprocess.PIPE, check=False)
    if found.returncode != 0:
        return [str(image) for image in images]
    return [os.fsdecode(name) for name in found.stdout.split(b"\0") if name]


def _advice(scratch: Path) -> str:
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", scratch], capture_output=True, text=True, check=False
    ).stdout.strip()
    return (
        f"the scratch folder {scratch.parent} is on {kind or 'an unknown filesystem'}; if that cannot hold a "
        "sandbox's layer, set AGENT_SERVER_TMP_DIR to a folder on a local disk such as ext4, xfs or tmpfs"
    )


def tiny_root(folder: Path) -> Path:
    """The root of an image with bash, what the probe calls, and their libraries; made in `folder`."""
    root = folder / "root"
    for name in ("proc", "sys", "dev", "tmp", "etc", "root", "usr", "var"):
        (root / name).mkdir(parents=True)
    programs = [
        Path("/bin/bash"),
        Path("/bin/sh"),
        *(Path(shutil.which(name) or name) for name in ("cp", "mkdir", "mv", "chmod", "ln", "rm", "true")),
    ]
    libraries = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout.split()
    for path in {*programs, *(Path(word) for word in libraries if word.startswith("/") and not word.endswith(":"))}:
        target = root / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return root


def _tiny_image(folder: Path) -> Path:
    image = folder / "probe.sif"
    root = tiny_root(folder)
    built = subprocess.run(["apptainer", "--silent", "build", image, root], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        raise StartupError(f"apptainer cannot build an image: {built.stderr.strip()[-300:]}")
    return image


def main() -> int:
    """Say in one line which confinement works here, or why none does."""
    user = os.environ.get("AGENT_SERVER_SANDBOX_USER", "swe-sandbox")
    try:
        check_apptainer()
        confinement = choose(os.environ.get("AGENT_SERVER_CONFINEMENT", "auto"), user)
        with tempfile.TemporaryDirectory(prefix="swe-rollout-probe-") as name:
            folder = Path(name)
            folder.chmod(0o755)
            scratch = open_scratch(folder, "probe", confinement)
            try:
                try_sandbox(SandboxHost(confinement, scratch, cwd="/"), _tiny_image(folder))
            finally:
                scratch.close()
    except StartupError as error:
        print(f"no sandbox can run on this machine: {error}; installing Apptainer: {INSTALL_GUIDE}", file=sys.stderr)
        return 1
    print(f"sandboxes work; confinement {confinement.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
