import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted import Process, Server

from swe_rollout.cache import cache_folder

# Whoever started the tests may have had these ignored, as `nohup` and `&` do; what the tests start must not inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(ignored, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _no_login_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Agents run in login shells, as Relax starts them, and tests kill them: not in the middle of a user's own files.

    A shell that is killed in `pyenv init`, for one, leaves a lock for which every later one waits a minute.
    """
    os.environ["SWE_ROLLOUT_CACHE"] = str(cache_folder())
    os.environ["HOME"] = str(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def samples() -> Path:
    """The sample tasks in the cache that everything shares (`data/`, `sifs/`), built if they are not there."""
    subprocess.run([sys.executable, "-m", "data.build"], cwd=Path(__file__).parents[1], check=True)
    return cache_folder() / "samples"


@pytest.fixture(scope="session")
def train_data(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample tasks for training alone: with tasks for evaluation every server starts a grading process too."""
    folder = tmp_path_factory.mktemp("train_data")
    (folder / "R2E-Gym-Subset").symlink_to(samples / "data" / "R2E-Gym-Subset")
    return folder


@pytest.fixture(scope="session")
def open_folder() -> Iterator[Callable[[], Path]]:
    """Makes folders that every user can enter, as sandboxes must; pytest's own are closed."""
    with tempfile.TemporaryDirectory(prefix="swe-rollout-tests-") as name:
        root = Path(name)
        root.chmod(0o755)
        numbers = itertools.count(1)

        def make() -> Path:
            folder = root / str(next(numbers))
            folder.mkdir(mode=0o755)
            return folder

        yield make


@pytest.fixture(scope="session")
def sif(samples: Path) -> Path:
    """A small image with bash, git and Python, and a task in it."""
    return next(iter(sorted((samples / "sifs").glob("*xmltodict*.sif"))))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers with scripted rollouts and stops them after the test."""
    servers: list[Server] = []

    def start(run: object, **options: object) -> Server:
        servers.append(Server(run, tmp_path, **options))  # type: ignore[arg-type]
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts servers with scripted rollouts as processes on one work dir, and ends them after the test."""
    processes: list[Process] = []

    def begin(*flags: str, **options: str) -> Process:
        processes.append(Process(tmp_path, *flags, **options))
        return processes[-1]

    yield begin
    for process in processes:
        process.end()
