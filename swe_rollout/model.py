"""The policy under training, behind Relax's chat API.

Relax keeps every turn as a node of a tree and trains only on a session whose history never forks. So
an answer goes back into the next request exactly as it came, nothing that was sent is ever edited,
and no request is sent twice: a repeated one would be a second branch.
"""

import asyncio
import concurrent.futures
import json
import re
import socket
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Protocol

import httpx
from minisweagent.exceptions import FormatError, InterruptAgentFlow
from minisweagent.models.utils.actions_toolcall import (
    BASH_TOOL,
    format_toolcall_observation_messages,
    parse_toolcall_actions,
)

from swe_rollout.cancellation import Cancellation
from swe_rollout.config import ModelSection
from swe_rollout.errors import Cancelled, ModelError

CONTEXT_EXIT_STATUS = "ContextWindowExceededError"
_TOO_LONG = re.compile(r"context_length_exceeded|maximum context length|context window|too long", re.IGNORECASE)
_KEPT_CHARACTERS = 64_000
"""Of an output in the trajectory: many times what the model was shown of it."""
_KEEP_ALIVE = [
    # Relax may hold a request for hours: the connection must not look dead to what lies between.
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 60),
]


class ContextExceeded(InterruptAgentFlow):
    """The conversation no longer fits the model: the run ends, as at any other limit."""


class Chat(Protocol):
    """Whoever answers chat requests."""

    def post(self, url: str, api_key: str, body: Mapping[str, Any], cancellation: Cancellation) -> httpx.Response: ...


class ChatClient:
    """Sends chat requests for all sessions from one event loop, so that each can be given up at once.

    Thread-safe: any thread may call `post`; the loop and its connections belong to the client's own thread.
    """

    def __init__(self, connect_timeout: float) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chat-client", daemon=True)
        self._thread.start()
        self._timeout = httpx.Timeout(connect_timeout, read=None, pool=None)
        self._ssl = httpx.create_ssl_context()

    async def _send(self, url: str, api_key: str, body: Mapping[str, Any]) -> httpx.Response:
        # A connection of its own: a pool looks through all its connections for every request, and one that was kept
        # may be closed by the other side just as the request, which must not be sent twice, is on its way.
        transport = httpx.AsyncHTTPTransport(verify=self._ssl, retries=0, socket_options=_KEEP_ALIVE)
        async with httpx.AsyncClient(transport=transport, timeout=self._timeout) as client:
            return await client.post(
                url,
                # All in ASCII: what is no Unicode text, such as half a surrogate pair, goes back as it came too.
                content=json.dumps(body),
                headers={"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"},
            )

    def post(self, url: str, api_key: str, body: Mapping[str, Any], cancellation: Cancellation) -> httpx.Response:
        """One request, one answer. Raises `ModelError` when there is no answer and `Cancelled`."""
        future = asyncio.run_coroutine_threadsafe(self._send(url, api_key, body), self._loop)
        try:
            with cancellation.waking(future.cancel):
                return future.result()
        except concurrent.futures.CancelledError:
            cancellation.check()
            raise
        except Cancelled:
            future.cancel()
            raise
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ModelError(f"model endpoint {url}: {type(error).__name__} {error}".rstrip()) from error

    def close(self) -> None:
        """Close the connections and end the thread. Call it when no session is left."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class RelaxModel:
    """mini-swe-agent's Model for one session."""

    def __init__(
        self,
        config: ModelSection,
        client: Chat,
        *,
        base_url: str,
        api_key: str,
        cancellation: Cancellation,
    ) -> None:
        self.config = config
        self.seconds = 0.0
        """Spent waiting for answers so far."""
        self._client = client
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._api_key = api_key
        self._cancellation = cancellation

    def query(self, messages: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Ask for the next turn.

        Raises `FormatError` (carrying the turn itself, which must stay in the history), `ContextExceeded`, `ModelError`
        for any other refusal, and `Cancelled`, also when Relax answers that it has discarded the session.
        """
        body = {
            "model": self.config.model_name,
            "messages": [{key: value for key, value in m.items() if key != "extra"} for m in messages],
            "tools": [BASH_TOOL],
            **self.config.model_kwargs,
            **kwargs,
        }
        started = time.monotonic()
        try:
            response = self._client.post(self._url, self._api_key, body, self._cancellation)
        finally:
            self.seconds += time.monotonic() - started
        if response.status_code != 200:
            self._refused(response)
        return self._turn(response)

    def _refused(self, response: httpx.Response) -> None:
        code, message = _error_of(response)
        if response.status_code == 404 and code == "session_discarded":
            raise Cancelled("Relax discarded the session")
        if response.status_code == 400 and _TOO_LONG.search(f"{code} {message}"):
            raise ContextExceeded(
                {
                    "role": "exit",
                    "content": message,
                    "extra": {"exit_status": CONTEXT_EXIT_STATUS, "submission": ""},
                }
            )
        raise ModelError(f"model endpoint {self._url} answered {response.status_code}: {message[:500]}")

    def _turn(self, response: httpx.Response) -> dict[str, Any]:
        try:
            answer = json.loads(response.content, parse_constant=_no_number)
            choice = answer["choices"][0]
            message = dict(choice["message"])
            tool_calls = list(message.get("tool_calls") or [])
            calls = [
                SimpleNamespace(
                    id=call["id"],
                    function=SimpleNamespace(
                        name=call["function"]["name"], arguments=_as_text(call["function"]["arguments"])
                    ),
                )
                for call in tool_calls
            ]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ModelError(f"model endpoint {self._url} answered 200 without a chat message: {error!r}") from error
        message["extra"] = {"response": answer, "timestamp": time.time(), "cost": 0.0}
        # The stock template blames a token limit for every malformed call unless it is told the difference.
        finish_reason = "length" if choice.get("finish_reason") == "length" else "stop"
        try:
            actions = parse_toolcall_actions(
                calls,
                format_error_template=self.config.format_error_template,
                template_kwargs={"finish_reason": finish_reason},
            )
        except FormatError as error:
            message["extra"]["actions"] = []
            raise FormatError(message, *_answers(calls, error.messages[0])) from None
        message["extra"]["actions"] = actions
        return message

    def format_message(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs

    def format_observation_messages(
        self,
        message: dict[str, Any],
        outputs: list[dict[str, Any]],
        template_vars: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        """One tool message per call, in order; calls that were not run are answered too."""
        messages: list[dict[str, Any]] = format_toolcall_observation_messages(
            actions=message["extra"]["actions"],
            outputs=outputs,
            observation_template=self.config.observation_template,
            template_vars=template_vars,
        )
        for observed in messages:
            observed["extra"]["raw_output"] = _shortened(observed["extra"]["raw_output"])
        return messages

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return {**self.config.model_dump(), **kwargs}

    def serialize(self) -> dict[str, Any]:
        return {
            "info": {
                "config": {
                    "model": self.config.model_dump(mode="json"),
                    "model_type": f"{type(self).__module__}.{type(self).__name__}",
                }
            }
        }


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _shortened(output: str) -> str:
    if len(output) <= _KEPT_CHARACTERS:
        return output
    half = _KEPT_CHARACTERS // 2
    return f"{output[:half]}\n[{len(output) - 2 * half} characters left out]\n{output[-half:]}"


def _as_text(arguments: Any) -> str:
    """Arguments arrive as JSON text from most servers and as an object from some."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _answers(calls: list[SimpleNamespace], complaint: dict[str, Any]) -> list[dict[str, Any]]:
    """The complaint as an answer to each tool call, since a call without an answer is no valid history."""
    if not calls:
        return [complaint]
    return [{**complaint, "role": "tool", "tool_call_id": call.id} for call in calls]


def _error_of(response: httpx.Response) -> tuple[str, str]:
    """(code, message) of an OpenAI error envelope, of FastAPI's `detail`, or of plain text."""
    try:
        body = response.json()
        if "error" in body:
            error = body["error"]
            return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
        return "", str(body.get("detail", body))
    except (ValueError, AttributeError, TypeError):
        return "", response.text.strip()
