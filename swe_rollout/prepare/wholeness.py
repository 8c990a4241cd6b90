"""Whether parquet files are what they should be: by themselves, by an earlier run's record, by the hub's listing."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from swe_rollout.errors import StartupError
from swe_rollout.prepare.checksum import sha256
from swe_rollout.prepare.hub import HubFile, Listing
from swe_rollout.prepare.stopping import Stopping
from swe_rollout.rows import FETCH, check_parquet

_SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.parquet")


def damage(path: Path) -> str:
    """What is wrong with a file by itself, in one clause that names it; empty if nothing is."""
    try:
        check_parquet(path)
    except StartupError as error:
        return str(error).partition(f": {FETCH}")[0]
    return ""


def local_faults(folder: Path, pattern: str, recorded: Sequence[HubFile], stopping: Stopping) -> list[str]:
    """What is wrong with the files of `pattern`, a clause each. `recorded`: as an earlier run has seen them, which are
    then read whole; if it is empty, someone may have put the files there. Raises `Stopped`.
    """
    present = [str(file.relative_to(folder)) for file in sorted(folder.glob(pattern))]
    known = {file.path: file for file in recorded}
    if not present and not recorded:
        return [f"{folder / pattern} matches no file"]
    if recorded:
        faults = [f"{folder / name} is missing" for name in sorted(known.keys() - set(present))]
        faults += [f"{folder / name} is not of this dataset" for name in sorted(set(present) - known.keys())]
    else:
        faults = _missing_shards(folder, present)
    for name in present:
        if name in known:
            faults += _differs(folder, known[name], "as it was fetched", stopping)
        elif reason := damage(folder / name):
            faults.append(reason)
    return faults


def hub_faults(folder: Path, listing: Listing, stopping: Stopping) -> dict[HubFile, str]:
    """What is wrong with the files that `listing` has, a clause each. Reads them whole; raises `Stopped`.

    Raises `StartupError` for files that are exactly the hub's, but hold no rows of tasks; they are removed.
    """
    faults, theirs = {}, []
    for file in listing.files:
        stopping.check()
        path = folder / file.path
        if not path.is_file():
            faults[file] = f"{path} is missing"
        elif differs := _differs(folder, file, "the hub's file of that name", stopping):
            faults[file] = differs[0]
        elif reason := damage(path):
            if file.sha256:
                path.unlink()
                theirs.append(reason)
            else:
                faults[file] = reason
    if theirs:
        raise StartupError(f"{'; '.join(theirs)}; that is how the hub has it: take another dataset or revision")
    return faults


def _differs(folder: Path, file: HubFile, what: str, stopping: Stopping) -> list[str]:
    path = folder / file.path
    if (size := path.stat().st_size) != file.size:
        return [damage(path) or f"{path} has {size} bytes of {file.size}"]
    if file.sha256 and sha256(path, stopping.event) != file.sha256:
        return [damage(path) or f"{path} is not {what}"]
    return []


def _missing_shards(folder: Path, names: Iterable[str]) -> list[str]:
    # Nothing is known of such files but that each name says how many there are.
    shards = {(int(found[1]), int(found[2])) for name in names if (found := _SHARD.search(name))}
    totals = {total for _, total in shards}
    if len(totals) > 1:
        return [f"{folder / 'data'} mixes files of {' and '.join(map(str, sorted(totals)))} parts"]
    missing = {(number, total) for total in totals for number in range(total)} - shards
    return [
        f"{folder / 'data'} lacks its file *-{number:05}-of-{total:05}.parquet" for number, total in sorted(missing)
    ]
