"""The one place of this package that starts programs, and what a failed build says."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_STARTED = time.monotonic()


class BuildError(Exception):
    """The samples cannot be built; the message is one line: what, where, what to do."""


def say(subject: str, what: str) -> None:
    """Print one progress line, with the seconds since the start."""
    print(f"{time.monotonic() - _STARTED:6.1f} s  {subject:<10} {what}", flush=True)


def need(program: str, package: str) -> str:
    """Path of `program`. Raises BuildError if it is not on PATH."""
    found = shutil.which(program)
    if not found:
        raise BuildError(f"the sample images need `{program}`, which is not on PATH: install {package}")
    return found


@contextlib.contextmanager
def started(argv: Sequence[str | Path], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A program at work beside this one, its output in `log`. Leaving the block by an exception ends it."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    except BaseException:
        _end(process)
        raise


def finish(process: "subprocess.Popen[bytes]", log: Path, what: str, remedy: str) -> None:
    """Wait for a `started` program. Raises BuildError with the last line of its output if it failed."""
    if process.wait() != 0:
        raise BuildError(_failure(what, process.returncode, log.read_bytes(), remedy))


def run(
    argv: Sequence[str | Path],
    what: str,
    remedy: str,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> bytes:
    """Run a program to its end and return its standard output. `env` is added to this process's.

    Raises BuildError (`what` failed, the last line it printed, `remedy`) on any exit code but 0.
    """
    done = run_any(argv, env=env, cwd=cwd)
    if done.returncode != 0:
        raise BuildError(_failure(what, done.returncode, done.stderr or done.stdout, remedy))
    return done.stdout


def run_any(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes = b"",
    timeout: float | None = None,
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program, whatever its exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
    command = [str(part) for part in argv]
    process = subprocess.Popen(
        command,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(stdin, timeout)
    except BaseException:
        _end(process)
        raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a program and the children it started: each program has a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _failure(what: str, code: int, output: bytes, remedy: str) -> str:
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "fatal", "e:"))]
    said = (errors or lines or ["it printed nothing"])[-1]
    return f"{what} failed (exit code {code}: {said}); {remedy}"
