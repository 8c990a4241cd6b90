"""A real model instead of a script: every turn goes to an OpenAI-compatible endpoint."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import httpx

from local_relax.canonical import strict_object
from local_relax.errors import ApiError, internal_error
from local_relax.replies import Call, Reply
from local_relax.validation import ChatRequest


class ModelProxy:
    """All calls run on one loop thread, so that a call which waits for the model can be cancelled from any other.

    The loop thread owns the HTTP client.
    """

    def __init__(self, url: str, model: str, api_key: str | None, response_limit: int) -> None:
        """`url` is the base that `/chat/completions` is added to; `response_limit` is in tokens per turn."""
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._endpoint = f"{url.rstrip('/')}/chat/completions"
        self._model = model
        self._response_limit = response_limit
        self._client = httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(None, connect=10))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model-proxy")
        self._thread.start()

    def start(self, request: ChatRequest, policy: str) -> Future[Reply]:
        return asyncio.run_coroutine_threadsafe(self._call(request), self._loop)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _call(self, request: ChatRequest) -> Reply:
        body: dict[str, Any] = {
            "model": self._model,
            "messages": request.messages,
            "max_tokens": min(request.max_tokens or self._response_limit, self._response_limit),
            **request.sampling,
        }
        if request.tools:
            body["tools"] = [_whole_tool(tool) for tool in request.tools]
        if request.stop:
            body["stop"] = request.stop
        try:
            answer = await self._client.post(self._endpoint, json=body)
        except httpx.HTTPError as error:
            raise internal_error(f"the model endpoint {self._endpoint} failed: {error!r}") from error
        if answer.status_code != 200:
            raise _refused(answer)
        try:
            return _reply(answer.json()["choices"][0])
        except (ValueError, LookupError, TypeError) as error:
            raise internal_error(f"the model endpoint answered something else than a chat turn: {error!r}") from error


def _whole_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Generations that reduce a tool to its function leave the envelope out."""
    return tool if "function" in tool else {"type": "function", "function": tool}


def _refused(answer: httpx.Response) -> ApiError:
    excerpt = " ".join(answer.text.split())[:300]
    if answer.status_code == 400 and "context" in excerpt.lower():
        return ApiError(400, "context_length_exceeded", excerpt, kind="invalid_request_error", param="messages")
    return internal_error(f"the model endpoint answered {answer.status_code}: {excerpt}")


def _reply(choice: Mapping[str, Any]) -> Reply:
    message = choice["message"]
    calls = [
        Call(strict_object(call["function"]["arguments"]), call["function"]["name"])
        for call in message.get("tool_calls") or ()
    ]
    return Reply(
        text=message.get("content") or "",
        calls=calls,
        reasoning=message.get("reasoning_content") or "",
        cut=choice.get("finish_reason") == "length",
    )
