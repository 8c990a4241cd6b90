"""The real agent server as a process on the sample tasks, started again at will on the same folders and port."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from swe_rollout.cache import cache_folder
from swe_rollout.errors import StartupError

REPOSITORY = Path(__file__).parents[1]
SAMPLES = cache_folder() / "samples"
PARQUET = Path("R2E-Gym-Subset/data/train-00000-of-00001.parquet")
_START_SECONDS = 180.0


@dataclass(frozen=True)
class Usage:
    """What a process takes of the machine."""

    rss: int
    """Resident bytes."""
    files: int
    """Open descriptors."""
    threads: int
    cpu: float
    """Seconds of CPU so far, by all its threads."""


class Server:
    """Folders and an address for servers that come one after the other."""

    def __init__(self, root: Path, *specs: str, **settings: object) -> None:
        """`specs` are values for the configuration, `settings` for AGENT_SERVER_….

        Images are linked below `root`, so that a loop device over one of them can be told from another server's.
        Raises `StartupError` when there are no samples.
        """
        if not (SAMPLES / "data" / PARQUET).is_file():
            raise StartupError("no sample tasks: run `make samples`")
        self.root = root
        self.sifs = root / "sifs"
        self.sifs.mkdir(mode=0o755)
        for sif in (SAMPLES / "sifs").glob("*.sif"):
            _link(sif, self.sifs / sif.name)
        self.work, self.tmp = root / "work", root / "tmp"
        self.starts = 0
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        # Tasks for evaluation would make each start take seconds longer.
        specs = ("data.eval=", *specs)
        self._command = [sys.executable, "agent_server.py", f"--port={port}", *(f"--config={spec}" for spec in specs)]
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AGENT_SERVER_")},
            "R2E_DATA_PATH": str(SAMPLES / "data"),
            "R2E_SIF_DIR": str(self.sifs),
            "AGENT_SERVER_WORK_DIR": str(self.work),
            "AGENT_SERVER_TMP_DIR": str(self.tmp),
            **{f"AGENT_SERVER_{name.upper()}": str(value) for name, value in settings.items()},
        }

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """Start one and wait until it is ready. Raises `StartupError` with its last words."""
        self.begin()
        self.await_ready()

    def begin(self) -> None:
        """Start one; it needs seconds until it is ready."""
        self.starts += 1
        self.log = self.root / f"server-{self.starts}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(self._command, cwd=REPOSITORY, env=self._environment, stderr=log)

    def await_ready(self) -> None:
        """Raises `StartupError` with its last words."""
        deadline = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/readyz", timeout=10, trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        self.kill()
        raise StartupError(f"the agent server did not start: {self.log.read_text()[-500:]}")

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """End it by SIGTERM; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def usage(self) -> Usage:
        """What the running one takes."""
        proc = Path(f"/proc/{self.pid}")
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        ticks = (proc / "stat").read_text().rpartition(")")[2].split()[11:13]
        return Usage(
            rss=int(status["VmRSS"].split()[0]) << 10,
            files=len(os.listdir(proc / "fd")),
            threads=int(status["Threads"]),
            cpu=sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"),
        )


def machine_cpu() -> float:
    """Seconds of CPU that this machine has worked since its start, on all its cores."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def left_behind(root: Path) -> Sequence[str]:
    """What this machine still has of servers, clients and sandboxes that worked below `root`."""
    from swe_rollout.sandbox import processes

    left = [f"process {pid}: {_command_line(pid)}" for pid in processes.belonging_to(root)]
    mark = f"{root}/"
    left += [f"mount: {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if mark in line]
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = file.read_text().strip()
        except OSError:
            continue
        if backing.startswith(mark):
            left.append(f"loop device {file.parts[3]} over {backing}")
    return left


def zombies_of(pid: int) -> Sequence[int]:
    """Children of `pid` that have ended and that nobody has asked about."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        found += [int(child) for child in children if _state(int(child)) == "Z"]
    return found


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")[:200]
    except OSError:
        return "gone by now"


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        # Another file system.
        target.symlink_to(source)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
