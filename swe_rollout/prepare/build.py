"""One image to one SIF: under a lock, into a temporary file, verified, then renamed into place."""

import contextlib
import dataclasses
import datetime
import errno
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.errors import ImageError
from swe_rollout.locks import take
from swe_rollout.prepare import children
from swe_rollout.prepare.checksum import sha256
from swe_rollout.prepare.faults import BuildFault, NoSpace, Stopped, Throttled, Unproven, from_words
from swe_rollout.prepare.folders import LayerCache
from swe_rollout.prepare.manifest import Entry, Manifest, is_open
from swe_rollout.prepare.plan import BuildOptions
from swe_rollout.prepare.registry import Reference, Registry, locate
from swe_rollout.prepare.retry import Gate
from swe_rollout.prepare.verify import verify
from swe_rollout.sandbox.images import sif_name

_SQUASHFS = "-comp zstd -Xcompression-level 3"
MODE = 0o644
"""Sandboxes run as another user than the one that builds."""
_LOG_BYTES = 256 << 10


class Held(Exception):
    """Another run is at this image."""


@dataclass(frozen=True)
class Places:
    """Where a run reads and writes."""

    sif_dir: Path
    locks: Path
    logs: Path
    unfinished: Path
    """SIFs being written or verified; on the disk of `sif_dir`."""
    unpacked: Path
    """Apptainer's temporary files."""
    cache: Path
    """Layers."""

    def sif(self, image: str) -> Path:
        """The finished SIF of `image`."""
        return self.sif_dir / sif_name(image)

    def log(self, image: str) -> Path:
        """What Apptainer says about `image`; stays if it fails."""
        return self.logs / f"{sif_name(image)}.log"


@contextlib.contextmanager
def locked(places: Places, image: str) -> Iterator[None]:
    """Alone with `image`, among all runs on this folder. Raises `Held`."""
    fd = take(places.locks / f"{sif_name(image)}.lock", create=True)
    if fd is None:
        raise Held
    try:
        yield
    finally:
        os.close(fd)


class Inspector:
    """Says of the SIFs that are there whether they are good, and remembers the good ones."""

    def __init__(self, options: BuildOptions, places: Places, manifest: Manifest, stop: threading.Event) -> None:
        self._options, self._places, self._manifest, self._stop = options, places, manifest, stop

    def known(self, image: str) -> Entry | None:
        """Its entry if it was verified before and is unchanged since; costs one stat."""
        return self._manifest.vouches(image, self._places.sif(image))

    def inspect(self, image: str) -> Entry:
        """Run a program in the SIF that is there.

        Raises `ImageError` if it is damaged or missing, `Unproven` if that is not clear in time, `Stopped`.
        """
        began, sif, log = time.monotonic(), self._places.sif(image), self._places.log(image)
        self._manifest.refresh()
        if known := self.known(image):
            return known
        verify(sif, log, self._stop, self._options.verify_seconds)
        if not is_open(sif.stat()):
            raise ImageError(f"image {sif} is closed to the users of sandboxes: chmod o+r; build it again")
        entry = entry_of(image, sif, "", began, self._stop)
        before = self._manifest.last(image)
        if before and before.size == entry.size and before.sha256 != entry.sha256:
            raise ImageError(f"image {sif} is not the file that was verified before; build it again")
        if before and before.sha256 == entry.sha256:
            entry = dataclasses.replace(entry, digest=before.digest)
        # A folder that cannot be written to can be looked at all the same.
        with contextlib.suppress(OSError):
            self._manifest.add(entry)
        log.unlink(missing_ok=True)
        return entry


class Builder:
    """Builds, for many threads at once."""

    def __init__(
        self,
        options: BuildOptions,
        places: Places,
        manifest: Manifest,
        cache: LayerCache,
        gate: Gate,
        stop: threading.Event,
    ) -> None:
        self._options, self._places, self._manifest = options, places, manifest
        self._cache, self._gate, self._stop = cache, gate, stop
        self._registry = Registry()

    def build(self, image: str) -> Entry:
        """One try; the caller holds the image's lock. Raises `BuildFault`, `Stopped`."""
        try:
            return self._build(image)
        except OSError as error:
            kind = NoSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else BuildFault
            raise kind(f"{error.strerror}: {error.filename or self._places.sif_dir}") from None

    def _build(self, image: str) -> Entry:
        sif = self._places.sif(image)
        if sif.is_dir():
            raise BuildFault(f"{sif} is a folder: move it away")
        self._remove_leftovers(sif)
        self._gate.pass_()
        began = time.monotonic()
        try:
            reference = locate(image, self._options.registry_mirror)
        except ValueError as error:
            raise BuildFault(str(error)) from None
        digest = self._registry.digest(reference)
        if self._stop.is_set():
            raise Stopped
        unfinished = self._places.unfinished / f"{digest.rpartition(':')[2][:12]}-{sif_name(image)}"
        try:
            if not unfinished.exists():
                self._apptainer(reference, digest, unfinished, self._places.log(image))
            try:
                verify(unfinished, self._places.log(image), self._stop, self._options.verify_seconds)
            except ImageError as error:
                raise BuildFault(f"built, but not usable: {error}") from None
            unfinished.chmod(MODE)
            entry = entry_of(image, unfinished, digest, began, self._stop)
            _sync(unfinished)
            unfinished.replace(sif)
            _sync(sif.parent)
        except Unproven:
            # The next try verifies it, and need not build it again.
            raise
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        self._manifest.add(entry)
        self._places.log(image).unlink(missing_ok=True)
        return entry

    def _apptainer(self, reference: Reference, digest: str, target: Path, log: Path) -> None:
        name = reference.at(digest)
        argv: list[str | Path] = ["apptainer", "build", "--force", "--mksquashfs-args", _SQUASHFS]
        argv += ["--no-https"] if reference.insecure else []
        begin = _shortened(log)
        with self._cache.used() as cache:
            env = {"APPTAINER_CACHEDIR": str(cache), "APPTAINER_TMPDIR": str(self._places.unpacked)}
            code = children.run([*argv, target, f"docker://{name}"], log, self._stop, self._options.build_seconds, env)
        if code == 0:
            return
        if self._stop.is_set():
            raise Stopped
        with log.open("rb") as file:
            file.seek(begin)
            fault = from_words(file.read(_LOG_BYTES).decode(errors="replace"), name)
        if isinstance(fault, NoSpace):
            sif_dir, unpacked = self._places.sif_dir, self._places.unpacked.parent
            raise NoSpace(
                f"{fault} (SIFs: {sif_dir}, temporary files: {unpacked}; set R2E_SIF_DIR or APPTAINER_TMPDIR to a"
                " larger disk)"
            )
        if isinstance(fault, Throttled):
            # Apptainer does not tell how long it was asked to wait.
            raise Throttled(str(fault), self._registry.wish(reference))
        raise fault

    def _remove_leftovers(self, sif: Path) -> None:
        # Of other programs and of runs that ended: nobody else is at this image now.
        for leftover in (sif.with_name(f"{sif.name}.tmp"), *sif.parent.glob(f"{sif.name}.*.tmp")):
            leftover.unlink(missing_ok=True)


def entry_of(image: str, sif: Path, digest: str, began: float, stop: threading.Event) -> Entry:
    """What the manifest says of a verified SIF. Raises `Stopped`."""
    content = sha256(sif, stop)
    found = sif.stat()
    when = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    seconds = round(time.monotonic() - began, 3)
    return Entry(image, digest, found.st_size, content, seconds, found.st_mtime_ns, when)


def _shortened(log: Path) -> int:
    """The length of `log`, which is begun anew when it is long."""
    size = log.stat().st_size if log.exists() else 0
    if size > _LOG_BYTES:
        log.unlink()
        return 0
    return size


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
