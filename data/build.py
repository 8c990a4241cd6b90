"""Build the sample tasks: small SIFs, a parquet file in R2E-Gym's form and one in SWE-bench's.

Each sample is a bug of a real project that a later release mended. The releases come from pip's package
index and the images' Debian root from apt's mirror; nothing of them is in this repository. Every sample is
tested before it is put in place: its hidden tests fail on the buggy release and pass with the fix.
A second call finds everything there and does nothing.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from swe_rollout.cache import cache_folder

# What needs third-party packages is imported only once there is something to build.

_STAMP = ".built.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m data.build", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="DIR",
        default=cache_folder(),
        help="folder that gets samples/ (default: $SWE_ROLLOUT_CACHE, here %(default)s)",
    )
    root = parser.parse_args(arguments).cache.expanduser().resolve() / "samples"
    fingerprint = _fingerprint()
    if _is_built(root, fingerprint):
        print(f"samples are up to date in {root}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _build(root, fingerprint)
    except KeyboardInterrupt:
        print("samples: interrupted; run this again to build them", file=sys.stderr)
        return 130
    return 0


def _build(root: Path, fingerprint: str) -> None:
    from data.commands import BuildError
    from data.samples import build_samples

    try:
        root.mkdir(parents=True, exist_ok=True)
        with _alone(root):
            if not _is_built(root, fingerprint):
                (root / _STAMP).unlink(missing_ok=True)
                _write_stamp(root, fingerprint, build_samples(root))
    except BuildError as error:
        sys.exit(f"samples: {error}")
    except OSError as error:
        sys.exit(f"samples: {error}; check the folder {root} and its free space")
    print(f"samples are ready: R2E_DATA_PATH={root}/data R2E_SIF_DIR={root}/sifs")


def _fingerprint() -> str:
    """Changes whenever a file of this package does, and with it maybe what it builds."""
    here = Path(__file__).parent
    digest = hashlib.sha256()
    for file in sorted(here.rglob("*")):
        if file.suffix in (".py", ".txt", ".yaml"):
            digest.update(f"{file.relative_to(here)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _is_built(root: Path, fingerprint: str) -> bool:
    try:
        stamp = json.loads((root / _STAMP).read_text("utf-8"))
        sizes = {name: (root / name).stat().st_size for name in stamp["files"]}
    except (OSError, ValueError, KeyError):
        return False
    return bool(stamp["fingerprint"] == fingerprint and stamp["files"] == sizes)


def _write_stamp(root: Path, fingerprint: str, files: list[Path]) -> None:
    """Say that everything is there; the last step of a build."""
    stamp = {"fingerprint": fingerprint, "files": {str(file): (root / file).stat().st_size for file in files}}
    unfinished = root / f"{_STAMP}.tmp"
    unfinished.write_text(json.dumps(stamp, indent=2), "utf-8")
    unfinished.replace(root / _STAMP)


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Keep other builds of the same folder waiting."""
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another build of the samples is running; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
