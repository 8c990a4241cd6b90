"""What a run is told, checked as far as it can be without looking at anything."""

import re
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.errors import StartupError
from swe_rollout.prepare.plan import BuildOptions

TRAIN_DATASET = "R2E-Gym/R2E-Gym-Subset"
EVAL_DATASET = "R2E-Gym/SWE-Bench-Verified"

_MIRROR = re.compile(r"(https?://)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:]+\])(:\d{1,5})?(/[a-z0-9._/-]*)?")

PINNED = {
    "R2E-Gym/R2E-Gym-Subset": "2e8108ff942f24fcb5686badfaf7f9a8808566d5",
    "R2E-Gym/R2E-Gym-Lite": "8d3163011f01f9393bb3dc7700497a79a8686ae5",
    "R2E-Gym/R2E-Gym-V1": "903d405799ac435061c41e72260c81ca5100f964",
}
"""The revisions that are taken unless another one is named."""


class UsageError(StartupError):
    """What was asked for contradicts itself or cannot be had; the command has to be written differently."""


@dataclass(frozen=True)
class Source:
    """One split of one dataset on the hub."""

    mode: str
    """What the tasks are for: `train` or `eval`."""
    dataset: str
    """`owner/name`"""
    revision: str
    """A commit, or a branch or tag that is looked up once."""
    split: str

    @property
    def folder(self) -> str:
        """Its folder below R2E_DATA_PATH."""
        return self.dataset.rpartition("/")[2]

    @property
    def pattern(self) -> str:
        """Its files below that folder."""
        return f"data/{self.split}-*.parquet"

    def __str__(self) -> str:
        return f"{self.dataset} {self.split} at {self.revision[:12]}"


def source(mode: str, dataset: str | None, revision: str | None, split: str | None) -> Source | None:
    """What is taken for `mode`, with the defaults for what is not told (None); an empty `dataset` means none at all."""
    if dataset is None:
        dataset = TRAIN_DATASET if mode == "train" else EVAL_DATASET
    dataset = dataset.strip().strip("/")
    if not dataset:
        return None
    if dataset.count("/") != 1 or not all(dataset.split("/")):
        raise UsageError(f"{mode} dataset {dataset!r} is not written owner/name, as {TRAIN_DATASET} is")
    split = split or ("train" if mode == "train" else "test")
    if "/" in split or "*" in split:
        raise UsageError(f"{mode} split {split!r} is not a plain word")
    return Source(mode, dataset, revision or PINNED.get(dataset, "main"), split)


@dataclass(frozen=True)
class Options:
    """One run."""

    data_dir: Path
    sif_dir: Path
    sources: tuple[Source, ...]
    """Train first."""
    requirements: Path
    """What wheels are fetched for."""
    limit: int | None
    """How many images at most."""
    repos: tuple[str, ...]
    """Only images of these; empty: of all."""
    ids: Path | None
    """A file that names the tasks whose images are wanted."""
    check: bool
    prune: bool
    yes: bool
    build: BuildOptions
    """Also how often, and with what pauses, a download is tried."""

    def __post_init__(self) -> None:
        narrowed = self.limit is not None or self.repos or self.ids
        if not self.sources:
            raise UsageError("neither train nor eval data is wanted: name at least one dataset")
        if len(self.sources) == 2 and self.sources[0].folder == self.sources[1].folder:
            first, second = self.sources
            if first.dataset != second.dataset or first.revision != second.revision:
                raise UsageError(f"{first} and {second} would share the folder {first.folder}: take one of them")
        if set("'\"") & set(str(self.sif_dir)):
            raise UsageError(f"R2E_SIF_DIR={self.sif_dir} has a quote in it, which Apptainer cannot work with")
        mirror = self.build.registry_mirror
        if mirror is not None and not _MIRROR.fullmatch(mirror):
            raise UsageError(f"registry mirror {mirror!r} is not written [http://]HOST[:PORT][/PREFIX]")
        if self.check and self.prune:
            raise UsageError("--check and --prune are two things: run one after the other")
        if self.yes and not self.prune:
            raise UsageError("--yes belongs to --prune")
        if self.prune and narrowed:
            raise UsageError("--prune looks at the images of all rows: --limit, --repos and --ids do not go with it")

    @property
    def state_dir(self) -> Path:
        """Records, locks and logs of the data."""
        return self.data_dir / ".setup"
