"""Puts the server's parts together from its settings; the only place that knows them all."""

import contextlib
import dataclasses
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swe_rollout.answers import Row, row_of
from swe_rollout.errors import StartupError
from swe_rollout.inventory import counts, load_modes
from swe_rollout.ladder import check_ladder
from swe_rollout.leases import TaskPool
from swe_rollout.outcome import Outcome
from swe_rollout.row_health import TROUBLES, SetAside
from swe_rollout.session import Mode, Session
from swe_rollout.settings import Settings, variable_of
from swe_rollout.slots import Slots
from swe_rollout.tasks import LoadedTasks

if TYPE_CHECKING:
    from swe_rollout.config import EnvironmentSection, RolloutConfig
    from swe_rollout.rollout import Rollout
    from swe_rollout.sandbox.limits import Limits
    from swe_rollout.sandbox.sandbox import Network

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
    """Per mode what `inventory.counts` says of it."""

    def tasks(self) -> dict[Mode, dict[str, int]]:
        """Per mode: how many rows there are, how far they are leased, what was left out."""
        return {mode: {**pool.counts(), **self.data[mode]} for mode, pool in self.pools.items()}

    def rows(self, *, mode: str | None = None, in_trouble: bool = False) -> list[Row]:
        """What is known of the rows of `mode` or of all; those in the worst trouble, with most failures, first."""
        rows = [
            row_of(name, task, state)
            for name, pool in self.pools.items()
            if mode in (None, name)
            for task, state in pool.rows()
            if state.troubles or not in_trouble
        ]
        ranks = {trouble: rank for rank, trouble in enumerate(TROUBLES)}
        return sorted(
            rows, key=lambda row: (min(map(ranks.__getitem__, row["trouble"]), default=len(ranks)), -row["failures"])
        )


@dataclass(frozen=True)
class Workshop:
    """What sessions and judgements need, whoever asks for them."""

    rollout: "Rollout"
    loaded: Mapping[Mode, LoadedTasks]
    confinement: str
    """Who sandboxes run as and why."""
    close: Callable[[], None]
    """End what still runs."""


def assemble(settings: Settings) -> Parts:
    """The server's parts. Takes seconds; raises as `open_workshop` does."""
    shop = open_workshop(settings, manifest=settings.validated)
    rollout, loaded = shop.rollout, shop.loaded
    return Parts(
        run=rollout,
        pools=_pools(settings, loaded),
        slots={"train": rollout.slots["train"], "eval": rollout.slots["eval"], "scoring": rollout.scoring_slots},
        confinement=shop.confinement,
        config_fingerprint=_fingerprint(settings, rollout.config),
        close=shop.close,
        data={mode: counts(tasks) for mode, tasks in loaded.items()},
    )


def open_workshop(settings: Settings, *, manifest: Path | None = None) -> Workshop:
    """Load configuration and tasks and make ready for sandboxes. Takes seconds.

    With a `manifest` only rows that it calls valid are loaded; who makes one needs them all.

    Raises `StartupError` with one line when something that every session needs is missing.
    """
    # Imported here: they bring mini-swe-agent along, which a process without rollouts can do without.
    from swe_rollout.config import load_config
    from swe_rollout.model import ChatClient
    from swe_rollout.rollout import Rollout
    from swe_rollout.sandbox.cgroups import with_cgroups
    from swe_rollout.sandbox.confinement import choose
    from swe_rollout.sandbox.probe import check_apptainer, open_scratch, try_sandbox
    from swe_rollout.sandbox.sandbox import SandboxHost
    from swe_rollout.sandbox.scratch import sweep
    from swe_rollout.scoring.harness import Harness
    from swe_rollout.scoring.judge import Judge

    config = load_config(settings.config)
    check_ladder(settings, config)
    with contextlib.ExitStack() as opened:
        harness = Harness()
        opened.callback(harness.close)
        loaded = load_modes(config.data, settings.r2e_data_path, settings.r2e_sif_dir, harness, manifest)
        confinement = choose(settings.confinement, settings.sandbox_user)
        check_apptainer()
        for name in ("work_dir", "tmp_dir"):
            _make_folder(name, getattr(settings, name))
        for folder in sweep(settings.tmp_dir):
            log.info("removed %s, left by a server that is gone", folder)
        chat = ChatClient(config.model.connect_timeout)
        opened.callback(chat.close)
        scratch = open_scratch(settings.tmp_dir, settings.run_id, confinement)
        opened.callback(scratch.close, seconds=_SECONDS_TO_CLOSE)
        host = SandboxHost(
            confinement,
            scratch,
            environment=config.environment.env,
            cwd=config.environment.cwd,
            limits=_limits(config.environment),
        )
        images = list(dict.fromkeys(task.sif for tasks in loaded.values() for task in tasks.tasks))
        wanted = config.environment.network.model_dump()
        networks: dict[Mode, Network] = {mode: wanted[mode] for mode in loaded}
        for mode in [mode for mode in loaded if networks[mode] == "host"]:
            log.warning("%s: sandboxes have this machine's network (environment.network.%s=host)", mode, mode)

        def tried(network: "Network") -> SandboxHost:
            of_network = dataclasses.replace(host, network=network)
            try_sandbox(of_network, *images)
            return with_cgroups(of_network, images[0])

        of_networks = {network: tried(network) for network in dict.fromkeys(networks.values())}
        hosts = {mode: of_networks[network] for mode, network in networks.items()}
        slots: dict[Mode, Slots] = {
            "train": Slots(settings.train_concurrency),
            "eval": Slots(settings.eval_concurrency),
        }
        return Workshop(
            rollout=Rollout(
                config=config,
                hosts=hosts,
                slots=slots,
                scoring_slots=Slots(settings.reward_concurrency),
                chat=chat,
                judges={mode: Judge(host, config.setup, config.scoring, harness) for mode, host in hosts.items()},
                work_dir=settings.work_dir,
            ),
            loaded=loaded,
            confinement=confinement.reason,
            close=opened.pop_all().close,
        )


def _pools(settings: Settings, loaded: Mapping[Mode, LoadedTasks]) -> dict[Mode, TaskPool]:
    sizes: dict[Mode, int] = {"train": settings.train_group_size, "eval": settings.eval_group_size}
    return {
        mode: TaskPool(
            tasks.tasks,
            group_size=sizes[mode],
            shuffle=settings.shuffle and mode == "train",
            seed=settings.seed,
            set_aside=SetAside(settings.row_failures, settings.row_pause_seconds),
        )
        for mode, tasks in loaded.items()
    }


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
