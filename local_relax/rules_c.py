"""Chat requests of generation C: which fields count, which are ignored, and what a message must look like."""

import json
from collections.abc import Mapping
from typing import Any

from local_relax.canonical import canonical_json, strict_object
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


def parse_request(body: bytes) -> ChatRequest:
    """Raises `ApiError` 400 that names the field."""
    raw = json_body(body)
    check_logprobs(raw.get("logprobs"))
    return ChatRequest(
        messages=parse_messages(raw.get("messages")),
        tools=parse_tools(raw.get("tools")),
        template_kwargs=parse_template_kwargs(raw.get("chat_template_kwargs")),
        max_tokens=_token_limit(raw),
        stop=parse_stop(raw.get("stop")),
        sampling=_seed(raw.get("seed")),
        stream=bool(raw.get("stream")),
        model=raw.get("model"),
    )


def parse_messages(raw: Any) -> list[Message]:
    """Normal form of a conversation; all system messages become one at the front. Raises `ApiError` 400."""
    if raw is not None and not isinstance(raw, list):
        raise invalid_request("messages must be a list", "messages")
    if not raw:
        raise invalid_request("the request projected to zero supported messages", "messages")
    messages = parse_each(raw, _message)
    system = [message["content"] for message in messages if message["role"] == "system"]
    if not system:
        return messages
    if len(system) > 1 and not all(isinstance(content, str) for content in system):
        raise invalid_request("several system messages must all have text content", "messages")
    merged = "\n\n".join(system) if len(system) > 1 else system[0]
    return [
        {"role": "system", "content": merged},
        *(message for message in messages if message["role"] != "system"),
    ]


def parse_tools(raw: Any) -> list[Mapping[str, Any]]:
    """Functions as name, parameters and description; other types and keys fall away. Raises `ApiError` 400."""
    kept: list[Mapping[str, Any]] = []
    for tool in tool_objects(raw):
        if tool.get("type") != "function":
            continue
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid_request("a function tool needs a function with a name", "tools")
        kept.append(
            {key: function[key] for key in ("name", "parameters", "description") if function.get(key) is not None}
        )
    return kept


def _token_limit(raw: Mapping[str, Any]) -> int | None:
    name = "max_completion_tokens" if raw.get("max_completion_tokens") is not None else "max_tokens"
    value = raw.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise invalid_request(f"{name} must be a positive integer", name)
    return value


def _seed(raw: Any) -> Mapping[str, int]:
    if raw is None:
        return {}
    if not isinstance(raw, int) or isinstance(raw, bool):
        raise invalid_request("seed must be an integer", "seed")
    return {"seed": raw}


def _message(raw: Mapping[str, Any], bad: Complain) -> Message:
    role = raw["role"]
    message: dict[str, Any] = {"role": role, **parse_reasoning(raw, bad), **parse_tool_call_id(raw, bad)}
    if raw.get("tool_calls"):
        if role != "assistant":
            raise bad("only an assistant message may hold tool_calls")
        message["tool_calls"] = _tool_calls(raw["tool_calls"], bad)
    content = raw.get("content")
    check_content_type(content, bad)
    if role == "assistant":
        if is_blank(content) and not ("tool_calls" in message or "reasoning_content" in message):
            raise bad("an assistant message needs content, tool_calls or reasoning_content")
        content = content or ""
    elif content is None or (content == "" and role != "tool"):
        raise bad("content must not be empty")
    return {**message, "content": content}


def _tool_calls(raw: Any, bad: Complain) -> list[Mapping[str, Any]]:
    if not isinstance(raw, list):
        raise bad("tool_calls must be a list")
    calls: list[Mapping[str, Any]] = []
    for call in raw:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise bad("a tool call must hold a function")
        if not all(isinstance(name, str) and name for name in (call.get("id"), function.get("name"))):
            raise bad("a tool call needs an id and a function name")
        arguments = function.get("arguments")
        try:
            # Read back even when it came as an object: NaN inside it must not pass.
            parsed = strict_object(arguments if isinstance(arguments, str) else json.dumps(arguments))
        except ValueError as error:
            raise bad(f"tool call arguments must be a JSON object: {error}") from None
        calls.append({**call, "function": {**function, "arguments": canonical_json(parsed)}})
    return calls
