"""What differs between the published generations of Relax's contract, in one place."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from local_relax.output import AgentOutput, read_output
from local_relax.validation import ChatRequest, parse_chat_request

Mode = Literal["train", "eval"]


@dataclass(frozen=True)
class GenerationC:
    """Resident groups on shards, one log file per process, SIGTERM followed by SIGKILL."""

    term_grace_seconds: float = 5.0
    """Time between SIGTERM and SIGKILL, and again for the group to be gone after SIGKILL."""
    shards: int = 2
    eval_set: str = "r2e_eval"
    eval_step: int = 0

    def group_id(self, mode: Mode, number: int) -> str:
        """Numbers start at 0 in every Relax process, so ids come again after a restart."""
        prefix = "train" if mode == "train" else f"eval:{self.eval_set}:{self.eval_step}"
        return f"{prefix}:prepare_group_{number}"

    def session_id(self, number: int) -> str:
        """Unique for all time; the first part names the shard that holds the group."""
        return f"agentic_session_shard_{number % self.shards}.session-{uuid.uuid4().hex}"

    def parse_request(self, body: bytes) -> ChatRequest:
        """Raises `ApiError` 400."""
        return parse_chat_request(body)

    def read_output(self, path: Path) -> AgentOutput:
        """Raises `AgentExecutionError`."""
        return read_output(path)
