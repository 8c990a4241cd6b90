"""What a model answers, and how it looks on the wire."""

import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from local_relax.canonical import canonical_json, digest
from local_relax.errors import internal_error
from local_relax.validation import ChatRequest

_BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class Call:
    """A call of one tool."""

    arguments: Mapping[str, Any]
    name: str = "bash"


@dataclass(frozen=True)
class Reply:
    """One turn of a model, before it is dressed up for the chat API."""

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


@dataclass(frozen=True)
class Completion:
    message: Mapping[str, Any]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int

    def body(self, model: object) -> dict[str, Any]:
        return {
            "id": f"chatcmpl_{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [{"index": 0, "message": self.message, "logprobs": None, "finish_reason": self.finish_reason}],
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "completion_tokens": self.completion_tokens,
                "total_tokens": self.prompt_tokens + self.completion_tokens,
            },
        }


def estimate_tokens(*parts: Any) -> int:
    """A tokenizer-free count: a token per four bytes of canonical JSON."""
    size = len(canonical_json(parts).encode("utf-8", "surrogatepass"))
    return -(-size // _BYTES_PER_TOKEN)


def complete(reply: Reply, request: ChatRequest, state: str, prompt_tokens: int, room: int) -> Completion:
    """Dress a reply for the chat API. `state` is the conversation's state, `room` the tokens the answer may have.

    Without tools in the request no tool parser runs, and what would be calls stays text. An answer that does
    not fit is cut to text as well. Raises `ApiError` 500 for an empty reply: nothing may be committed then.
    """
    markup = [
        f"<tool_call>\n{canonical_json({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
        for call in reply.calls
    ]
    whole = "\n".join(part for part in (reply.text, *markup) if part)
    if not whole and not reply.reasoning:
        raise internal_error("the model generated nothing")
    tokens = estimate_tokens(reply.reasoning, whole)
    calls, text = reply.calls, reply.text
    cut = reply.cut or tokens > room
    if cut or not request.tools:
        calls, text = (), whole
    if tokens > room:
        text = whole.encode()[: room * _BYTES_PER_TOKEN].decode(errors="ignore")
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{digest(state, whole, index)[:24]}",
                "type": "function",
                "function": {"name": call.name, "arguments": canonical_json(call.arguments)},
            }
            for index, call in enumerate(calls)
        ]
    finish = "length" if cut else "tool_calls" if calls else "stop"
    return Completion(message, finish, prompt_tokens, min(tokens, room))
