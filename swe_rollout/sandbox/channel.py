"""The host's end of the command loop (`loop.sh`): one message per command on a pipe."""

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import AgentFault, SandboxError
from swe_rollout.sandbox.processes import ProcessHandle

LOOP = Path(__file__).with_name("loop.sh")
MOUNT_POINT = "/.channel"
OUTPUT_LIMIT_BYTES = 8 << 20
SILENCE_LIMIT_SECONDS = 60.0
"""How long the loop may take to end a command it was told to end."""
_KILLED = (None, -signal.SIGKILL, -signal.SIGTERM, 128 + signal.SIGKILL, 255)
"""How Apptainer's front process ends when it or the loop was killed; 255 is its own word for that."""
_WATCH_SECONDS = 0.5
"""Less than the kernel's shortest limit on CPU time."""
_CHUNK = 1 << 16
_ANSWER_LIMIT_BYTES = 8192


@dataclass(frozen=True)
class CommandResult:
    """What one command did."""

    raw: bytes
    """Standard output and standard error in the order they were written."""
    elided: int
    """Bytes left out of the middle of `raw`."""
    returncode: int
    """As `bash -c` in another shell would report it: 128 + n after signal n."""
    timed_out: bool
    cwd: str
    """Where it ran: `/` when the folder it should have run in is gone."""
    seconds: float
    killed: str = ""
    """What was killed for going over the sandbox's limits, and why, in words for the agent; mostly empty."""

    @property
    def output(self) -> str:
        """`raw` as UTF-8, with replacement characters."""
        return self.raw.decode("utf-8", "replace")


class BoundedOutput:
    """Keeps the first and the last bytes of a stream in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._elided = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        surplus = len(self._tail) - self._half
        if surplus > self._half:
            # Trimmed in large strides: a deletion at the front moves all that is behind it.
            del self._tail[:surplus]
            self._elided += surplus

    def close(self) -> tuple[bytes, int]:
        """What was kept, with a note where something is left out, and how many bytes that is."""
        surplus = max(0, len(self._tail) - self._half)
        elided = self._elided + surplus
        gap = f"\n[{elided} bytes left out]\n".encode() if elided else b""
        return bytes(self._head + gap + self._tail[surplus:]), elided


class Channel:
    """Runs commands through the loop of one sandbox. Used by one thread; `Cancellation` may end a wait from another.

    The folder is mounted read-only inside: the sandbox can read its own commands and write to the FIFOs, nothing else.
    """

    def __init__(self, folder: Path, *, environment: Mapping[str, str], cwd: str, process_limit: int) -> None:
        self._folder = folder
        self._number = 0
        folder.mkdir(mode=0o755)
        (folder / "loop.sh").write_bytes(LOOP.read_bytes())
        (folder / "environment").write_bytes(
            b"".join(f"{name}={value}".encode() + b"\0" for name, value in environment.items())
        )
        (folder / "cwd").write_text(cwd)
        (folder / "process_limit").write_text(str(process_limit))

    def attach(
        self,
        requests: IO[bytes],
        answers: IO[bytes],
        *,
        loop: ProcessHandle,
        front_fd: int,
        front_code: Callable[[], int | None],
    ) -> None:
        """Take over the pipes of a loop that has said it is ready.

        `front_fd` becomes readable when Apptainer's front process ends, and `front_code` then gives its return code, as
        `Popen` does.
        """
        self._requests = requests
        self._answers = answers
        self._loop = loop
        self._front_fd = front_fd
        self._front_code = front_code
        self._limits = loop.read("limits")
        # Who holds the other end could leave the pipe full.
        os.set_blocking(requests.fileno(), False)

    def run(
        self,
        command: str,
        *,
        timeout: float,
        cancellation: Cancellation,
        output_limit: int = OUTPUT_LIMIT_BYTES,
    ) -> CommandResult:
        """Run `command` and wait for its shell to end; at `timeout` seconds end it with all it started.

        Of an output longer than `output_limit` bytes the first and the last half are kept.

        Raises `SandboxError` when the sandbox has died, `AgentFault` when it no longer answers as the loop does
        (only a process inside can bring that about) and `Cancelled`; after any of them the sandbox can only be closed.
        """
        self._number += 1
        script, fifo = self._folder / str(self._number), self._folder / f"{self._number}.out"
        try:
            script.write_bytes(command.encode("utf-8", "replace").replace(b"\0", b""))
            os.mkfifo(fifo)
            fifo.chmod(0o622)
        except OSError as error:
            raise SandboxError(f"the scratch folder takes no more commands: {error}") from error
        output_fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        wake_fd = os.eventfd(0)
        try:
            with cancellation.waking(lambda: os.eventfd_write(wake_fd, 1)):
                return self._converse(output_fd, wake_fd, timeout, cancellation, BoundedOutput(output_limit))
        finally:
            os.close(output_fd)
            os.close(wake_fd)
            fifo.unlink()
            script.unlink()

    def _converse(
        self, output_fd: int, wake_fd: int, timeout: float, cancellation: Cancellation, output: BoundedOutput
    ) -> CommandResult:
        started = time.monotonic()
        deadline, timed_out = started + timeout, False
        answer = b""
        poll = select.poll()
        for fd in (output_fd, self._answers.fileno(), self._front_fd, wake_fd):
            poll.register(fd, select.POLLIN)
        self._send(f"{self._number}\n".encode())
        while not answer.endswith(b"\n"):
            now = time.monotonic()
            self._check_limits()
            if timed_out and now > deadline + SILENCE_LIMIT_SECONDS:
                raise AgentFault("SandboxBroken", "the sandbox no longer ends its commands")
            if now >= deadline:
                # Told again while it does not answer: the signal may have come before the command's shell.
                timed_out = True
                self._end_command()
            wait = 0.2 if timed_out else min(_WATCH_SECONDS, deadline - now)
            ready = {fd for fd, _ in poll.poll(max(1.0, wait * 1000))}
            cancellation.check()
            if self._front_fd in ready:
                raise self._died("while a command ran")
            if output_fd in ready and not _read_available(output_fd, output, once=True):
                poll.unregister(output_fd)
            if self._answers.fileno() in ready:
                data = os.read(self._answers.fileno(), _CHUNK)
                if not data:
                    raise self._died("while a command ran")
                answer += data
                if len(answer) > _ANSWER_LIMIT_BYTES:
                    break
        _read_available(output_fd, output, once=False)
        number, code, cwd = (*answer.decode("utf-8", "replace").rstrip("\n").split(" ", 2), "", "")[:3]
        if number != str(self._number) or not code.isdigit() or not cwd:
            raise AgentFault("SandboxBroken", f"the sandbox answered {answer[:_ANSWER_LIMIT_BYTES]!r}")
        return CommandResult(*output.close(), int(code), timed_out, cwd, time.monotonic() - started)

    def _send(self, message: bytes) -> None:
        try:
            written = self._requests.write(message)
        except BlockingIOError:
            written = None
        except OSError:
            raise self._died("between two commands") from None
        if written != len(message):
            raise AgentFault("SandboxBroken", "the sandbox no longer takes commands")

    def _end_command(self) -> None:
        if not self._loop.send(signal.SIGUSR1):
            raise self._died("while a command ran")

    def _died(self, when: str) -> Exception:
        """Whose fault the death is: by itself the loop ends only when it is made to, for want of processes, say."""
        code = self._front_code()
        if code in _KILLED:
            return SandboxError(f"the sandbox died {when}")
        return AgentFault("SandboxBroken", f"process 1 of the sandbox was made to end {when} (exit code {code})")

    def _check_limits(self) -> None:
        """A limit that is put on process 1 from inside would let the kernel kill it as if from outside."""
        limits = self._loop.read("limits")
        if limits and limits != self._limits:
            raise AgentFault("SandboxBroken", "the limits of the sandbox's process 1 were changed")


def _read_available(fd: int, output: BoundedOutput, *, once: bool) -> bool:
    """Move what the pipe holds to `output`; False when no process has it open for writing any more."""
    while True:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        output.add(data)
        if once:
            return True
