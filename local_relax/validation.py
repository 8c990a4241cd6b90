"""Chat requests of generation C: which fields count, which are ignored, and what a message must look like."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from local_relax.canonical import canonical_json, strict_object
from local_relax.errors import ApiError, invalid_request

Message = Mapping[str, Any]

ROLES = ("user", "assistant", "tool", "system")
RESERVED_TEMPLATE_KEYS = ("add_generation_prompt", "tokenize", "tools")


@dataclass(frozen=True)
class ChatRequest:
    """A valid request, reduced to what Relax uses. Messages and tools hold only what makes up a state's identity."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    """Upper limit of generated tokens the agent asked for."""
    stop: Sequence[str] = ()
    seed: int | None = None
    stream: bool = False
    model: object = None
    """Echoed, never looked at."""


def parse_chat_request(body: bytes) -> ChatRequest:
    """Raises `ApiError` 400 that names the field."""
    try:
        raw = json.loads(body)
    except ValueError:
        raise invalid_request("the request body is not valid JSON", "body") from None
    if not isinstance(raw, dict):
        raise invalid_request("the request body must be a JSON object", "body")
    logprobs = raw.get("logprobs")
    if logprobs is not None and not isinstance(logprobs, bool):
        raise invalid_request("logprobs must be a boolean", "logprobs")
    return ChatRequest(
        messages=parse_messages(raw.get("messages")),
        tools=parse_tools(raw.get("tools")),
        template_kwargs=parse_template_kwargs(raw.get("chat_template_kwargs")),
        max_tokens=_token_limit(raw),
        stop=_stop(raw.get("stop")),
        seed=_seed(raw.get("seed")),
        stream=bool(raw.get("stream")),
        model=raw.get("model"),
    )


def parse_messages(raw: Any) -> list[Message]:
    """Normal form of a conversation; all system messages become one at the front. Raises `ApiError` 400."""
    if raw is not None and not isinstance(raw, list):
        raise invalid_request("messages must be a list", "messages")
    if not raw:
        raise invalid_request("the request projected to zero supported messages", "messages")
    messages = [_message(item, f"messages[{index}]") for index, item in enumerate(raw)]
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
    if raw is None:
        return []
    if not isinstance(raw, list) or not all(isinstance(tool, dict) for tool in raw):
        raise invalid_request("tools must be a list of objects", "tools")
    kept: list[Mapping[str, Any]] = []
    for tool in raw:
        if tool.get("type") != "function":
            continue
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise invalid_request("a function tool needs a function with a name", "tools")
        kept.append(
            {key: function[key] for key in ("name", "parameters", "description") if function.get(key) is not None}
        )
    return kept


def parse_template_kwargs(raw: Any) -> Mapping[str, Any]:
    """Raises `ApiError` 400."""
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise invalid_request("chat_template_kwargs must be an object", "chat_template_kwargs")
    for key in RESERVED_TEMPLATE_KEYS:
        if key in raw:
            raise invalid_request(f"chat_template_kwargs must not contain {key}", "chat_template_kwargs")
    return raw


def _token_limit(raw: Mapping[str, Any]) -> int | None:
    name = "max_completion_tokens" if raw.get("max_completion_tokens") is not None else "max_tokens"
    value = raw.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise invalid_request(f"{name} must be a positive integer", name)
    return value


def _stop(raw: Any) -> Sequence[str]:
    if raw is None:
        return ()
    if isinstance(raw, str):
        return (raw,)
    if isinstance(raw, list) and all(isinstance(item, str) for item in raw):
        return tuple(raw)
    raise invalid_request("stop must be a string or a list of strings", "stop")


def _seed(raw: Any) -> int | None:
    if raw is not None and (not isinstance(raw, int) or isinstance(raw, bool)):
        raise invalid_request("seed must be an integer", "seed")
    return raw


def _message(raw: Any, where: str) -> Message:
    def bad(problem: str) -> ApiError:
        return invalid_request(f"{where}: {problem}", "messages")

    if not isinstance(raw, dict):
        raise bad("must be an object")
    role = raw.get("role")
    if role not in ROLES:
        raise bad(f"role must be one of {', '.join(ROLES)}")
    message: dict[str, Any] = {"role": role}
    reasoning = raw.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise bad("reasoning_content must be a string")
    if reasoning:
        message["reasoning_content"] = reasoning
    if raw.get("tool_calls"):
        if role != "assistant":
            raise bad("only an assistant message may hold tool_calls")
        message["tool_calls"] = _tool_calls(raw["tool_calls"], bad)
    if "tool_call_id" in raw:
        if not isinstance(raw["tool_call_id"], str) or not raw["tool_call_id"]:
            raise bad("tool_call_id must be a non-empty string")
        message["tool_call_id"] = raw["tool_call_id"]
    message["content"] = _content(raw.get("content"), message, bad)
    return message


def _content(content: Any, message: Message, bad: Callable[[str], ApiError]) -> Any:
    if isinstance(content, list):
        if not content or not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content):
            raise bad("a list content must hold typed parts")
        return content
    if content is not None and not isinstance(content, str):
        raise bad("content must be text or a list of parts")
    role = message["role"]
    if role == "assistant":
        if not (content and content.strip()) and not ("tool_calls" in message or "reasoning_content" in message):
            raise bad("an assistant message needs content, tool_calls or reasoning_content")
        return content or ""
    if content is None or (content == "" and role != "tool"):
        raise bad("content must not be empty")
    return content


def _tool_calls(raw: Any, bad: Callable[[str], ApiError]) -> list[Mapping[str, Any]]:
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
