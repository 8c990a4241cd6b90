"""What one sandbox may use."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Held by the watch (`watch.py`) unless another is named; None means no limit."""

    memory_bytes: int | None = None
    """Of all processes together, and of the files in the sandbox's memory file systems such as /dev/shm."""
    kernel_memory_bytes: int | None = None
    """The same as a cgroup has it; see `cgroups.py`."""
    processes: int = 4096
    """Processes and threads; the kernel holds every user but root to it too."""
    disk_bytes: int | None = None
    """Blocks that the writable layer takes."""
