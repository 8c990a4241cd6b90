"""What a model answers, before it is dressed for the chat API."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from local_relax.validation import ChatRequest


@dataclass(frozen=True)
class Call:
    """A call of one tool."""

    arguments: Mapping[str, Any]
    name: str = "bash"


@dataclass(frozen=True)
class Reply:
    """One turn of a model."""

    text: str = ""
    calls: Sequence[Call] = ()
    reasoning: str = ""
    cut: bool = False
    """The model was stopped by its token limit."""


class Engine(Protocol):
    """Whatever generates: a scripted policy or a real model."""

    def start(self, request: ChatRequest, policy: str) -> Future[Reply]:
        """Begin a turn. Cancelling the future ends the attempt; its exception may be an `ApiError`."""
        ...

    def close(self) -> None:
        """End every attempt and release all resources."""
        ...
