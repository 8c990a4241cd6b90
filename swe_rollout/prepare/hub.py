"""What the hub has: the files of a split with their sizes and hashes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.request import getproxies

from swe_rollout.errors import StartupError
from swe_rollout.prepare.faults import Stopped, Throttled, Transient
from swe_rollout.prepare.options import Source
from swe_rollout.prepare.wish import retry_after

_ANSWER_SECONDS = 60.0
_MAY_WORK_LATER = (408, 425, 429)
_RATE_LIMIT = re.compile(r'"\w+"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)')


@dataclass(frozen=True)
class HubFile:
    """One file of a dataset."""

    path: str
    """Below the dataset's folder."""
    size: int
    sha256: str | None
    """None for a small file that is not kept in large file storage."""


@dataclass(frozen=True)
class Listing:
    """The files of a split at one commit."""

    commit: str
    files: tuple[HubFile, ...]


def list_files(source: Source) -> Listing:
    """Ask the hub ($HF_ENDPOINT, with $HF_TOKEN or the token of `hf auth login`) what `source` consists of.

    Raises `StartupError` if there is no such dataset, revision or split, or it is not open to us; `Transient` and
    `Throttled` for what may work later. One request; it cannot be told to stop.
    """
    # Imported here: it costs half a second, which a run that asks the hub nothing need not pay.
    from fnmatch import fnmatchcase

    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        info = HfApi().dataset_info(
            source.dataset, revision=source.revision, files_metadata=True, timeout=_ANSWER_SECONDS
        )
    except (HFValidationError, OfflineModeIsEnabled) as error:
        raise StartupError(f"{source}: {_first_line(error)}") from error
    except GatedRepoError as error:
        raise StartupError(
            f"{source.dataset} is open only to who has been let in: ask for access on its page, then set HF_TOKEN"
        ) from error
    except RevisionNotFoundError as error:
        raise StartupError(
            f"{source.dataset} has no revision {source.revision}: check R2E_{source.mode.upper()}_REVISION"
        ) from error
    except RepositoryNotFoundError as error:
        raise StartupError(
            f"the hub has no dataset {source.dataset}, or not for you: check R2E_{source.mode.upper()}_DATASET, or set"
            " HF_TOKEN"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        said = f"the hub answers {status} when asked for {source.dataset}"
        if 400 <= status < 500 and status not in _MAY_WORK_LATER:
            raise StartupError(f"{said}: {_first_line(error)}") from error
        if status == 429:
            raise Throttled(said, _wish(error.response.headers)) from error
        raise Transient(said) from error
    except Stopped:
        raise
    except Exception as error:
        # No connection, one that broke, or a page of something in between; each library has classes of its own for it.
        proxies = [f"{scheme}_proxy" for scheme in ("http", "https", "all") if scheme in getproxies()]
        where = f"{constants.ENDPOINT}{' with ' + ' and '.join(proxies) if proxies else ''}"
        raise Transient(
            f"the hub cannot be asked for {source.dataset} at {where} ({type(error).__name__}: {_first_line(error)})"
        ) from error
    siblings = info.siblings or []
    files = tuple(
        HubFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None)
        for file in sorted(siblings, key=lambda file: file.rfilename)
        if fnmatchcase(file.rfilename, source.pattern)
    )
    if not files or not info.sha:
        has = sorted({name for file in siblings if (name := _split_of(file.rfilename))})
        raise StartupError(
            f"{source.dataset} at {source.revision} has no file {source.pattern}: check"
            f" R2E_{source.mode.upper()}_SPLIT (it has: {', '.join(has) or 'no parquet at all'})"
        )
    return Listing(info.sha, files)


def _split_of(path: str) -> str:
    """`train` of data/train-00000-of-00009.parquet."""
    folder, _, name = path.rpartition("/")
    return name.partition("-")[0] if folder == "data" and name.endswith(".parquet") else ""


def _wish(headers: Mapping[str, str]) -> float | None:
    """Seconds that an exhausted `RateLimit` or a `Retry-After` asks to wait, None if there is neither."""
    if limit := _RATE_LIMIT.search(headers.get("ratelimit", "")):
        return float(limit[1])
    return retry_after(headers.get("retry-after", ""))


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
