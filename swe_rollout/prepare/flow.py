"""The steps of a run, one after the other: data, wheels, images."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from swe_rollout import locks
from swe_rollout.errors import StartupError
from swe_rollout.prepare import datasets, sifs, summary, wheels
from swe_rollout.prepare.faults import Stopped
from swe_rollout.prepare.options import Options
from swe_rollout.prepare.plan import BuildReport
from swe_rollout.prepare.selection import Entry, read_entries, select, wanted_ids
from swe_rollout.prepare.stopping import Stopping
from swe_rollout.rows import check_parquet

_LOOK_SECONDS = 0.3


def prepare(options: Options, console: Console, stopping: Stopping) -> int:
    """Fetch and build what is missing; 0 if all is there, 1 with everything named that is not.

    Raises `StartupError`, one line, for what keeps a step from being begun; `Stopped` after a signal.
    """
    failures: dict[str, str] = {}
    entries: list[Entry] = []
    # What can be refused at once is not found out after an hour of downloads.
    if options.ids:
        wanted_ids(options.ids)
    sifs.make_folder(options.sif_dir)
    console.print(f"1/3 data: {options.data_dir}")
    _make_folder(options.state_dir, "R2E_DATA_PATH")
    with _alone(options.state_dir / "lock", console, stopping):
        for source in options.sources:
            try:
                dataset = datasets.obtain(source, options, console, stopping)
                entries += read_entries(source.mode, dataset.files)
            except StartupError as error:
                failures[f"{source.mode} data"] = str(error)
        if entries:
            console.print(f"   {summary.rows_line(entries)}")
        console.print(f"2/3 wheels: {options.data_dir / 'wheels'}")
        try:
            wheels.obtain(options, console, stopping)
        except StartupError as error:
            failures["wheels"] = str(error)
    console.print(f"3/3 images: {options.sif_dir}")
    if any(name.endswith(" data") for name in failures):
        console.print("   not begun: the rows name the images, and some rows are not there")
        return _end(options, console, [], failures)
    images = select(entries, options)
    try:
        report = sifs.build_sifs(images, options.sif_dir, options.build, console, stopping.event)
    except StartupError:
        summary.print_failures(console, failures)
        raise
    return _end(options, console, entries, failures | _failures_of(report, console, images, stopping))


def check(options: Options, console: Console, stopping: Stopping) -> int:
    """Look at the data and the images, fetch and build nothing; 0 if all is there, else 1 with what is not named."""
    failures: dict[str, str] = {}
    entries: list[Entry] = []
    console.print(f"1/2 data: {options.data_dir}")
    for source in options.sources:
        try:
            entries += read_entries(source.mode, datasets.check(source, options, stopping).files)
        except StartupError as error:
            failures[f"{source.mode} data"] = str(error)
    if entries:
        console.print(f"   {summary.rows_line(entries)}")
    console.print(f"2/2 images: {options.sif_dir}")
    if failures:
        console.print("   not looked at: the rows name the images, and some rows are not there")
        return _end(options, console, [], failures)
    images = select(entries, options)
    report = sifs.check_sifs(images, options.sif_dir, options.build, console, stopping.event)
    return _end(options, console, entries, _failures_of(report, console, images, stopping))


def prune(options: Options, console: Console, stopping: Stopping) -> int:
    """Name the SIFs that no row of any parquet file needs; remove them if that was asked for.

    Raises `StartupError` if a parquet file is missing or damaged: its images would seem to be needed by no row.
    """
    if not options.sif_dir.is_dir():
        raise StartupError(f"R2E_SIF_DIR={options.sif_dir} is no folder: nothing is there to be removed")
    files = set(chain.from_iterable(datasets.check(source, options, stopping).files for source in options.sources))
    # Those of other datasets too, which another run has fetched.
    files |= set(options.data_dir.glob("*/data/*.parquet"))
    for file in files:
        check_parquet(file)
    rows = chain.from_iterable(read_entries("", [file]) for file in sorted(files))
    images = list(dict.fromkeys(row.image for row in rows if row.image))
    unneeded = sifs.unneeded_sifs(images, options.sif_dir)
    total = 0
    for path in unneeded:
        size = path.stat().st_size
        total += size
        if options.yes:
            path.unlink()
        console.print(f"   {'removed' if options.yes else 'unneeded'}: {path} ({decimal(size)})")
    console.print(f"{len(unneeded)} SIFs ({decimal(total)}) are needed by none of the rows in {options.data_dir}")
    if unneeded and not options.yes:
        console.print("nothing is removed; --prune --yes removes them")
    return 0


def _failures_of(report: BuildReport, console: Console, images: Sequence[str], stopping: Stopping) -> dict[str, str]:
    summary.print_images(console, report, len(images))
    if report.stopped:
        summary.print_failures(console, report.failures)
        raise Stopped
    stopping.check()
    failures = dict(report.failures)
    if report.n_left:
        failures[f"{report.n_left} images"] = report.note or "were not begun"
    return failures


def _end(options: Options, console: Console, entries: Sequence[Entry], failures: dict[str, str]) -> int:
    summary.print_failures(console, failures)
    if entries:
        summary.print_next(console, options, entries, failures)
    return 1 if failures else 0


def _make_folder(path: Path, variable: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"{variable}: {path} cannot be made: {error.strerror}") from error


@contextlib.contextmanager
def _alone(path: Path, console: Console, stopping: Stopping) -> Iterator[None]:
    """While another run fetches, this one waits, and then finds what that one has fetched."""
    try:
        lock = locks.take(path, create=True)
        if lock is None:
            console.print("   another run is fetching into this folder: waiting for it")
        while lock is None:
            stopping.event.wait(_LOOK_SECONDS)
            stopping.check()
            lock = locks.take(path, create=True)
    except OSError as error:
        raise StartupError(f"{path} cannot be locked: {error.strerror}") from error
    try:
        yield
    finally:
        os.close(lock)
