"""What the agent changed below the task's tree, taken from its sandbox's layer.

The layer is a folder on the host, in overlayfs form (kernel.org, "Overlay Filesystem": whiteouts are
character devices 0/0, opaque folders carry an xattr) or in that of fuse-overlayfs (`.wh.` files). It is
read with plain file calls after the sandbox has ended, never through a tool that the agent could have
replaced, and links in it are never followed.
"""

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.errors import AgentFault, ScoringError
from swe_rollout.sandbox.scratch import remove_tree

_STAY_BEHIND = frozenset({".git", "__pycache__", ".pytest_cache"})
"""Names that do not travel to the judge, wherever they stand."""
_STAY_BEHIND_AT_TOP = frozenset({".venv", "r2e_tests", "run_tests.sh"})
"""Names that do not travel when they stand directly in the tree: the image's own are used there."""
_WHITEOUT_PREFIX = ".wh."
_OPAQUE_MARKS = frozenset({".wh..wh..opq", ".wh..opq"})
_OPAQUE_XATTRS = frozenset(
    {"trusted.overlay.opaque", "user.overlay.opaque", "user.fuseoverlayfs.opaque", "trusted.fuseoverlayfs.opaque"}
)
_UNREADABLE_XATTRS = frozenset({"trusted.overlay.redirect", "trusted.overlay.metacopy"})
"""Set by the kernel alone. Those of the `user.` kind could be set by the agent, and mean nothing to our layers."""


@dataclass(frozen=True)
class Change:
    """A filtered copy of what was written, and what has to go before it is laid over the image's tree."""

    folder: Path
    """Holds `tree/`, and `removed`: NUL-separated paths below the task's tree."""

    @property
    def is_empty(self) -> bool:
        return not any((self.folder / "tree").iterdir()) and not (self.folder / "removed").stat().st_size


def capture(layer: Path, cwd: str, folder: Path) -> Change:
    """Move what `layer` holds of `cwd` (the tree's path in the sandbox) to `folder`, which is created.

    The layer is used up. Raises `AgentFault` when the agent left something that is no tree, and `ScoringError`
    when the layer is in a form that cannot be read.
    """
    tree = folder / "tree"
    removed: list[bytes] = []
    try:
        folder.mkdir(mode=0o755)
        (layer / "upper").chmod(0o755)
        source, is_new = _find(layer / "upper", cwd)
        if source is None:
            tree.mkdir()
        else:
            source.rename(tree)
            removed += _filter(tree, b"")
        if is_new:
            removed.append(b".")
        tree.chmod(0o755)
        (folder / "removed").write_bytes(b"".join(path + b"\0" for path in removed))
        remove_tree(layer)
    except (OSError, RecursionError) as error:
        if isinstance(error, RecursionError) or error.errno == errno.ENAMETOOLONG:
            raise AgentFault("TreeUnreadable", f"the tree below {cwd} is nested too deeply to be judged") from error
        raise ScoringError(f"the sandbox's layer cannot be read: {error}") from error
    return Change(folder)


def _find(upper: Path, cwd: str) -> tuple[Path | None, bool]:
    """Where `upper` has the tree, if it does, and whether it hides the image's one.

    Raises `AgentFault` when something else than folders leads there.
    """
    source, is_new = upper, False
    for name in Path(cwd).parts[1:]:
        source /= name
        if not os.path.lexists(source):
            if is_new or os.path.lexists(source.with_name(f"{_WHITEOUT_PREFIX}{name}")):
                raise AgentFault("TreeRemoved", f"{cwd} is no longer a folder")
            return None, False
        if not stat.S_ISDIR(source.lstat().st_mode):
            raise AgentFault("TreeRemoved", f"{cwd} is no longer a folder")
        source.chmod(stat.S_IMODE(source.stat().st_mode) | stat.S_IRWXU)
        is_new = is_new or _is_opaque(source)
    return source, is_new


def _filter(folder: Path, prefix: bytes) -> Iterator[bytes]:
    """Strip `folder` of what stays behind and of the layer's marks; yields what the marks say is removed."""
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)
    for entry in list(os.scandir(folder)):
        path, name = Path(entry.path), os.fsencode(entry.name)
        status = entry.stat(follow_symlinks=False)
        if _stays_behind(entry.name, prefix):
            remove_tree(path)
        elif entry.name in _OPAQUE_MARKS and not stat.S_ISDIR(status.st_mode):
            path.unlink()
        elif stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
            path.unlink()
            yield prefix + name
        elif entry.name.startswith(_WHITEOUT_PREFIX) and not stat.S_ISDIR(status.st_mode):
            path.unlink()
            hidden = entry.name.removeprefix(_WHITEOUT_PREFIX)
            if not _stays_behind(hidden, prefix):
                yield prefix + os.fsencode(hidden)
        elif stat.S_ISDIR(status.st_mode):
            if _is_opaque(path):
                yield prefix + name
            yield from _filter(path, prefix + name + b"/")
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            if stat.S_ISREG(status.st_mode):
                path.chmod(stat.S_IMODE(status.st_mode) & 0o777 | stat.S_IRUSR | stat.S_IWUSR)
            yield prefix + name  # whatever the image has there, even a folder, gives way to it
        else:
            path.unlink()  # a FIFO, socket or device is no part of a change


def _stays_behind(name: str, prefix: bytes) -> bool:
    return name in _STAY_BEHIND or name.endswith(".pyc") or (not prefix and name in _STAY_BEHIND_AT_TOP)


def _is_opaque(folder: Path) -> bool:
    names = os.listxattr(folder, follow_symlinks=False)
    if unreadable := _UNREADABLE_XATTRS.intersection(names):
        raise ScoringError(f"the sandbox's layer uses overlayfs {min(unreadable)}, which this server does not read")
    return any(name in _OPAQUE_XATTRS for name in names) or any(
        os.path.lexists(folder / mark) for mark in _OPAQUE_MARKS
    )
