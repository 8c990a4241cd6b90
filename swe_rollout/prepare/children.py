"""Programs that end with us: each in a session of its own, ended as a whole."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from swe_rollout.prepare.faults import Stopped, Transient

# The kernel tells only the first process of our end (`kill -9` included); it takes the group with it, so that the
# mksquashfs that apptainer starts does not live on.
_GUARD = (
    *("setpriv", "--pdeathsig", "TERM"),
    *("bash", "-c", """trap 'kill -KILL 0' TERM; "$@" & wait $!""", "guard"),
)
_POLL_SECONDS = 0.1


def run(
    argv: Sequence[str | Path],
    log: Path,
    stop: threading.Event,
    seconds: float,
    env: Mapping[str, str] | None = None,
    look: Callable[[], None] = lambda: None,
) -> int:
    """Run to the end, output appended to `log`; the exit code.

    `look` is called some times a second. Raises `Stopped` when `stop` is set, `Transient` after `seconds`, and what
    `look` raises; the whole group is gone then.
    """
    # The thread that starts a child must outlive it: PDEATHSIG is about threads.
    with log.open("ab") as output:
        child = subprocess.Popen(
            [*_GUARD, *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    deadline = time.monotonic() + seconds
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return child.wait(_POLL_SECONDS)
            if stop.is_set():
                raise Stopped
            look()
            if time.monotonic() > deadline:
                raise Transient(f"ended after {seconds:.0f} s: {argv[0]} {argv[1]}")
    finally:
        # Not yet reaped if it did not return: the number is still its own.
        if child.returncode is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
