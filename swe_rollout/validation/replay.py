"""A whole session whose model is a script: the row's solution goes the way that an agent's work goes."""

import dataclasses
import json
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import SecretStr

from swe_rollout.cancellation import Cancellation
from swe_rollout.environment import SUBMIT_MARKER
from swe_rollout.errors import Cancelled, InfrastructureError
from swe_rollout.outcome import Outcome
from swe_rollout.rollout import Rollout
from swe_rollout.scoring.paths import paths_of
from swe_rollout.session import Mode, Session, SessionRequest
from swe_rollout.tasks import Task


@dataclass(frozen=True)
class ScriptedChat:
    """Plays one command a turn; the last one again if it is asked on."""

    commands: Sequence[str]

    def post(self, url: str, api_key: str, body: Mapping[str, Any], cancellation: Cancellation) -> httpx.Response:
        cancellation.check()
        turn = [message["role"] for message in body["messages"]].count("assistant")
        command = self.commands[min(turn, len(self.commands) - 1)]
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        message = {"role": "assistant", "content": "", "tool_calls": [call]}
        return httpx.Response(200, json={"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})


def replay(
    rollout: Rollout, task: Task, mode: Mode, patch: str, name: str, cancellation: Cancellation
) -> tuple[Outcome, float]:
    """Make the edit in an agent's sandbox, write it to patch.txt, submit it and have it judged.

    Returns the seconds too, without those spent waiting for slots.

    The session's folder has the name `name`. Raises `InfrastructureError` if the session failed, and `Cancelled`.
    """
    request = SessionRequest(
        session_id=name,
        group_id="validation",
        mode=mode,
        base_url="http://validation.invalid",
        api_key=SecretStr(secrets.token_hex(16)),
        request_id=None,
    )
    session = Session(name, request, task)
    scripted = dataclasses.replace(rollout, chat=ScriptedChat(commands(patch)))
    started = time.monotonic()
    with cancellation.waking(lambda: session.cancel("validation is stopping")):
        outcome = scripted(session)
    if outcome.status == "cancelled":
        raise Cancelled(outcome.error or "")
    if outcome.status == "failed":
        raise InfrastructureError(outcome.error or "")
    waited = sum(session.timings.get(wait, 0.0) for wait in ("slot_wait", "scoring_wait"))
    return outcome, time.monotonic() - started - waited


def commands(patch: str) -> list[str]:
    """What an agent that knows the solution types."""
    mark = "END_OF_PATCH"
    while mark in patch:
        mark += "_"
    end = "" if patch.endswith("\n") else "\n"
    paths = shlex.join(sorted(paths_of(patch)))
    # Of the paths that headers seem to name, git takes those that it or the tree knows.
    known = f"git --literal-pathspecs ls-files -z --cached --others -- {paths}"
    add = "xargs -0 -r git --literal-pathspecs add --all --force --"
    return [
        f"git apply --whitespace=nowarn <<'{mark}'\n{patch}{end}{mark}\n",
        f"{known} | {add} && git --literal-pathspecs diff --cached --binary -- {paths} > patch.txt",
        f"echo {SUBMIT_MARKER} && cat patch.txt",
    ]
