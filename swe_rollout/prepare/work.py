"""What is done with all images of a run: checking them, or building those that are not good."""

import contextlib
import threading
from collections.abc import Sequence

from rich.console import Console

from swe_rollout.errors import ImageError
from swe_rollout.prepare.build import MODE, Builder, Inspector, Places, locked
from swe_rollout.prepare.crew import Crew
from swe_rollout.prepare.disk import check_room, gb, too_low
from swe_rollout.prepare.faults import BuildFault, Stopped, Throttled, Unproven
from swe_rollout.prepare.folders import LayerCache
from swe_rollout.prepare.manifest import Entry, Manifest, is_open
from swe_rollout.prepare.plan import BuildOptions, BuildReport
from swe_rollout.prepare.progress import Progress
from swe_rollout.prepare.retry import Gate, persistently
from swe_rollout.prepare.tally import Tally
from swe_rollout.prepare.verify import try_machine

_WAITING = 4
"""Images in work per job: most of them may be pausing before they are tried again."""
_ADVICE = "; build it again"
_QUIET_SECONDS = 10.0
"""Between two lines about what is tried again: a registry that is down makes hundreds of builds fail alike."""


class _Survey:
    """Those that the manifest vouches for are counted at once; the others are to do."""

    def __init__(
        self, images: Sequence[str], places: Places, options: BuildOptions, console: Console, stop: threading.Event
    ) -> None:
        self.places, self.options, self.stop = places, options, stop
        images = list(dict.fromkeys(images))
        self.manifest = Manifest(places.sif_dir)
        self.inspector = Inspector(options, places, self.manifest, stop)
        self._quiet = Gate(_QUIET_SECONDS, stop)
        self.tally = Tally(len(images))
        self.todo: list[str] = []
        n_bytes = 0
        for image in images:
            if entry := self.inspector.known(image):
                self.tally.kept(entry)
                n_bytes += entry.size
            else:
                self.todo.append(image)
        n_known = len(images) - len(self.todo)
        self.progress = Progress(console, len(self.todo))
        self.progress.say(f"SIFs: {n_known} of {len(images)} are there and verified, {gb(n_bytes)}")

    def _kept(self, image: str, entry: Entry) -> None:
        self.tally.kept(entry)
        self.progress.done(image, "verified", entry.size, entry.seconds)

    def _failed(self, image: str, reason: str) -> None:
        self.tally.failed(image, reason)
        self.progress.failed(image, reason)

    def _pausing(self, fault: Exception, seconds: float) -> None:
        if self._quiet.pass_now():
            self.progress.say(f"{fault}; trying again in {seconds:.0f} s", style="yellow")


class CheckWork(_Survey):
    """Verifies what is there."""

    def run(self) -> BuildReport:
        """To the end, or to `stop`. Raises `StartupError` if this machine can verify none."""
        if any(self.places.sif(image).exists() for image in self.todo):
            try_machine(self.stop)
        with self.progress.shown():
            Crew(self.todo, self.options.max_jobs, self._one, self.stop).finish()
        return self.tally.report(stopped=self.stop.is_set())

    def _one(self, image: str) -> None:
        try:
            persistently(lambda: self._inspect(image), self.options, self.stop, self._pausing)
        except (ImageError, Unproven) as error:
            self._failed(image, str(error) if self.places.sif(image).exists() else f"missing: {self.places.sif(image)}")

    def _inspect(self, image: str) -> None:
        with self.progress.running(image):
            self._kept(image, self.inspector.inspect(image))


class BuildWork(_Survey):
    """Builds what is missing or damaged."""

    def __init__(
        self, images: Sequence[str], places: Places, options: BuildOptions, console: Console, stop: threading.Event
    ) -> None:
        super().__init__(images, places, options, console, stop)
        self._slots = threading.Semaphore(options.max_jobs)
        self._gate = Gate(options.start_interval, stop)
        self._builder = Builder(
            options, places, self.manifest, LayerCache(places.cache, options.cache_bytes), self._gate, stop
        )
        self._no_room = ""

    def run(self) -> BuildReport:
        """To the end, to `stop`, or until a disk is full.

        Raises `StartupError` if the SIFs will not fit, or if this machine can verify none.
        """
        n_missing = sum(not self.places.sif(image).exists() for image in self.todo)
        check_room(
            n_missing,
            self.manifest.mean_size(),
            self.places.sif_dir,
            self.places.unpacked,
            self.options.min_free_bytes,
        )
        if self.todo:
            try_machine(self.stop)
        with self.progress.shown():
            Crew(self.todo, self.options.max_jobs * _WAITING, self._one, self.stop).finish()
        return self.tally.report(stopped=self.stop.is_set(), note=self._no_room)

    def _one(self, image: str) -> None:
        try:
            persistently(lambda: self._attempt(image), self.options, self.stop, self._pausing)
        except BuildFault as fault:
            log = self.places.log(image)
            self._failed(image, f"{fault}; log: {log}" if log.exists() else str(fault))

    def _attempt(self, image: str) -> None:
        with self._slots, locked(self.places, image):
            if self.stop.is_set():
                raise Stopped
            with self.progress.running(image):
                if not self._is_good(image):
                    self._build(image)

    def _is_good(self, image: str) -> bool:
        sif = self.places.sif(image)
        if not sif.exists():
            return False
        with contextlib.suppress(OSError):
            if not is_open(found := sif.stat()):
                sif.chmod(found.st_mode | MODE)
        try:
            entry = self.inspector.inspect(image)
        except ImageError as error:
            self.progress.say(f"building again: {str(error).removesuffix(_ADVICE)}")
            return False
        self._kept(image, entry)
        return True

    def _build(self, image: str) -> None:
        if not self._no_room:
            self._no_room = too_low((self.places.sif_dir, self.places.unpacked), self.options.min_free_bytes)
            if self._no_room:
                self.progress.say(f"no more builds begin: {self._no_room}", style="red")
        if self._no_room:
            return
        entry = self._builder.build(image)
        self.tally.built(entry)
        self.progress.done(image, "built", entry.size, entry.seconds)

    def _pausing(self, fault: Exception, seconds: float) -> None:
        if isinstance(fault, Throttled):
            if self._gate.close_for(seconds):
                self.progress.say(f"{fault}: no build begins for {seconds:.0f} s", style="yellow")
        else:
            super()._pausing(fault, seconds)
