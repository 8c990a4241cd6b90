"""One sandbox: `apptainer exec` of a SIF as a child process, with the command loop inside."""

import contextlib
import dataclasses
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import AgentFault, SandboxError
from swe_rollout.sandbox import processes
from swe_rollout.sandbox.channel import MOUNT_POINT, OUTPUT_LIMIT_BYTES, Channel, CommandResult
from swe_rollout.sandbox.confinement import Confinement
from swe_rollout.sandbox.images import check_sif
from swe_rollout.sandbox.limits import Limits
from swe_rollout.sandbox.scratch import Scratch, remove_tree
from swe_rollout.sandbox.watch import Watch
from swe_rollout.sandbox.watched import Watched

START_SECONDS = 120.0
CLOSE_SECONDS = 5.0
DEFAULT_FLAGS = (
    # The image's own /root and /tmp stay visible (uv keeps its interpreters under /root); nothing of the host does.
    *("--contain", "--cleanenv", "--no-home", "--no-mount", "tmp"),
    # No environment value is evaluated by a shell.
    "--no-eval",
    "--no-privs",
    # Own processes and shared memory. Without Apptainer's init, the loop is process 1.
    *("--pid", "--ipc", "--no-init"),
)
Network = Literal["none", "host"]
"""`none`: nothing but a loopback of its own. `host`: the machine's network, as every process of it has."""
_NETWORK_FLAGS: Mapping[Network, Sequence[str]] = {"none": ("--net", "--network", "none"), "host": ()}


@dataclass(frozen=True)
class SandboxHost:
    """What all sandboxes of one server have in common."""

    confinement: Confinement
    scratch: Scratch
    apptainer: str = "apptainer"
    flags: Sequence[str] = DEFAULT_FLAGS
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables for every command, over the image's own."""
    cwd: str = "/testbed"
    network: Network = "none"
    limits: Limits = field(default_factory=Limits)
    watch: Watch = field(default_factory=Watch)
    """Holds the sandboxes to `limits`."""


class Sandbox:
    """A running sandbox. Use it from one thread; a `Cancellation` may end any wait from another.

    `folder` is its own on the host; `layer` below it is the one whose `upper` holds all that was changed, readable
    after `close`. `discard` removes both.
    """

    def __init__(self, host: SandboxHost, image: Path, *, binds: Sequence[tuple[Path, str]] = ()) -> None:
        """Prepare the folders of a sandbox; `start` brings it up. `binds` are mounted read-only.

        Raises `ImageError` for a damaged image and `SandboxError` when the scratch folder is full.
        """
        check_sif(image)
        self._host = host
        self._image = image
        self._binds = binds
        try:
            self.folder = host.scratch.new_folder("sandbox")
            self.layer = self.folder / "layer"
            self.layer.mkdir(mode=0o755)
            host.confinement.own(self.layer)
            self._channel = Channel(
                self.folder / "channel",
                environment=host.environment,
                cwd=host.cwd,
                process_limit=host.limits.processes,
            )
        except OSError as error:
            raise SandboxError(f"the scratch folder takes no more sandboxes: {error}") from error
        self._noise = b""
        self._process: subprocess.Popen[bytes] | None = None
        self._pids: Sequence[int] = ()
        """Apptainer's processes, its FUSE helpers and the loop, once it has started."""
        self._loop: processes.ProcessHandle | None = None
        self._front_fd: int | None = None
        self._watched: Watched | None = None

    def start(self, cancellation: Cancellation) -> None:
        """Start it and wait until the command loop answers. Raises `SandboxError` with Apptainer's own words."""
        try:
            process = subprocess.Popen(
                self._command_line(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._host.scratch.home)}
                | {"APPTAINER_CACHEDIR": str(self.folder / "cache")},
            )
        except OSError as error:
            raise SandboxError(f"cannot start {self._host.apptainer}: {error}; run `make setup`") from error
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._wait_until_ready(process, cancellation)
        self._front_fd = os.pidfd_open(process.pid)
        self._pids = processes.tree(process.pid)
        try:
            self._loop = processes.process_one(self._pids)
        except OSError:
            raise SandboxError(f"the sandbox of {self._image.name} died right after its start") from None
        self._channel.attach(
            process.stdin,
            process.stdout,
            loop=self._loop,
            front_fd=self._front_fd,
            front_code=lambda: _code_of(process),
        )
        self._watched = self._host.watch.add(self._loop, self.layer, self._host.limits)

    def run(
        self,
        command: str,
        *,
        timeout: float,
        cancellation: Cancellation,
        output_limit: int = OUTPUT_LIMIT_BYTES,
    ) -> CommandResult:
        """Run `command` as `bash -c` would in a new shell; see `Channel.run` for the limits and the errors.

        Raises `AgentFault` also when the command before was told to make room and this one has not made it.
        """
        try:
            result = self._channel.run(command, timeout=timeout, cancellation=cancellation, output_limit=output_limit)
        except (SandboxError, AgentFault):
            if self._watched:
                self._watched.blame()
            raise
        killed = self._watched.settle() if self._watched else ""
        return dataclasses.replace(result, raw=result.raw.removeprefix(self._noise), killed=killed)

    def learn_noise(self, *, timeout: float, cancellation: Cancellation) -> None:
        """From now on leave out of every output what a command that does nothing prints.

        A start-up file of the image may complain at each start of a shell, and an output has to begin with what the
        command itself has to say.
        """
        self._noise = self._channel.run(":", timeout=timeout, cancellation=cancellation).raw

    def close(self) -> None:
        """End the sandbox and everything in it. Idempotent; the layer stays."""
        process, self._process = self._process, None
        if process is None:
            return
        if self._watched is not None:
            self._host.watch.remove(self._watched)
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        if self._loop is not None:
            # Process 1 takes everything in its namespace along, and Apptainer then unmounts in good order.
            self._loop.send(signal.SIGKILL)
            self._loop.close()
        try:
            process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        if self._front_fd is not None:
            os.close(self._front_fd)
        if not self._pids or processes.any_left(self._pids):
            processes.end_all(self.folder, session=process.pid)

    def discard(self) -> None:
        """Close it and remove its layer."""
        self.close()
        remove_tree(self.folder)

    def _command_line(self) -> list[str]:
        host = self._host
        binds = [(self.folder / "channel", MOUNT_POINT), *self._binds]
        return [
            *host.confinement.command(shutil.which(host.apptainer) or host.apptainer),
            "--silent",
            "exec",
            *host.confinement.flags(host.scratch.empty),
            *host.flags,
            *_NETWORK_FLAGS[host.network],
            *("--overlay", str(self.layer), "--pwd", "/"),
            *(part for source, target in binds for part in ("--bind", f"{source}:{target}:ro")),
            str(self._image),
            *("/bin/bash", f"{MOUNT_POINT}/loop.sh"),
        ]

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]", cancellation: Cancellation) -> None:
        assert process.stdout is not None
        deadline = time.monotonic() + START_SECONDS
        said = b""
        wake_fd = os.eventfd(0)
        try:
            poll = select.poll()
            poll.register(process.stdout, select.POLLIN)
            poll.register(wake_fd, select.POLLIN)
            with cancellation.waking(lambda: os.eventfd_write(wake_fd, 1)):
                while not said.endswith(b"ready\n"):
                    ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
                    cancellation.check()
                    if not ready:
                        raise SandboxError(f"the sandbox of {self._image.name} did not start in {START_SECONDS:.0f} s")
                    data = os.read(process.stdout.fileno(), 4096)
                    if not data:
                        raise SandboxError(f"the sandbox of {self._image.name} cannot start: {_last_words(said)}")
                    said = (said + data)[-8192:]
        finally:
            os.close(wake_fd)


@contextlib.contextmanager
def running(
    host: SandboxHost, image: Path, cancellation: Cancellation, *, binds: Sequence[tuple[Path, str]] = ()
) -> Iterator[Sandbox]:
    """A started sandbox that is gone with its layer after the block."""
    sandbox = Sandbox(host, image, binds=binds)
    try:
        sandbox.start(cancellation)
        yield sandbox
    finally:
        sandbox.discard()


def _code_of(process: "subprocess.Popen[bytes]") -> int | None:
    try:
        return process.wait(CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def _last_words(said: bytes) -> str:
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith("FATAL")]
    return (fatal or lines or ["Apptainer said nothing"])[-1].removeprefix("FATAL:").strip()
