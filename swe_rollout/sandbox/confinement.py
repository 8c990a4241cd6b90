"""Who a sandbox runs as on the host.

A process that keeps the host's uid 0 can write what the kernel executes on the host's behalf (for
one, /proc/sys/kernel/core_pattern), with no capability at all. So a sandbox runs as an ordinary
user unless `root` is asked for, and then those paths are out of its reach.
"""

import os
import pwd
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swe_rollout.errors import StartupError

_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/sys")
_MASKED_FILES = ("/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/latency_stats", "/proc/kmsg")
_MASKED_FOLDERS = ("/proc/acpi", "/proc/scsi", "/sys/firmware")


class Confinement(Protocol):
    """How Apptainer is started so that a sandbox has no power over the host."""

    @property
    def reason(self) -> str:
        """Which confinement is in force and why, for the start line."""
        ...

    @property
    def needs_fuse(self) -> bool:
        """Whether the sandbox's user mounts images itself, through /dev/fuse."""
        ...

    def command(self, apptainer: str) -> list[str]:
        """The start of the command line, up to the program."""
        ...

    def flags(self, empty: Path) -> list[str]:
        """Flags for `apptainer exec`. `empty` is a folder with nothing in it."""
        ...

    def own(self, path: Path) -> None:
        """Give `path` to the user that the sandbox runs as."""
        ...

    def drop(self) -> Sequence[str]:
        """A command prefix under which any other program has exactly the sandbox's user's rights."""
        ...


_USER_NAMESPACE = ("--fakeroot", "--ignore-fakeroot-command")
"""Root inside, an ordinary user outside, mapped by the kernel alone: no subuid entry, and no helper daemon
that a command could kill (the `fakeroot` command would bring one)."""


@dataclass(frozen=True)
class SameUser:
    """The server is an ordinary user already; so are its sandboxes."""

    reason: str = "unprivileged: sandboxes run as the server's own user"
    needs_fuse: bool = True

    def command(self, apptainer: str) -> list[str]:
        return [apptainer]

    def flags(self, empty: Path) -> list[str]:
        return list(_USER_NAMESPACE)

    def own(self, path: Path) -> None:
        return None

    def drop(self) -> Sequence[str]:
        return ()


@dataclass(frozen=True)
class OtherUser:
    """The server is root; its sandboxes run as a user that owns nothing else on the machine."""

    name: str
    uid: int
    gid: int
    needs_fuse: bool = True

    @property
    def reason(self) -> str:
        return f"unprivileged: the server is root, sandboxes run as user {self.name}"

    def command(self, apptainer: str) -> list[str]:
        return [*self.drop(), apptainer]

    def flags(self, empty: Path) -> list[str]:
        return list(_USER_NAMESPACE)

    def own(self, path: Path) -> None:
        os.chown(path, self.uid, self.gid)

    def drop(self) -> Sequence[str]:
        return ("setpriv", f"--reuid={self.uid}", f"--regid={self.gid}", "--clear-groups", "--no-new-privs")


@dataclass(frozen=True)
class RootWithoutPowers:
    """The server is root and so are its sandboxes: fastest, without capabilities, the kernel's switches read-only."""

    reason: str = "root: chosen by configuration; sandboxes keep uid 0 without capabilities, kernel paths read-only"
    needs_fuse: bool = False

    def command(self, apptainer: str) -> list[str]:
        return [apptainer]

    def flags(self, empty: Path) -> list[str]:
        binds = [f"{path}:{path}:ro" for path in _READ_ONLY if Path(path).exists()]
        binds += [f"/dev/null:{path}" for path in _MASKED_FILES if Path(path).exists()]
        binds += [f"{empty}:{path}:ro" for path in (*_MASKED_FOLDERS, *_mounts_below("/sys")) if Path(path).is_dir()]
        return [part for bind in binds for part in ("--bind", bind)]

    def own(self, path: Path) -> None:
        return None

    def drop(self) -> Sequence[str]:
        return ()


def _mounts_below(folder: str) -> list[str]:
    """Where other file systems are mounted below `folder` on this machine, without those below one of them.

    A read-only bind does not reach into them: a uid 0 could go through /sys/fs/cgroup out of the machine's own limits.
    """
    found: list[str] = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        point = line.split()[1]
        if point.startswith(f"{folder}/") and not any(point.startswith(f"{above}/") for above in found):
            found.append(point)
    return found


def choose(wanted: str, user: str) -> Confinement:
    """The confinement for `wanted` (auto, unprivileged or root) on this machine.

    Raises `StartupError` when it cannot be had.
    """
    if wanted == "root":
        if os.geteuid() != 0:
            raise StartupError("AGENT_SERVER_CONFINEMENT=root needs the server to run as root; leave it at auto")
        return RootWithoutPowers()
    if os.geteuid() != 0:
        return SameUser()
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise StartupError(
            f"there is no user {user!r} to run sandboxes as: `make setup` creates it, "
            "or name another in AGENT_SERVER_SANDBOX_USER"
        ) from None
    if entry.pw_uid == 0:
        raise StartupError(f"AGENT_SERVER_SANDBOX_USER={user} is root; name an ordinary user")
    return OtherUser(user, entry.pw_uid, entry.pw_gid)
