"""Puts the server's parts together from its settings; the only place that knows them all."""

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rollout.errors import ImageError, StartupError, UnsupportedRowsError
from swe_rollout.ladder import check_ladder
from swe_rollout.leases import TaskPool
from swe_rollout.outcome import Outcome
from swe_rollout.sandbox.images import check_sif
from swe_rollout.session import Mode, Session
from swe_rollout.settings import Settings, variable_of
from swe_rollout.slots import Slots
from swe_rollout.tasks import LoadedTasks, find_files, load_tasks

if TYPE_CHECKING:
    from swe_rollout.config import EnvironmentSection, RolloutConfig
    from swe_rollout.sandbox.limits import Limits

log = logging.getLogger(__name__)

_SETTINGS_OF_A_LAUNCH = {
    *("host", "port", "run_id", "work_dir", "tmp_dir", "http_threads", "token", "token_file", "insecure"),
}
"""Two servers that differ in these alone give the same sessions."""
_SECONDS_TO_CLOSE = 2.0


@dataclass(frozen=True)
class Parts:
    """What the HTTP face serves and tells about itself."""

    run: Callable[[Session], Outcome]
    """One rollout, from the first model call to the reward."""
    pools: Mapping[Mode, TaskPool]
    """The tasks of each mode that has any."""
    slots: Mapping[str, Slots]
    confinement: str
    """Who sandboxes run as and why."""
    config_fingerprint: str
    """The same for servers with the same configuration."""
    close: Callable[[], None]
    """End what still runs when all sessions were told to end."""
    data: Mapping[Mode, Mapping[str, int]]
    """Per mode: `images` that its tasks need, and what was left out."""

    def tasks(self) -> dict[Mode, dict[str, int]]:
        """Per mode: how many rows there are, how far they are leased, what was left out."""
        return {mode: {**pool.counts(), **self.data[mode]} for mode, pool in self.pools.items()}


def assemble(settings: Settings) -> Parts:
    """Load configuration and tasks and make ready for sandboxes. Takes seconds.

    Raises `StartupError` with one line when something that every session needs is missing.
    """
    # Imported here: they bring mini-swe-agent along, which a process without rollouts can do without.
    from swe_rollout.config import load_config
    from swe_rollout.model import ChatClient
    from swe_rollout.rollout import Rollout
    from swe_rollout.sandbox.confinement import choose
    from swe_rollout.sandbox.probe import check_apptainer, open_scratch, try_sandbox
    from swe_rollout.sandbox.sandbox import SandboxHost
    from swe_rollout.sandbox.scratch import sweep
    from swe_rollout.scoring.judge import Judge

    config = load_config(settings.config)
    check_ladder(settings, config)
    loaded = _load(settings, config)
    confinement = choose(settings.confinement, settings.sandbox_user)
    check_apptainer()
    for name in ("work_dir", "tmp_dir"):
        _make_folder(name, getattr(settings, name))
    for folder in sweep(settings.tmp_dir):
        log.info("removed %s, left by a server that is gone", folder)
    scratch = open_scratch(settings.tmp_dir, settings.run_id, confinement)
    host = SandboxHost(
        confinement,
        scratch,
        environment=config.environment.env,
        cwd=config.environment.cwd,
        limits=_limits(config.environment),
    )
    networks = config.environment.network.model_dump()
    hosts: dict[Mode, SandboxHost] = {mode: dataclasses.replace(host, network=networks[mode]) for mode in loaded}
    for mode in [mode for mode in loaded if networks[mode] == "host"]:
        log.warning("%s: sandboxes have this machine's network (environment.network.%s=host)", mode, mode)
    try:
        try_sandbox(next(iter(hosts.values())), _whole_image(loaded))
    except StartupError:
        scratch.close()
        raise
    slots: dict[Mode, Slots] = {"train": Slots(settings.train_concurrency), "eval": Slots(settings.eval_concurrency)}
    scoring_slots = Slots(settings.reward_concurrency)
    chat = ChatClient(config.model.connect_timeout)

    def close() -> None:
        scratch.close(seconds=_SECONDS_TO_CLOSE)
        chat.close()

    return Parts(
        run=Rollout(
            config=config,
            hosts=hosts,
            slots=slots,
            scoring_slots=scoring_slots,
            chat=chat,
            judges={mode: Judge(host, config.setup, config.scoring) for mode, host in hosts.items()},
            work_dir=settings.work_dir,
        ),
        pools=_pools(settings, loaded),
        slots={"train": slots["train"], "eval": slots["eval"], "scoring": scoring_slots},
        confinement=confinement.reason,
        config_fingerprint=_fingerprint(settings, config),
        close=close,
        data={
            mode: {
                "images": len({task.sif for task in tasks.tasks}),
                "missing_images": len(tasks.missing_images),
                "rows_without_image": tasks.n_without_image,
                "bad_rows": len(tasks.bad_rows),
            }
            for mode, tasks in loaded.items()
        },
    )


def _load(settings: Settings, config: "RolloutConfig") -> dict[Mode, LoadedTasks]:
    """The tasks of each mode that has files; a server for one of them alone is fine."""
    patterns: dict[Mode, str] = {"train": config.data.train, "eval": config.data.eval}
    loaded: dict[Mode, LoadedTasks] = {}
    absent: list[StartupError] = []
    for mode, pattern in patterns.items():
        try:
            files = find_files(settings.r2e_data_path, pattern)
        except StartupError as error:
            absent.append(error)
            continue
        try:
            tasks = loaded[mode] = load_tasks(files, settings.r2e_sif_dir)
        except UnsupportedRowsError as error:
            log.warning("no %s sessions: %s", mode, error)
            absent.append(error)
            continue
        if tasks.missing_images:
            log.warning(
                "%s: %d of %d rows left out: %d images have no SIF in %s, the first is %s",
                *(mode, tasks.n_without_image, tasks.n_rows, len(tasks.missing_images)),
                *(settings.r2e_sif_dir, tasks.missing_images[0]),
            )
        for row in tasks.bad_rows:
            log.warning("%s: row %s left out: %s", mode, row.id, row.reason)
    if not loaded:
        raise absent[0]
    return loaded


def _pools(settings: Settings, loaded: Mapping[Mode, LoadedTasks]) -> dict[Mode, TaskPool]:
    sizes: dict[Mode, int] = {"train": settings.train_group_size, "eval": settings.eval_group_size}
    return {
        mode: TaskPool(
            tasks.tasks,
            group_size=sizes[mode],
            shuffle=settings.shuffle and mode == "train",
            seed=settings.seed,
        )
        for mode, tasks in loaded.items()
    }


def _whole_image(loaded: Mapping[Mode, LoadedTasks]) -> Path:
    """The first image that is not damaged; a session on one that is fails by itself."""
    images = [task.sif for tasks in loaded.values() for task in tasks.tasks]
    for image in images:
        try:
            check_sif(image)
        except ImageError as error:
            log.warning("%s", error)
        else:
            return image
    raise StartupError(f"every image is damaged, the first is {images[0]}: build them again")


def _limits(config: "EnvironmentSection") -> "Limits":
    from swe_rollout.sandbox.limits import Limits

    memory, disk = config.memory_limit_mb, config.disk_limit_mb
    return Limits(
        memory_bytes=None if memory is None else memory << 20,
        processes=config.process_limit,
        disk_bytes=None if disk is None else disk << 20,
    )


def _make_folder(name: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"{variable_of(name)}={folder}: {error.strerror}; choose another folder") from None


def _fingerprint(settings: Settings, config: "RolloutConfig") -> str:
    said = settings.model_dump_json(exclude=_SETTINGS_OF_A_LAUNCH) + config.model_dump_json()
    return hashlib.sha256(said.encode()).hexdigest()[:16]
