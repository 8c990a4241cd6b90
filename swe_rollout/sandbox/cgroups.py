"""The kernel's own hold on what a sandbox may use, on machines where Apptainer can make cgroups.

It comes on top of the watch: that one tells the agent what was killed and why, and holds the disk; this one leaves no
time between two looks.
"""

import dataclasses
import logging
from pathlib import Path

from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import AgentFault, SandboxError
from swe_rollout.sandbox.limits import Limits
from swe_rollout.sandbox.sandbox import SandboxHost, running

log = logging.getLogger(__name__)

_SECONDS = 60.0
_ROOM = 2
"""The kernel's limit on memory over that of the watch, which is to act first unless there is no time for it."""


def with_cgroups(host: SandboxHost, image: Path) -> SandboxHost:
    """`host` with its limits held by cgroups too; as it is if a sandbox from `image` does not work so."""
    limits = host.limits
    if limits.memory_bytes is not None:
        limits = dataclasses.replace(limits, kernel_memory_bytes=limits.memory_bytes * _ROOM)
    held = dataclasses.replace(host, limits=limits, flags=(*host.flags, *_flags(limits)))
    try:
        with running(held, image, Cancellation()) as sandbox:
            sandbox.run("true", timeout=_SECONDS, cancellation=Cancellation())
    except (SandboxError, AgentFault) as error:
        why = str(error).partition(" cannot start: ")[2] or error
        log.info("limits of sandboxes are held without cgroups, which Apptainer cannot make here: %s", why)
        return host
    log.info("limits of sandboxes are held by cgroups too")
    return held


def _flags(limits: Limits) -> list[str]:
    flags = ["--pids-limit", str(limits.processes)]
    if limits.kernel_memory_bytes is not None:
        flags += ["--memory", str(limits.kernel_memory_bytes)]
    return flags
