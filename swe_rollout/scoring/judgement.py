"""What a judge finds out."""

from dataclasses import dataclass

from swe_rollout.scoring.verdict import Verdict


@dataclass(frozen=True)
class Judgement:
    """What was found out about the work of one agent."""

    patch: bytes
    """What was judged, as a patch against the image's tree; empty when there is none."""
    verdict: Verdict | None = None
    """None when only the patch was asked for."""
    log: bytes = b""
    """What the hidden tests printed."""
