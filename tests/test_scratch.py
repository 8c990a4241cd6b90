"""What dead servers leave in the folder for temporary files, and who may remove it."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import swe_rollout
from swe_rollout.sandbox import processes
from swe_rollout.sandbox.scratch import sweep

ROOT = Path(swe_rollout.__file__).parents[1]
SERVER = """
    import sys
    from pathlib import Path
    from swe_rollout.cancellation import Cancellation
    from swe_rollout.sandbox.confinement import choose
    from swe_rollout.sandbox.sandbox import Sandbox, SandboxHost
    from swe_rollout.sandbox.scratch import Scratch, sweep
    tmp_dir, sif = map(Path, sys.argv[1:])
    swept = sweep(tmp_dir)
    confinement = choose("auto", "swe-sandbox")
    host = SandboxHost(confinement, Scratch(tmp_dir, "run", confinement))
    sandbox = Sandbox(host, sif)
    sandbox.start(Cancellation())
    print(host.scratch._janitor.pid, len(swept), flush=True)
    sandbox.run("read forever </dev/zero & wait", timeout=2000, cancellation=Cancellation())
"""


class LiveServer:
    """A process with a scratch folder and a sandbox that is busy."""

    def __init__(self, tmp_dir: Path, sif: Path) -> None:
        command = [sys.executable, "-c", textwrap.dedent(SERVER), tmp_dir, sif]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.janitor, self.swept = map(int, self.process.stdout.readline().split())
        self.folder = tmp_dir / f"run-{self.process.pid}"

    def kill(self) -> None:
        """The server and its janitor at once, as a machine short of memory might."""
        if self.process.poll() is None:
            os.kill(self.janitor, signal.SIGKILL)
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def live(open_folder: Callable[[], Path], sif: Path) -> Iterator[Callable[..., LiveServer]]:
    servers: list[LiveServer] = []
    folder = open_folder()

    def begin() -> LiveServer:
        servers.append(LiveServer(folder, sif))
        return servers[-1]

    yield begin
    for server in servers:
        server.kill()
    sweep(folder)


def test_only_what_dead_servers_left_is_swept(live: Callable[..., LiveServer], tmp_path: Path) -> None:
    first, second = live(), live()
    assert (first.swept, second.swept) == (0, 0)
    tmp_dir = first.folder.parent
    # Not ours, whatever they are called.
    others = [tmp_dir / name for name in ("notes-2024", ".run-1", f"run-{os.getpid()}", "lock-1", "file-7")]
    for other in others[:-1]:
        other.mkdir()
    (others[1] / "lock").touch()
    others[-1].touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    others.append(tmp_dir / "link-1")
    others[-1].symlink_to(elsewhere)

    first.kill()
    assert first.folder.is_dir()
    helpers = processes.belonging_to(first.folder)
    assert helpers
    third = live()
    assert third.swept == 1
    assert not first.folder.exists()
    assert processes.belonging_to(first.folder) == []
    for server in (second, third):
        assert server.process.poll() is None
        assert processes.belonging_to(server.folder)
        assert len(list(server.folder.iterdir())) == 4
    assert all(os.path.lexists(other) for other in others)
    assert (elsewhere / "lock").exists()
    # The lock of a server that is gone is free, but for as long as its janitor works.
    third.process.kill()
    third.process.communicate()
    while third.folder.exists():
        time.sleep(0.01)
    assert sweep(tmp_dir) == []
