"""What a sandbox may use, held without cgroups and with them: real memory, real files, real fork bombs."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from served import served

from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import AgentFault
from swe_rollout.sandbox.cgroups import with_cgroups
from swe_rollout.sandbox.channel import CommandResult
from swe_rollout.sandbox.confinement import choose
from swe_rollout.sandbox.limits import Limits
from swe_rollout.sandbox.sandbox import Sandbox, SandboxHost, running
from swe_rollout.sandbox.scratch import Scratch
from swe_rollout.sandbox.watch import recording

MB = 1 << 20


@pytest.fixture(params=["auto", "root"])
def host(request: pytest.FixtureRequest, open_folder: Callable[[], Path]) -> Iterator[SandboxHost]:
    confinement = choose(request.param, "swe-sandbox")
    scratch = Scratch(open_folder(), "test", confinement)
    yield SandboxHost(confinement, scratch)
    scratch.close()


def limited(host: SandboxHost, **limits: int) -> SandboxHost:
    return dataclasses.replace(host, limits=Limits(**limits))


def run(sandbox: Sandbox, command: str) -> CommandResult:
    return sandbox.run(command, timeout=60, cancellation=Cancellation())


# Has forked children that share what it holds, so that what is resident adds up to far more than is used.
_SHARED = """
import os, time
held = b"x" * (120 << 20)
for _ in range(5):
    os.fork() or (time.sleep(1.2), os._exit(0))
time.sleep(1.2)
print("done")
"""
_GROW = """
import time
held = []
while True:
    held.append(b"x" * (20 << 20))
    time.sleep(0.03)
"""


def test_memory(host: SandboxHost, sif: Path) -> None:
    with recording() as usage, running(limited(host, memory_bytes=300 * MB), sif, Cancellation()) as sandbox:
        shared = run(sandbox, f"sleep 4321 & python3 -c '{_SHARED}'")
        assert (shared.output, shared.killed) == ("done\n", "")
        assert usage.peak_memory_mb is not None
        assert 120 < usage.peak_memory_mb < 300

        grown = run(sandbox, f"echo early; python3 -c '{_GROW}'; echo $?; exit 3")
        assert grown.output.startswith("early\n")
        assert "Killed" in grown.output
        assert grown.output.endswith("137\n")
        assert grown.returncode == 3
        assert grown.killed.startswith("the largest process was killed: ")
        assert grown.killed.endswith(" of memory were used, 300 MB is the limit")
        alone = run(sandbox, f"exec python3 -c '{_GROW}'")
        assert (alone.returncode, alone.timed_out) == (137, False)
        after = run(sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert after.killed == ""
        assert "sleep 4321" in after.output, "what is small lives on"

        filled = run(sandbox, "echo early; head -c 400M /dev/zero > /dev/shm/file; sleep 50")
        assert (filled.output, filled.returncode) == ("early\n", 137)
        assert "files in memory, such as those in /dev/shm, take" in filled.killed
        assert run(sandbox, "rm /dev/shm/file").killed == ""
        run(sandbox, "head -c 400M /dev/zero > /dev/shm/file; sleep 50")
        with pytest.raises(AgentFault, match="still stores more than it may") as caught:
            run(sandbox, "sleep 0.1")
        assert caught.value.exit_status == "MemoryLimitExceeded"
    assert usage.peak_memory_mb > 300
    assert usage.kills.startswith("the largest process was killed: ")


def test_disk(host: SandboxHost, sif: Path) -> None:
    with running(limited(host, disk_bytes=60 * MB), sif, Cancellation()) as sandbox:
        run(
            sandbox,
            "sleep 4321 & truncate -s 10G sparse; head -c 40M /dev/zero >file; for i in {1..9}; do ln file $i; done",
        )
        assert run(sandbox, "sleep 1.2").killed == "", "neither holes nor second names take space"
        filled = run(sandbox, "echo early; head -c 100M /dev/zero > /tmp/file; sleep 50")
        assert (filled.output, filled.returncode, filled.timed_out) == ("early\n", 137, False)
        assert re.search(r"files on disk take \d+ MB, 60 MB is the limit", filled.killed)
        assert "the next command has to make room" in filled.killed
        made_room = run(sandbox, "rm /tmp/file; cat /proc/[0-9]*/cmdline")
        assert made_room.killed == ""
        assert "4321" not in made_room.output
        assert run(sandbox, "sleep 1.2; echo lives").output == "lives\n"

        # Deeper than a path is long, where files could be hidden from whoever measures; FUSE does not let that be made.
        deep = "for i in {1..40}; do d=$(printf %0200d 1); mkdir $d; cd -P $d; done"
        fill, size = (
            ("head -c 100M /dev/zero >more", r"\d+ MB") if host.confinement.needs_fuse else (deep, "more than can")
        )
        run(sandbox, f"({fill}); sleep 50")
        with pytest.raises(AgentFault, match=f"files on disk take {size}") as caught:
            run(sandbox, "true")
        assert caught.value.exit_status == "DiskLimitExceeded"


_COUNT = "for p in /proc/[0-9]*; do [ -e $p/exe ] && echo $p; done | wc -l"


def test_disk_of_empty_files(host: SandboxHost, sif: Path) -> None:
    with running(limited(host, disk_bytes=32 * MB), sif, Cancellation()) as sandbox:
        run(sandbox, "mkdir many; cd many; touch {1..1000}")
        assert run(sandbox, "sleep 1.2").killed == ""
        assert re.search(r"files on disk take \d+ MB", run(sandbox, "touch {1001..4000}; sleep 50").killed)


@pytest.mark.parametrize("host", ["root"], indirect=True)
def test_a_fork_bomb_of_root(host: SandboxHost, sif: Path) -> None:
    """The kernel does not count root's processes; for other users see `test_sandbox.py`."""
    with running(limited(host, processes=200), sif, Cancellation()) as sandbox:
        # Doubles as a bomb does, but ends at two thousand: a machine that is busy must survive its tests.
        bomb = "f() { (($1)) && f $(($1 - 1)) & (($1)) && f $(($1 - 1)) & sleep 50; }; f 10"
        result = run(sandbox, f"echo early; ({bomb}) & sleep 1")
        assert result.output.startswith("early\n")
        killed, deadline = result.killed, time.monotonic() + 60
        while not killed:
            assert time.monotonic() < deadline
            killed = run(sandbox, "sleep 0.5").killed
        assert killed.startswith("processes were killed: there were more than 200")
        run(sandbox, "sleep 1")  # whether the newest or all were killed, it is too few to breed on
        assert int(run(sandbox, _COUNT).output) < 220
        threads = "import threading\nfor _ in range(3000): threading.Thread(target=threading.Event().wait).start()"
        assert run(sandbox, f"exec python3 -c '{threads}'").returncode == 137
        run(sandbox, "kill -9 -1")
        assert int(run(sandbox, _COUNT).output) < 10


_FORK = """
import os, time
for _ in range(200):
    os.fork() or (time.sleep(50), os._exit(0))
"""


@pytest.fixture
def cgroups(open_folder: Callable[[], Path], sif: Path) -> Iterator[SandboxHost]:
    """Sandboxes of an Apptainer that makes cgroups itself, as its administrator may have told it to."""
    folder = open_folder()
    text = Path("/etc/apptainer/apptainer.conf").read_text()
    (folder / "apptainer.conf").write_text(text.replace("systemd cgroups = yes", "systemd cgroups = no"))
    program = folder / "apptainer"
    program.write_text(f'#!/bin/sh\nexec apptainer --config {folder}/apptainer.conf "$@"\n')
    program.chmod(0o755)
    flags = ("--no-privs", "--memory", "200M", "--pids-limit", "50")
    if subprocess.run([program, "exec", *flags, sif, "true"], check=False).returncode != 0:
        pytest.skip("no cgroups can be made on this machine")
    confinement = choose("root", "swe-sandbox")
    scratch = Scratch(open_folder(), "test", confinement)
    yield SandboxHost(confinement, scratch, apptainer=str(program))
    scratch.close()


def test_cgroups(cgroups: SandboxHost, sif: Path) -> None:
    plain = limited(cgroups, memory_bytes=150 * MB, processes=100)
    held = with_cgroups(plain, sif)
    assert held != plain
    with running(held, sif, Cancellation()) as sandbox:
        for _ in range(5):
            burst = run(sandbox, "exec python3 -c 'bytearray(400 << 20)'")
            assert burst.returncode == 137, "it is over before anyone looks"
        forks = run(sandbox, f"exec python3 -c '{_FORK}'")
        assert "BlockingIOError" in forks.output
        assert forks.killed == ""
        run(sandbox, "kill -9 -1")
        # Who is killed for it, and by whom, differs from time to time.
        with pytest.raises(AgentFault, match="files in memory, such as those in /dev/shm, take") as caught:
            [run(sandbox, "head -c 400M /dev/zero > /dev/shm/file; sleep 1") for _ in range(5)]
        assert caught.value.exit_status == "MemoryLimitExceeded"


@pytest.mark.parametrize("host", ["auto"], indirect=True)
def test_a_user_for_whom_no_cgroups_may_be_made(host: SandboxHost, sif: Path) -> None:
    with running(with_cgroups(limited(host, memory_bytes=150 * MB), sif), sif, Cancellation()) as sandbox:
        assert run(sandbox, "echo works").output == "works\n"


def test_network(host: SandboxHost, sif: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        reach = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}"
        with running(host, sif, Cancellation()) as sandbox:
            assert "Connection refused" in run(sandbox, reach).output
            assert run(sandbox, "tail -n +2 /proc/net/route").output == ""
        with running(dataclasses.replace(host, network="host"), sif, Cancellation()) as sandbox:
            assert run(sandbox, reach).returncode == 0


def test_whole_sessions(samples: Path, open_folder: Callable[[], Path]) -> None:
    """The agent is told, and has one command to make room; in the judge's sandbox the same is a zero, and no error."""
    fill = "head -c 100M /dev/zero > /tmp/file; sleep 50"
    specs = ("environment.disk_limit_mb=64", "environment.network.train=host", f"scoring.command={fill}")
    # Of a machine that lets nobody make a network.
    apptainer = open_folder() / "apptainer"
    apptainer.write_text(f'#!/bin/sh\n[ "${{*##* none *}}" ] && exec {shutil.which("apptainer")} "$@"\n')
    apptainer.chmod(0o755)
    path = f"{apptainer.parent}:{os.environ['PATH']}"
    with contextlib.contextmanager(served)(samples, open_folder(), *specs, PATH=path) as server:
        assert "train: sandboxes have this machine's network" in server.said
        view = server.play("filled", [fill, "true", "true"])
        assert (view["status"], view["reward"], view["n_calls"]) == ("completed", 0.0, 2)
        assert view["agent_exit_status"] == "DiskLimitExceeded"
        assert "still stores more than it may" in view["reason"]
        told = server.endpoint.requests["sk-filled"][1]["messages"][-1]["content"]
        assert "The sandbox went over a limit: everything that ran in the sandbox was killed" in told

        submit = "git diff > patch.txt", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"
        view = server.play("scored", [server.gold, *submit])
        assert (view["status"], view["reward"]) == ("completed", 0.0)
        assert (
            "; in the judge's sandbox everything that ran in the sandbox was killed: its files on disk"
            in view["reason"]
        )
        outcome = json.loads(server.written(view["session_id"], "outcome.json"))
        assert sorted(outcome["peak_memory_mb"]) == ["agent", "judge"]
