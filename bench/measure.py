"""The measurements. Every figure is a median of wall-clock milliseconds."""

import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import StartupError
from swe_rollout.sandbox.confinement import Confinement
from swe_rollout.sandbox.probe import open_scratch, try_sandbox
from swe_rollout.sandbox.sandbox import Sandbox, SandboxHost

Box = TypeVar("Box")
CROWD = 64
FILES = "mkdir d; for i in {1..1000}; do echo $i > d/$i; done; cat d/* | wc -l; rm -r d"
PYTHON = "for i in 1 2 3 4 5; do python3 -c 'import json, re, subprocess, unittest'; done"


@dataclass(frozen=True)
class Figures:
    """Milliseconds per step."""

    start: float
    command: float
    python: float
    files: float
    stop: float
    session: float
    crowd: float

    @staticmethod
    def steps() -> dict[str, str]:
        """What each field is, for people."""
        return {
            "start": "start to first command",
            "command": "one `true`",
            "python": "five Python starts with imports",
            "files": "write, read and remove 1,000 files",
            "stop": "close, layer removed",
            "session": "a session: start, 30 commands, stop",
            "crowd": f"{CROWD} starts at once, all used and closed",
        }


def measure_bash(commands: int) -> float:
    """One `bash -c true` on the host, output read through a pipe."""
    return _median(
        commands,
        lambda: subprocess.run(
            ["bash", "-c", "true"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
        ),
    )


def measure_sandbox(sif: Path, folder: Path, confinement: Confinement, rounds: int, commands: int) -> Figures:
    """Ours. Raises `StartupError` when no sandbox can run."""
    scratch = open_scratch(folder, "bench", confinement)
    host = SandboxHost(confinement, scratch)
    cancellation = Cancellation()

    def run(sandbox: Sandbox, command: str) -> None:
        result = sandbox.run(command, timeout=600, cancellation=cancellation)
        assert result.returncode == 0, result.output

    def opened() -> Sandbox:
        sandbox = Sandbox(host, sif)
        sandbox.start(cancellation)
        run(sandbox, "true")
        return sandbox

    try:
        try_sandbox(host, sif)
        return _figures(opened, run, Sandbox.discard, rounds, commands)
    finally:
        scratch.close()


def measure_instance(sif: Path, rounds: int, commands: int) -> Figures:
    """The same work through an instance daemon and one `apptainer exec` per command."""
    names = iter(range(1_000_000))
    contained = ["--contain", "--cleanenv", "--no-home", "--no-mount", "tmp", "--writable-tmpfs", "--no-privs"]

    def call(*command: str | Path) -> None:
        done = subprocess.run(
            ["apptainer", "--silent", *command], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode != 0:
            raise StartupError(f"apptainer {command[0]} {command[1]} failed: {done.stderr.decode().strip()[-300:]}")

    def run(name: str, command: str) -> None:
        call("exec", "--no-privs", "--cleanenv", "--pwd", "/testbed", f"instance://{name}", "bash", "-c", command)

    def opened() -> str:
        name = f"bench-{next(names)}"
        call("instance", "start", *contained, sif, name)
        run(name, "true")
        return name

    return _figures(opened, run, lambda name: call("instance", "stop", name), min(rounds, 5), commands)


def _figures(
    opened: Callable[[], Box], run: Callable[[Box, str], None], close: Callable[[Box], None], rounds: int, commands: int
) -> Figures:
    starts, stops = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        box = opened()
        starts.append(time.perf_counter() - began)
        began = time.perf_counter()
        close(box)
        stops.append(time.perf_counter() - began)
    box = opened()
    command = _median(commands, lambda: run(box, "true"))
    python = _median(3, lambda: run(box, PYTHON))
    files = _median(3, lambda: run(box, FILES))
    close(box)

    def session() -> None:
        box = opened()
        for _ in range(30):
            run(box, "true")
        close(box)

    return Figures(
        start=statistics.median(starts) * 1000,
        command=command,
        python=python,
        files=files,
        stop=statistics.median(stops) * 1000,
        session=_median(3, session),
        crowd=_median(1, lambda: _crowd(lambda: close(opened()))),
    )


def _crowd(use: Callable[[], None]) -> None:
    failures: list[Exception] = []

    def attempt() -> None:
        try:
            use()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(CROWD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise StartupError(f"{len(failures)} of {CROWD} starts at once failed, the first: {failures[0]}")


def _median(times: int, work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1000
