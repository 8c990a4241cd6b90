"""Is a SIF good: as long as it says, and a program runs in it. Whether any would run on this machine is asked first."""

import platform
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from swe_rollout.errors import ImageError, StartupError
from swe_rollout.prepare import children
from swe_rollout.prepare.faults import Transient, Unproven
from swe_rollout.sandbox.images import check_sif
from swe_rollout.sandbox.probe import INSTALL_GUIDE, tiny_root

_SILENT = ("apptainer", "--silent")
_RUN = (*_SILENT, "exec", "--contain", "--cleanenv", "--no-home", "--no-mount", "tmp", "--no-privs", "--pid")
_TRIAL_SECONDS = 120.0


def verify(sif: Path, log: Path, stop: threading.Event, seconds: float) -> None:
    """Raise `ImageError` with one line if `sif` is damaged, `Unproven` if that is not clear after `seconds`, `Stopped`
    if `stop` is set meanwhile.
    """
    check_sif(sif)
    try:
        said = _complaint([*_RUN, sif, "true"], log, stop, seconds)
    except Transient:
        raise Unproven(f"`true` has not ended within {seconds:.0f} s in {sif}: is this machine too busy?") from None
    if said:
        raise ImageError(f"image {sif}: `true` fails in it ({said}); build it again")


def try_machine(stop: threading.Event) -> None:
    """Raise `StartupError` if not even a tiny image of our own is found good here, `Stopped` if `stop` is set."""
    with tempfile.TemporaryDirectory(prefix="swe-rollout-trial-") as name:
        folder = Path(name)
        sif, log = folder / "tiny.sif", folder / "log"
        try:
            said = _complaint(
                [*_SILENT, "build", sif, tiny_root(folder)], log, stop, _TRIAL_SECONDS, {"APPTAINER_TMPDIR": name}
            )
            said = said or _complaint([*_RUN, sif, "true"], log, stop, _TRIAL_SECONDS)
        except Transient:
            said = f"not ended within {_TRIAL_SECONDS:.0f} s"
    if said:
        raise StartupError(
            f"no image can be verified on {platform.node()}, where not even a tiny one works ({said}): mend that"
            " (often it is /dev/fuse, user namespaces, or a variable APPTAINER_*), or take another machine; installing"
            f" Apptainer: {INSTALL_GUIDE}"
        )


def _complaint(
    argv: Sequence[str | Path],
    log: Path,
    stop: threading.Event,
    seconds: float,
    env: Mapping[str, str] | None = None,
) -> str:
    """The last line that a program says which fails; "" if it works. Raises `Stopped`, `Transient` after `seconds`."""
    begin = log.stat().st_size if log.exists() else 0
    if children.run(argv, log, stop, seconds, env) == 0:
        return ""
    with log.open("rb") as file:
        file.seek(begin)
        said = file.read().decode(errors="replace").strip().splitlines()
    return (said or ["nothing said"])[-1][-200:]
