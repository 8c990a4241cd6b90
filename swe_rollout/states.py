"""The words for what a session is for and where it stands."""

from typing import Literal, get_args

from swe_rollout.outcome import Ending

Mode = Literal["train", "eval"]
Stage = Literal["queued", "running", "scoring"]
"""The stages of a live session, in the only order in which they are passed. Stages may be left out."""
Status = Literal[Stage, Ending]

MODES: tuple[Mode, ...] = get_args(Mode)
STAGES: tuple[Stage, ...] = get_args(Stage)


def encodable(text: str) -> str:
    """`text` with halves of surrogate pairs replaced: jq refuses JSON that holds one."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
