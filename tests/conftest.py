import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted import Server

from swe_rollout.cache import cache_folder


@pytest.fixture(scope="session")
def samples() -> Path:
    """The sample tasks in the cache that everything shares (`data/`, `sifs/`), built if they are not there."""
    subprocess.run([sys.executable, "-m", "data.build"], cwd=Path(__file__).parents[1], check=True)
    return cache_folder() / "samples"


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
