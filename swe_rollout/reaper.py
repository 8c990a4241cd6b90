"""Orphans: processes whose parents died below this server, and what becomes of their exit codes.

The helpers of a sandbox outlive the process that started them. As a sub-reaper the server is their parent
then, and has to collect them, or every one stays in the process table. It must never collect a child that it
started itself: whoever waits for that child would take it for a success.
"""

import contextlib
import ctypes
import logging
import os
from pathlib import Path

from swe_rollout.errors import StartupError

log = logging.getLogger(__name__)

_PR_SET_CHILD_SUBREAPER = 36


class Reaper:
    """Collects orphans that have ended, each by its own id, never whatever comes first.

    How it knows them: the kernel lists children by the thread that started them, and gives orphans to the main
    thread. So what is listed there is an orphan, if it was not there when the reaper was made and the main
    thread starts nothing afterwards; a child of any other thread is seen elsewhere from its first moment.
    A child that outlives its thread comes to the main thread too: that is so for a grading process that a session had
    to start anew, and nobody asks for its exit code.
    Should a kernel hand orphans to another thread, they would stay, and no exit code would be lost.
    """

    def __init__(self) -> None:
        """From now on orphans come here. Make it in the main thread, after the last process it starts.

        Raises `StartupError` where the kernel cannot do this.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise StartupError(f"the kernel does not make the server a sub-reaper: {os.strerror(ctypes.get_errno())}")
        self._own = set(_children_of_main_thread())

    def reap(self) -> list[int]:
        """Collect the orphans that have ended; their ids."""
        reaped = []
        for pid in _children_of_main_thread():
            if pid not in self._own:
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        reaped.append(pid)
        if reaped:
            log.debug("%d orphans have ended", len(reaped))
        return reaped


def _children_of_main_thread() -> list[int]:
    pid = os.getpid()
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
