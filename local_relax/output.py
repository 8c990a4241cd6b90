"""What an agent process leaves in its output file."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local_relax.errors import AgentExecutionError, ApiError, StepError
from local_relax.rules_c import parse_messages, parse_tools
from local_relax.validation import ChatRequest, parse_template_kwargs

logger = logging.getLogger(__name__)

Reward = float | Mapping[str, Any] | None

_KEYS = frozenset({"metadata", "reward"})


@dataclass(frozen=True)
class Record:
    """A conversation the agent names for training itself, instead of leaving that to the session's history."""

    name: str
    request: ChatRequest
    metadata: Mapping[str, Any]
    reward: Reward


@dataclass(frozen=True)
class AgentOutput:
    """Either `records` (explicit export) or one `reward` with `metadata` for the whole session (implicit export)."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    reward: Reward = None
    records: Sequence[Record] = ()


def read_strict_output(path: Path) -> AgentOutput:
    """The form of generations A and B: no file, or one object that holds metadata and reward and nothing else.

    Raises `AgentExecutionError` for anything else. NaN and infinities pass, as they do in Relax.
    """
    text = _read(path)
    if text is None:
        return AgentOutput()
    try:
        whole = json.loads(text)
    except ValueError as error:
        raise AgentExecutionError(f"invalid output: not JSON: {error}") from None
    if not isinstance(whole, dict):
        raise AgentExecutionError(f"invalid output: expected a JSON object, got {type(whole).__name__}")
    unknown = sorted(whole.keys() - _KEYS)
    if unknown:
        raise AgentExecutionError(f"invalid output: unknown keys {', '.join(unknown)}")
    return AgentOutput(metadata=_metadata(whole), reward=_reward(whole))


def read_output(path: Path) -> AgentOutput:
    """The forms of generation C. An absent or blank file says nothing and is valid.

    Raises `AgentExecutionError` for an invalid one. NaN and infinities pass, as they do in Relax: an agent must
    not write them.
    """
    text = _read(path)
    if text is None or not text.strip():
        return AgentOutput()
    try:
        whole = json.loads(text)
    except ValueError:
        return AgentOutput(records=_records(_lines(text)))
    if not isinstance(whole, dict):
        raise AgentExecutionError(f"invalid output: expected a JSON object, got {type(whole).__name__}")
    if "messages" in whole:
        return AgentOutput(records=_records([whole]))
    ignored = sorted(whole.keys() - _KEYS)
    if ignored:
        logger.warning("agent output: ignored keys %s", ", ".join(ignored))
    return AgentOutput(metadata=_metadata(whole), reward=_reward(whole))


def scalar_reward(reward: Reward, reward_key: str | None) -> float:
    """The number a sample is trained with. Raises `StepError` where Relax would ask a reward model: there is none."""
    if isinstance(reward, Mapping):
        if reward_key is None:
            raise StepError("an agent returned a reward object: name its field with --reward-key")
        reward = reward.get(reward_key)
    if not isinstance(reward, int | float):
        raise StepError(
            "an agent exited with code 0 without a reward and there is no reward model to ask:"
            ' write a number as "reward" into the output file'
        )
    return float(reward)


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise AgentExecutionError("invalid output: not UTF-8") from None


def _lines(text: str) -> list[Any]:
    try:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise AgentExecutionError(f"invalid output: neither one JSON object nor JSON lines: {error}") from None


def _records(items: Sequence[Any]) -> list[Record]:
    records = [_record(item) for item in items]
    if len({record.name for record in records}) != len(records):
        raise AgentExecutionError("invalid output: two records have the same name")
    return records


def _record(item: Any) -> Record:
    if not isinstance(item, dict) or "messages" not in item:
        raise AgentExecutionError("invalid output: every line must be an object with messages")
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise AgentExecutionError("invalid output: a record needs a non-empty name")
    try:
        request = ChatRequest(
            messages=parse_messages(item["messages"]),
            tools=parse_tools(item.get("tools")),
            template_kwargs=parse_template_kwargs(item.get("chat_template_kwargs")),
        )
    except ApiError as error:
        raise AgentExecutionError(f"invalid output: record {name!r}: {error}") from None
    return Record(name, request, _metadata(item), _reward(item))


def _metadata(item: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = item.get("metadata", {})
    if not isinstance(metadata, dict):
        raise AgentExecutionError("invalid output: metadata must be an object")
    return metadata


def _reward(item: Mapping[str, Any]) -> Reward:
    reward = item.get("reward")
    if reward is not None and not isinstance(reward, int | float | dict):
        raise AgentExecutionError("invalid output: reward must be a number, an object or null")
    return reward
