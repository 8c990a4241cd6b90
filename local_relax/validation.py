"""Chat requests: what all generations of the contract check alike. `rules_ab` and `rules_c` add what is their own."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from local_relax.errors import ApiError, invalid_request

Message = Mapping[str, Any]
Complain = Callable[[str], ApiError]
"""Makes the error that says what is wrong with one message."""

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
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Seed and the like, as a model's endpoint takes them."""
    stream: bool = False
    model: object = None
    """Echoed, never looked at."""


def json_body(body: bytes) -> dict[str, Any]:
    """Raises `ApiError` 400."""
    try:
        raw = json.loads(body)
    except ValueError:
        raise invalid_request("the request body is not valid JSON", "body") from None
    if not isinstance(raw, dict):
        raise invalid_request("the request body must be a JSON object", "body")
    return raw


def check_logprobs(raw: Any) -> None:
    """Raises `ApiError` 400."""
    if raw is not None and not isinstance(raw, bool):
        raise invalid_request("logprobs must be a boolean", "logprobs")


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


def parse_stop(raw: Any) -> Sequence[str]:
    """Raises `ApiError` 400."""
    if raw is None:
        return ()
    if isinstance(raw, str):
        return (raw,)
    if isinstance(raw, list) and all(isinstance(item, str) for item in raw):
        return tuple(raw)
    raise invalid_request("stop must be a string or a list of strings", "stop")


def tool_objects(raw: Any) -> list[Mapping[str, Any]]:
    """Raises `ApiError` 400."""
    if raw is None:
        return []
    if not isinstance(raw, list) or not all(isinstance(tool, dict) for tool in raw):
        raise invalid_request("tools must be a list of objects", "tools")
    return raw


def parse_each(raw: Sequence[Any], parse: Callable[[Mapping[str, Any], Complain], Message]) -> list[Message]:
    """Parse the messages of a conversation one by one; their roles are checked here. Raises `ApiError` 400."""
    return [_parse_one(item, f"messages[{index}]", parse) for index, item in enumerate(raw)]


def _parse_one(raw: Any, where: str, parse: Callable[[Mapping[str, Any], Complain], Message]) -> Message:
    def bad(problem: str) -> ApiError:
        return invalid_request(f"{where}: {problem}", "messages")

    if not isinstance(raw, dict):
        raise bad("must be an object")
    if raw.get("role") not in ROLES:
        raise bad(f"role must be one of {', '.join(ROLES)}")
    return parse(raw, bad)


def check_content_type(content: Any, bad: Complain) -> None:
    """Content is text, null or a list of typed parts. Raises `ApiError` 400."""
    if isinstance(content, list):
        if not content or not all(isinstance(part, dict) and isinstance(part.get("type"), str) for part in content):
            raise bad("a list content must hold typed parts")
    elif content is not None and not isinstance(content, str):
        raise bad("content must be text or a list of parts")


def parse_reasoning(raw: Mapping[str, Any], bad: Complain) -> Mapping[str, str]:
    """The field as it belongs to a message's identity: left out if it is empty. Raises `ApiError` 400."""
    reasoning = raw.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise bad("reasoning_content must be a string")
    return {"reasoning_content": reasoning} if reasoning else {}


def parse_tool_call_id(raw: Mapping[str, Any], bad: Complain) -> Mapping[str, str]:
    """The field as it belongs to a message's identity. Raises `ApiError` 400."""
    if "tool_call_id" not in raw:
        return {}
    if not isinstance(raw["tool_call_id"], str) or not raw["tool_call_id"]:
        raise bad("tool_call_id must be a non-empty string")
    return {"tool_call_id": raw["tool_call_id"]}


def is_blank(content: Any) -> bool:
    """Nothing but white space, or nothing at all."""
    return content is None or (isinstance(content, str) and not content.strip())
