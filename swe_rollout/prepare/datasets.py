"""The parquet files: fetched by `hf`, checked against what the hub says of them, fetched again if damaged."""

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from swe_rollout.errors import StartupError
from swe_rollout.prepare import children, records, transfer
from swe_rollout.prepare.checksum import sha256
from swe_rollout.prepare.faults import Throttled, Transient
from swe_rollout.prepare.hub import HubFile, Listing, list_files
from swe_rollout.prepare.options import Options, Source
from swe_rollout.prepare.retry import persistently
from swe_rollout.prepare.stopping import Stopping
from swe_rollout.prepare.wholeness import hub_faults, local_faults
from swe_rollout.rows import FETCH

_DAY = 24 * 3600.0
_STALLED_SECONDS = 900.0
"""`hf` waits as long as the hub's Retry-After asks it to, five minutes at most; some of its requests wait for ever."""
_HF = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "NO_COLOR": "1",
}
_NO_USE = re.compile(r"No space left|Disk quota exceeded|Permission denied|Read-only file system|Not a directory")


@dataclass(frozen=True)
class Dataset:
    """A split on this machine, whole."""

    source: Source
    files: tuple[Path, ...]
    n_bytes: int


def check(source: Source, options: Options, stopping: Stopping) -> Dataset:
    """What is there, by itself; asks the hub nothing.

    Raises `StartupError`, one line naming each file that is missing or damaged; `Stopped` after a signal.
    """
    folder = options.data_dir / source.folder
    if faults := local_faults(folder, source.pattern, _recorded(source, options), stopping):
        raise StartupError(f"{'; '.join(faults)}: {FETCH}")
    return _present(source, options)


def obtain(source: Source, options: Options, console: Console, stopping: Stopping) -> Dataset:
    """The split, fetched if it is not there or not as the hub has it. For one process at a time.

    Raises `StartupError`, one line, if it cannot be had; `Stopped` after a signal.
    """
    if _recorded(source, options):
        with contextlib.suppress(StartupError):
            kept = check(source, options, stopping)
            console.print(f"   {source.mode}: {source}: there ({decimal(kept.n_bytes)})")
            return kept
    return _Fetching(source, options, console, stopping).obtain()


def _present(source: Source, options: Options) -> Dataset:
    files = tuple(sorted((options.data_dir / source.folder).glob(source.pattern)))
    return Dataset(source, files, sum(file.stat().st_size for file in files))


def _record_of(source: Source, options: Options) -> Path:
    return options.state_dir / f"{source.folder}-{source.split}.json"


def _recorded(source: Source, options: Options) -> list[HubFile]:
    """The files as they were seen to be whole; empty if never, or of another revision."""
    record = records.read(_record_of(source, options))
    if (record.get("dataset"), record.get("revision")) != (source.dataset, source.revision):
        return []
    with contextlib.suppress(TypeError):
        return [HubFile(**file) for file in record.get("files", ())]
    return []


class _Fetching:
    """One split on its way here."""

    def __init__(self, source: Source, options: Options, console: Console, stopping: Stopping) -> None:
        self._source, self._options, self._console, self._stopping = source, options, console, stopping
        self._folder = options.data_dir / source.folder
        self._log = options.state_dir / "logs" / f"{source.folder}-{source.split}.log"

    def obtain(self) -> Dataset:
        source, folder = self._source, self._folder
        folder.mkdir(parents=True, exist_ok=True)
        self._log.parent.mkdir(exist_ok=True)
        try:
            listing = self._listing()
            self._refuse_strangers(listing)
            faults = hub_faults(folder, listing, self._stopping)
            if faults:
                self._check_room(faults)
                self._fetch(listing, faults)
                faults = hub_faults(folder, listing, self._stopping)
            if faults:
                self._say(f"{source.mode}: damaged, fetched once more: {'; '.join(faults.values())}")
                self._fetch(listing, faults)
                faults = hub_faults(folder, listing, self._stopping)
        except (Transient, Throttled) as error:
            raise StartupError(f"{source} could not be fetched: {error}; run the same command to go on") from error
        if faults:
            self._remove(faults)
            raise StartupError(f"{source} comes damaged from the hub: {'; '.join(faults.values())}")
        files = [asdict(self._with_hash(file)) for file in listing.files]
        record = {"dataset": source.dataset, "revision": source.revision, "commit": listing.commit, "files": files}
        records.write(_record_of(source, self._options), record)
        return _present(source, self._options)

    def _with_hash(self, file: HubFile) -> HubFile:
        """The hub tells those of large files, and they were compared."""
        if file.sha256:
            return file
        return replace(file, sha256=sha256(self._folder / file.path, self._stopping.event))

    def _listing(self) -> Listing:
        listings = []

        def ask() -> None:
            with self._stopping.raising():
                listings.append(list_files(self._source))

        self._persistently(ask)
        return listings[-1]

    def _refuse_strangers(self, listing: Listing) -> None:
        """The server reads all files of the pattern: what hf has left of another revision goes, others are refused."""
        wanted = {self._folder / file.path for file in listing.files}
        strangers = [file for file in sorted(self._folder.glob(self._source.pattern)) if file not in wanted]
        downloads = self._folder / ".cache/huggingface/download"
        for file in strangers:
            if not (downloads / f"{file.relative_to(self._folder)}.metadata").exists():
                raise StartupError(f"{file} does not belong to {self._source}: move it out of that folder")
        for file in strangers:
            file.unlink()

    def _check_room(self, faults: Iterable[HubFile]) -> None:
        needed, free = sum(file.size for file in faults), shutil.disk_usage(self._folder).free
        if needed > free:
            raise StartupError(f"{self._folder} needs {decimal(needed)} more, its disk has {decimal(free)} free")

    def _remove(self, faults: Iterable[HubFile]) -> None:
        # hf would take what is there for what it has fetched earlier.
        for file in faults:
            (self._folder / file.path).unlink(missing_ok=True)

    def _fetch(self, listing: Listing, faults: Iterable[HubFile]) -> None:
        """Until `hf` says that all is there; whether it is, is to be seen."""
        self._remove(faults)
        source, total = self._source, sum(file.size for file in listing.files)
        # Of the files that are there, hf asks nothing.
        argv = ["hf", "download", source.dataset, "--repo-type", "dataset", "--revision", listing.commit]
        argv += ["--include", source.pattern, "--local-dir", str(self._folder)]
        self._say(f"{source.mode}: fetching {source} ({decimal(total)})")

        def once() -> None:
            self._log.unlink(missing_ok=True)
            with transfer.shown(self._console, source.mode, total) as show, self._no_leftovers():
                look = _Watch([self._folder / file.path for file in listing.files], self._leftovers, show)
                code = children.run(argv, self._log, self._stopping.event, _DAY, _HF, look)
            # It also ends with 0 if it could not reach the hub but found a folder.
            if code != 0 or not all((self._folder / file.path).is_file() for file in listing.files):
                raise _fault(code, self._log)

        self._persistently(once)

    def _persistently(self, attempt: Callable[[], None]) -> None:
        def unless_stopped() -> None:
            self._stopping.check()
            attempt()

        def pausing(fault: Exception, seconds: float) -> None:
            self._say(f"{self._source.mode}: {fault}; trying again in {seconds:.0f} s")

        persistently(unless_stopped, self._options.build, self._stopping.event, pausing)

    def _leftovers(self) -> list[Path]:
        return list((self._folder / ".cache/huggingface/download").glob("**/*.incomplete"))

    @contextlib.contextmanager
    def _no_leftovers(self) -> Iterator[None]:
        """hf cannot go on with what an earlier one has left half done, and one that is ended leaves it."""
        for path in self._leftovers():
            path.unlink(missing_ok=True)
        try:
            yield
        finally:
            for path in self._leftovers():
                path.unlink(missing_ok=True)

    def _say(self, words: str) -> None:
        self._console.print(f"   {words}")


class _Watch:
    """Looks at a download from outside: shows how much has come, and gives up one that has stalled."""

    def __init__(self, paths: list[Path], partial: Callable[[], list[Path]], show: Callable[[int], None]) -> None:
        self._paths, self._partial, self._show = paths, partial, show
        self._seen = -1
        self._last_news = time.monotonic()

    def __call__(self) -> None:
        """Raises `Transient` if nothing has come for long."""
        done = sum(_size(path) for path in (*self._paths, *self._partial()))
        if done != self._seen:
            self._seen, self._last_news = done, time.monotonic()
        elif time.monotonic() - self._last_news > _STALLED_SECONDS:
            raise Transient(f"no byte has come for {_STALLED_SECONDS / 60:.0f} minutes")
        self._show(done)


def _fault(code: int, log: Path) -> Exception:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("Hint:")]
    words = f"hf ended with {code}: {' / '.join(lines[-2:])[-500:] or 'without a word'} (all it said: {log})"
    if _NO_USE.search(words):
        return StartupError(words)
    if wish := re.search(r"[Rr]etry after (\d+) seconds", words):
        return Throttled(words, float(wish[1]))
    return Transient(words)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
