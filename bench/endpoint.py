"""A chat endpoint on loopback that answers as a policy tells it: the trainer's side under load and under faults."""

import asyncio
import contextlib
import json
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class Refusal:
    """An answer without a turn."""

    status: int
    code: str
    message: str


Turn = Message | Refusal | None
"""An assistant message; a refusal; or None to reset the connection."""

Policy = Callable[[str, int, Mapping[str, Any]], Awaitable[Turn]]
"""The turn for an API key, the number of its requests before this one, and the request. It may take any time; it is
cancelled when the client hangs up."""

TEXT: Message = {"role": "assistant", "content": "I am done."}
"""A turn without a tool call."""


class Endpoint:
    """Serves any number of held requests from one event loop. One request per connection: those of a session lie
    further apart than servers keep a connection anyway.
    """

    def __init__(self, policy: Policy) -> None:
        self.asked: Counter[str] = Counter()
        """Requests received, by API key."""
        self._policy = policy

    async def start(self) -> str:
        """Listen on a free port; the base URL to give to sessions."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=4096)
        port = self._server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/agentic_api/"

    async def close(self) -> None:
        """Take no more requests."""
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            key, body = await _read_request(reader)
            number = self.asked[key]
            self.asked[key] += 1
            turn = asyncio.ensure_future(self._policy(key, number, body))
            gone = asyncio.ensure_future(reader.read(1))
            await asyncio.wait((turn, gone), return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if not turn.done():
                turn.cancel()
            elif (answer := turn.result()) is not None:
                writer.write(_response(answer, number))
                await writer.drain()
            else:
                # Closed with a reset instead of an orderly end.
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()


def call(command: str, number: int) -> Message:
    """A turn that runs `command`; `number` tells calls of one session apart."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}],
    }


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, Mapping[str, Any]]:
    """API key and body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    body = json.loads(await reader.readexactly(int(headers["content-length"])))
    return headers["authorization"].removeprefix("bearer "), body


def _response(turn: Message | Refusal, number: int) -> bytes:
    if isinstance(turn, Refusal):
        status: int = turn.status
        answer: Any = {"error": {"code": turn.code, "message": turn.message, "type": turn.code, "param": None}}
    else:
        status = 200
        choice = {"index": 0, "message": turn, "finish_reason": "stop", "logprobs": None}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        answer = {
            "id": f"chatcmpl_{number}",
            "object": "chat.completion",
            "created": 0,
            "choices": [choice],
            "usage": usage,
        }
    data = json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    return head.encode() + data
