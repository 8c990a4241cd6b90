"""What a judge finds out."""

from dataclasses import dataclass

from swe_rollout.scoring.verdict import Verdict

WITHDRAWN_LIMIT = 100


@dataclass(frozen=True)
class Judgement:
    """What was found out about the work of one agent."""

    patch: bytes
    """What was judged, as a patch against the image's tree; empty when there is none."""
    verdict: Verdict | None = None
    """None when only the patch was asked for."""
    log: bytes = b""
    """What the hidden tests printed."""
    withdrawn: tuple[str, ...] = ()
    """Paths below the tree that the agent changed but may not decide: the hidden tests ran on the image's own version.
    Sorted; the first `WITHDRAWN_LIMIT` of them."""


def printable(path: str) -> str:
    """`path` with replacement characters for the bytes that are no UTF-8, which stand in it as surrogates."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
