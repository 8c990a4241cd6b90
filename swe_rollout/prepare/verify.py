"""Is a SIF good: as long as it says, and a program runs in it."""

import threading
from pathlib import Path

from swe_rollout.errors import ImageError
from swe_rollout.prepare import children
from swe_rollout.prepare.faults import Transient
from swe_rollout.sandbox.images import check_sif

_RUN = ["apptainer", "--silent", "exec", "--contain", "--cleanenv", "--no-home", "--no-mount", "tmp"]
_RUN += ["--no-privs", "--pid"]
_SECONDS = 120.0


def verify(sif: Path, log: Path, stop: threading.Event) -> None:
    """Raise `ImageError` with one line if `sif` is damaged, `Stopped` if `stop` is set meanwhile."""
    check_sif(sif)
    begin = log.stat().st_size if log.exists() else 0
    try:
        code = children.run([*_RUN, sif, "true"], log, stop, _SECONDS)
    except Transient:
        raise ImageError(f"image {sif}: `true` does not end in it; build it again") from None
    if code != 0:
        with log.open("rb") as file:
            file.seek(begin)
            said = file.read().decode(errors="replace").strip().splitlines()
        raise ImageError(f"image {sif}: `true` fails in it ({(said or ['nothing said'])[-1][-200:]}); build it again")
