"""What a run of builds is told, and what it tells at the end."""

from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 1 << 30


@dataclass(frozen=True)
class BuildOptions:
    """How SIFs are built and checked."""

    max_jobs: int = 4
    """Images built, and checked, at once."""
    start_interval: float = 0.2
    """Seconds between the starts of two builds."""
    min_free_bytes: int = 10 * GIB
    """No build starts while the SIF folder or the folder for temporary files has less than this."""
    registry_mirror: str | None = None
    """`http://127.0.0.1:5000/prefix` or `host[:port][/prefix]` instead of the images' own registry; plain HTTP only if
    it says `http://`."""
    cache_bytes: int = 20 * GIB
    """Layers kept for the builds of one run that share them; more than this, and a new cache is begun."""
    attempts: int = 8
    """Tries per image, throttled ones not counted."""
    throttled_seconds: float = 6 * 3600
    """How long, from its first 429 on, an image is tried again while the registry throttles; a wish to wait for longer
    than what is left of it ends the tries. Docker Hub's window is six hours."""
    first_pause: float = 2.0
    """Seconds before the second try; doubled, with jitter, for each further one."""
    longest_pause: float = 300.0
    """Seconds that a pause grows to; a Retry-After may ask for more."""
    build_seconds: float = 3600.0
    """A build that takes longer is ended and tried again."""
    verify_seconds: float = 120.0
    """So is a verification: of the SIF it says nothing."""


@dataclass(frozen=True)
class BuildReport:
    """How it ended."""

    n_built: int = 0
    n_kept: int = 0
    """Found whole."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Image -> one line: what failed and what to do."""
    stopped: bool = False
    """`stop` was set before all was done."""
    bytes: int = 0
    """Size of all SIFs built or kept."""
    seconds: float = 0.0
    n_left: int = 0
    """Neither done nor failed: stopped, or no room on the disk."""
    note: str = ""
    """Why builds were not begun, in one line, if that was not `stop`."""
