"""The last words of a run: what is there, what failed, what to type next."""

import shlex
import sys
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal

from swe_rollout.errors import ImageError
from swe_rollout.prepare.options import Options, source
from swe_rollout.prepare.plan import BuildReport
from swe_rollout.prepare.selection import Entry
from swe_rollout.sandbox.images import check_sif, sif_name

_SHOWN_FAILURES = 50
_CHECKOUT = Path(__file__).parents[2]


def rows_line(entries: Sequence[Entry]) -> str:
    """Rows and distinct images of each mode; rows without an image are told."""
    parts = []
    for mode, n_rows in Counter(entry.mode for entry in entries).items():
        images = {entry.image for entry in entries if entry.mode == mode and entry.image}
        parts.append(f"{mode}: {_count(n_rows, 'row')}, {_count(len(images), 'image')}")
    if bad := [entry for entry in entries if not entry.image]:
        first = f"{bad[0].mode} {bad[0].id or 'row without an id'}"
        parts.append(f"no image is named by {_count(len(bad), 'row')} (the first: {first})")
    return "; ".join(parts)


def print_images(console: Console, report: BuildReport, n_images: int) -> None:
    """How the images fared, in one line."""
    parts = [f"{report.n_built} built"] if report.n_built else []
    parts += [f"{report.n_kept} there", f"{len(report.failures)} failed"]
    parts += [f"{report.n_left} left"] if report.n_left else []
    console.print(
        f"   {_count(n_images, 'image')}: {', '.join(parts)}; {decimal(report.bytes)}, {report.seconds:.0f} s"
    )


def print_failures(console: Console, failures: Mapping[str, str]) -> None:
    """Each by name; of very many only the first."""
    if not failures:
        return
    console.print(f"failed: {len(failures)}")
    for name, reason in list(failures.items())[:_SHOWN_FAILURES]:
        console.print(f"   {name}: {reason}")
    if (more := len(failures) - _SHOWN_FAILURES) > 0:
        console.print(f"   and {more} more, named above")


def print_next(console: Console, options: Options, entries: Sequence[Entry], failed: Container[str]) -> None:
    """How many rows the server will find an image for, and the command that uses them. `failed`: images found bad."""
    images = {entry.image for entry in entries if entry.image}
    there = {image for image in images if image not in failed and _is_whole(options.sif_dir / sif_name(image))}
    n_rows = sum(entry.image in there for entry in entries)
    console.print(
        f"{n_rows} of {len(entries)} rows have their image"
        + ("" if n_rows == len(entries) else "; the server leaves the others out")
    )
    usable = {entry.mode for entry in entries if entry.image in there}
    for mode in sorted({entry.mode for entry in entries} - usable):
        console.print(f"{mode}: no row has its image; the server starts without this mode if told `data.{mode}=`")
    if n_rows:
        console.print(f"next:\n   {command(options, usable)}")


def command(options: Options, usable: Container[str]) -> str:
    """What starts training on this data. `usable`: the modes that have a row with an image."""
    variables = {
        "MINI_SWE_AGENT_VENV": shlex.quote(sys.prefix),
        "R2E_DATA_PATH": shlex.quote(str(options.data_dir)),
        "R2E_SIF_DIR": shlex.quote(str(options.sif_dir)),
    }
    wanted = {each.mode: f"{each.folder}/{each.pattern}" for each in options.sources}
    patterns = []
    for mode in ("train", "eval"):
        usual = source(mode, None, None, None)
        assert usual is not None  # there is none only for an empty name
        unless_told = f"{usual.folder}/{usual.pattern}"
        pattern = wanted.get(mode, "") if mode in usable else ""
        # A mode whose pattern matches no file is not used anyway.
        if pattern != unless_told and (pattern or any(options.data_dir.glob(unless_told))):
            patterns.append(f"data.{mode}={pattern}")
    if patterns:
        variables["AGENT_SERVER_CONFIG"] = shlex.quote(" ".join(patterns))
    variables |= {"MODEL_DIR": "/path/to/models", "SAVE_DIR": "/path/to/checkpoints"}
    words = " ".join(f"{name}={value}" for name, value in variables.items())
    return f"{words} bash {shlex.quote(str(_CHECKOUT / 'run_mini_swe_agent.sh'))}"


def _is_whole(sif: Path) -> bool:
    """As the server sees it."""
    try:
        check_sif(sif)
    except ImageError:
        return False
    return True


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
