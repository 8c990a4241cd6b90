"""Chat requests of generations A and B: fewer fields are ignored than in C, and messages are kept as they came.

They differ from each other in two points only: what A refuses besides, and what of a message A keeps.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from local_relax.errors import invalid_request
from local_relax.validation import (
    ChatRequest,
    Complain,
    Message,
    check_content_type,
    check_logprobs,
    is_blank,
    json_body,
    parse_each,
    parse_reasoning,
    parse_stop,
    parse_template_kwargs,
    parse_tool_call_id,
    tool_objects,
)

_ONLY: Mapping[str, Sequence[Any]] = {
    "top_logprobs": (None,),
    "n": (None, 1),
    "stream": (None, False),
    "functions": (None, [], {}),
    "function_call": (None, "none"),
}
"""Fields that are served with these values only."""
_ONLY_IN_A: Mapping[str, Sequence[Any]] = {
    **_ONLY,
    "tool_choice": (None, "none"),
    "parallel_tool_calls": (None, False),
}


def parse_request_a(body: bytes) -> ChatRequest:
    """Raises `ApiError` 400 that names the field."""
    return _parse_request(body, _ONLY_IN_A, _message_a)


def parse_request_b(body: bytes) -> ChatRequest:
    """Raises `ApiError` 400 that names the field."""
    return _parse_request(body, _ONLY, _message_b)


def _parse_request(
    body: bytes, only: Mapping[str, Sequence[Any]], message: Callable[[Mapping[str, Any], Complain], Message]
) -> ChatRequest:
    raw = json_body(body)
    for name, served in only.items():
        if raw.get(name) not in served:
            raise invalid_request(f"{name} is not supported", name)
    check_logprobs(raw.get("logprobs"))
    if not isinstance(raw.get("messages"), list):
        raise invalid_request("messages must be a list", "messages")
    return ChatRequest(
        messages=parse_each(raw["messages"], message),
        tools=tool_objects(raw.get("tools")),
        template_kwargs=parse_template_kwargs(raw.get("chat_template_kwargs")),
        max_tokens=_token_limit(raw.get("max_completion_tokens")),
        stop=parse_stop(raw.get("stop")),
        sampling={name: raw[name] for name in ("seed", "temperature", "top_p") if raw.get(name) is not None},
        model=raw.get("model"),
    )


def _token_limit(raw: Any) -> int | None:
    """`max_tokens` is not this field's older name yet: it has no meaning at all."""
    if raw is not None and (not isinstance(raw, int) or raw <= 0):
        raise invalid_request("max_completion_tokens must be a positive integer", "max_completion_tokens")
    return raw


def _message_a(raw: Mapping[str, Any], bad: Complain) -> Message:
    """Tool calls, their ids and reasoning do not exist: a message is its role and its content."""
    content = raw.get("content")
    check_content_type(content, bad)
    if is_blank(content):
        raise bad("content must not be empty")
    return {"role": raw["role"], "content": content}


def _message_b(raw: Mapping[str, Any], bad: Complain) -> Message:
    message: dict[str, Any] = {"role": raw["role"], **parse_reasoning(raw, bad), **parse_tool_call_id(raw, bad)}
    if raw.get("tool_calls"):
        message["tool_calls"] = _tool_calls(raw["tool_calls"], bad)
    content = raw.get("content")
    check_content_type(content, bad)
    speechless = raw["role"] == "assistant" and ("tool_calls" in message or "reasoning_content" in message)
    if is_blank(content) and not speechless:
        raise bad("content must not be empty")
    return {**message, "content": content}


def _tool_calls(raw: Any, bad: Complain) -> Any:
    if not isinstance(raw, list):
        raise bad("tool_calls must be a list")
    for call in raw:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise bad("a tool call must hold a function")
        if not isinstance(function.get("arguments"), str):
            raise bad("tool call arguments must be a string")
    return raw
