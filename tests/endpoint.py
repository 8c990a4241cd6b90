"""A chat endpoint on loopback that answers each session as a test has written it."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Turn = str | dict[str, Any] | tuple[int, Any] | Callable[[], Any]
"""What the model does: a bash command; a whole assistant message; (HTTP status, body); or a function, called while
the request waits, whose result is one of these, or None to drop the connection."""


class Endpoint:
    """Serves any number of sessions; each is known by its API key, and its `turns` are used up in order."""

    def __init__(self) -> None:
        self.requests: dict[str, list[dict[str, Any]]] = {}
        """Bodies received, by API key."""
        self._turns: dict[str, list[Turn]] = {}
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint._answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/agentic_api/"

    def script(self, key: str, turns: Sequence[Turn]) -> None:
        self._turns[key] = list(turns)
        self.requests[key] = []

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        key = handler.headers["Authorization"].removeprefix("Bearer ")
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.requests[key].append(body)
        turn: Any = self._turns[key].pop(0)
        if callable(turn):
            turn = turn()
        if turn is None:
            handler.close_connection = True
            return
        status, answer = turn if isinstance(turn, tuple) else (200, _completion(turn, len(self.requests[key])))
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        handler.send_response(status if handler.path == "/agentic_api/chat/completions" else 404)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)


def call(*commands: str, number: int = 0, **fields: Any) -> dict[str, Any]:
    """An assistant message that calls bash with each of `commands`."""
    calls = [
        {
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {"name": "bash", "arguments": json.dumps({"command": command})},
        }
        for index, command in enumerate(commands)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls, **fields}


def error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}


def _completion(turn: str | dict[str, Any], number: int) -> dict[str, Any]:
    message = call(turn, number=number) if isinstance(turn, str) else turn
    return {
        "id": f"chatcmpl_{number}",
        "object": "chat.completion",
        "created": int(time.time()),
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
