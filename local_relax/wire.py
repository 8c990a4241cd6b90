"""How a reply looks on the wire."""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from local_relax.canonical import canonical_json, digest
from local_relax.errors import ApiError, internal_error
from local_relax.replies import Reply
from local_relax.validation import ChatRequest

_BYTES_PER_TOKEN = 4


class Form(Protocol):
    """What differs between the generations' answers."""

    parsers: bool
    """Whether tool calls and reasoning are told from text; without parsers they stay part of it."""
    no_text: str | None
    """Content of an answer that says nothing beside its calls or its reasoning."""

    def spell_arguments(self, arguments: Mapping[str, Any]) -> str: ...

    def head(self, session_id: str, model: object) -> Mapping[str, Any]:
        """The fields that identify an answer. `model` is what the request named."""
        ...

    def refusal(self, error: ApiError) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """Body and headers of a refused request."""
        ...


class FormC:
    parsers = True
    no_text: str | None = ""

    def spell_arguments(self, arguments: Mapping[str, Any]) -> str:
        return canonical_json(arguments)

    def head(self, session_id: str, model: object) -> Mapping[str, Any]:
        return {"id": f"chatcmpl_{uuid.uuid4().hex}", "model": model}

    def refusal(self, error: ApiError) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        return error.body, error.headers


class FormB:
    parsers = True
    no_text: str | None = None

    def spell_arguments(self, arguments: Mapping[str, Any]) -> str:
        """As a model may have written them: valid, but not in the one canonical spelling."""
        return json.dumps(arguments, ensure_ascii=False)

    def head(self, session_id: str, model: object) -> Mapping[str, Any]:
        named = {"model": model} if isinstance(model, str) else {}
        return {"id": f"chatcmpl-{session_id}-{time.time_ns() // 1_000_000}", **named}

    def refusal(self, error: ApiError) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        return error.body, error.headers


class FormA(FormB):
    parsers = False

    def refusal(self, error: ApiError) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """What the web framework refuses has the framework's form, what Relax refuses has OpenAI's."""
        body = {"detail": str(error)} if error.code in ("invalid_request_error", "authentication_error") else error.body
        return body, error.headers if error.status == 404 else {}


@dataclass(frozen=True)
class Completion:
    message: Mapping[str, Any]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int

    def body(self, head: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **head,
            "object": "chat.completion",
            "created": int(time.time()),
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


def complete(reply: Reply, request: ChatRequest, state: str, prompt_tokens: int, room: int, form: Form) -> Completion:
    """Dress a reply for the chat API. `state` is the conversation's state, `room` the tokens the answer may have.

    Without tools in the request no tool parser runs, and what would be calls stays text. An answer that does
    not fit is cut to text as well. Raises `ApiError` 500 for an empty reply: nothing may be committed then.
    """
    markup = [
        f"<tool_call>\n{canonical_json({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"
        for call in reply.calls
    ]
    whole = "\n".join(part for part in (reply.text, *markup) if part)
    reasoning = reply.reasoning
    if reasoning and not form.parsers:
        reasoning, whole = "", f"<think>\n{reasoning}\n</think>\n\n{whole}"
    if not whole and not reasoning:
        raise internal_error("the model generated nothing")
    tokens = estimate_tokens(reasoning, whole)
    calls, text = reply.calls, reply.text
    cut = reply.cut or tokens > room
    if cut or not request.tools or not form.parsers:
        calls, text = (), whole
    if tokens > room:
        text = whole.encode()[: room * _BYTES_PER_TOKEN].decode(errors="ignore")
    message: dict[str, Any] = {"role": "assistant", "content": text or form.no_text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{digest(state, whole, index)[:24]}",
                "type": "function",
                "function": {"name": call.name, "arguments": form.spell_arguments(call.arguments)},
            }
            for index, call in enumerate(calls)
        ]
    finish = "length" if cut else "tool_calls" if calls else "stop"
    return Completion(message, finish, prompt_tokens, min(tokens, room))
