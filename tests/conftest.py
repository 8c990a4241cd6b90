from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from scripted import Server


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
