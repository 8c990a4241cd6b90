"""The chat API agents talk to, under the same path prefix and with the same answers as Relax's.

Served by waitress: its fixed pool of threads bounds how many requests can be held at once and can be joined at the
end, which the standard library's thread-per-connection server cannot promise. Chat completions only.
"""

import functools
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import Any

import flask
from waitress import create_server, wasyncore

from local_relax.errors import ApiError, context_length_exceeded, internal_error, session_discarded, unauthenticated
from local_relax.generation import Generation
from local_relax.replies import Engine
from local_relax.sessions import SessionTable
from local_relax.state import Turn
from local_relax.wire import complete, estimate_tokens

PREFIX = "/agentic_api"
_HEARTBEAT_SECONDS = 15.0
_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class ModelLimits:
    """What the served model can do."""

    name: str = "local-relax"
    context: int = 32768
    """Tokens of a whole conversation, answer included."""
    response: int = 8192
    """Tokens of one answer, unless the request asks for fewer."""
    think_seconds: float = 0.0
    """Time every answer takes at least."""


class ChatApi:
    """The HTTP server. Owns its threads only: all session state is the table's."""

    def __init__(
        self, table: SessionTable, engine: Engine, generation: Generation, limits: ModelLimits, *, threads: int
    ) -> None:
        """Listens on a free loopback port; `threads` is the number of requests that can be held at once."""
        self._table = table
        self._engine = engine
        self._generation = generation
        self._limits = limits
        self._streams = ThreadPoolExecutor(threads, thread_name_prefix="chat-stream")
        self._sockets: dict[int, Any] = {}
        self._server = create_server(
            self._build_app(),
            map=self._sockets,
            host="127.0.0.1",
            port=0,
            threads=threads,
            connection_limit=4 * threads + 100,
            asyncore_use_poll=True,
        )
        self.base_url = f"http://127.0.0.1:{self._server.effective_port}{PREFIX}/"
        self._thread = threading.Thread(target=self._server.run, name="chat-api")
        self._thread.start()

    def close(self) -> None:
        """Stop listening and join all threads. Every session must be closed, so that no request waits any more."""
        self._streams.shutdown()
        self._server.task_dispatcher.shutdown(timeout=_STOP_SECONDS)
        self._server.trigger.pull_trigger(lambda: wasyncore.close_all(self._sockets, ignore_all=True))
        self._thread.join()

    def _build_app(self) -> flask.Flask:
        app = flask.Flask("local_relax")
        app.url_map.merge_slashes = False  # a doubled slash is an unknown route, as in Relax
        for route in ("/", "/chat/completions", "/v1/chat/completions"):
            app.add_url_rule(PREFIX + route, f"chat{route}", self._chat, methods=["POST"])
        for route in ("/models", "/v1/models"):
            app.add_url_rule(PREFIX + route, f"models{route}", self._models)
        for route in ("/health", "/healthz"):
            app.add_url_rule(PREFIX + route, f"health{route}", lambda: {"status": "ok"})
        app.add_url_rule(PREFIX + "/debug_state", "debug_state", self._debug_state)
        app.register_error_handler(ApiError, self._refusal)
        app.register_error_handler(500, lambda error: self._refusal(internal_error(f"unexpected: {error}")))
        return app

    def _chat(self) -> flask.Response:
        request = self._generation.parse_request(flask.request.get_data())
        turn = self._table.enter(_bearer_token(flask.request.headers.get("Authorization", "")), request)
        try:
            if request.stream:
                stream = _stream(self._streams.submit(self._answer, turn))
                response = flask.Response(stream, mimetype="text/event-stream")
            else:
                response = _json(200, self._answer(turn))
        except ApiError as error:
            response = self._refusal(error)
        except BaseException:
            self._table.leave(turn)
            raise
        response.call_on_close(functools.partial(self._table.leave, turn))
        return response

    def _answer(self, turn: Turn) -> dict[str, Any]:
        """Generate and commit one turn; blocks as long as the gate holds it. Raises `ApiError`.

        Nobody watches the connection: an answer is committed even if its reader is gone.
        """
        request = turn.request
        self._table.hold(turn)
        prompt_tokens = estimate_tokens(request.messages, request.tools)
        room = self._limits.context - prompt_tokens
        if room <= 0:
            raise context_length_exceeded(self._limits.context, prompt_tokens)
        self._table.think(turn, self._limits.think_seconds)
        attempt = self._engine.start(request, turn.session.policy)
        try:
            with self._table.aborting(turn, attempt.cancel):
                reply = attempt.result()
        except CancelledError:
            raise session_discarded() from None
        room = min(room, self._limits.response, request.max_tokens or room)
        completion = complete(reply, request, turn.node.state, prompt_tokens, room, self._generation.form)
        self._table.hold(turn)  # a pause that began meanwhile delays the answer
        self._table.commit(turn, completion.message)
        return completion.body(self._generation.form.head(turn.session.id, request.model))

    def _refusal(self, error: ApiError) -> flask.Response:
        return _json(error.status, *self._generation.form.refusal(error))

    def _models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self._limits.name, "object": "model"}]}

    def _debug_state(self) -> dict[str, Any]:
        return {
            "groups": [
                {"group_id": group, "leased": leased, "sessions": [phase for _, phase, _ in sessions]}
                for group, leased, sessions in self._table.snapshot()
            ]
        }


def _bearer_token(header: str) -> str:
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise unauthenticated("the Authorization header must be: Bearer <session id>")
    return token.strip()


def _stream(attempt: "Future[dict[str, Any]]") -> Iterator[str]:
    """The buffered stream: comments while the turn is made elsewhere, then everything in one chunk."""
    yield ": connected\n\n"
    while True:
        try:
            yield f"data: {json.dumps(_chunk(attempt.result(_HEARTBEAT_SECONDS)))}\n\n"
            yield "data: [DONE]\n\n"
        except FutureTimeout:
            yield ": heartbeat\n\n"
            continue
        except ApiError as error:
            yield f"data: {json.dumps(error.body)}\n\n"
        return


def _chunk(body: Mapping[str, Any]) -> dict[str, Any]:
    choice = dict(body["choices"][0])
    message = dict(choice.pop("message"))
    if "tool_calls" in message:
        message["tool_calls"] = [{"index": index, **call} for index, call in enumerate(message["tool_calls"])]
    return {**body, "object": "chat.completion.chunk", "choices": [{**choice, "delta": message}]}


def _json(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> flask.Response:
    return flask.Response(json.dumps(body), status, headers, mimetype="application/json")
