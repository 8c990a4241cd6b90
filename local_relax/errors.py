"""What can go wrong on Relax's side, and what it leads to.

- `ApiError`: one chat request is refused; the agent reads the error envelope.
- `AgentExecutionError`: one agent process did not deliver; its whole group is dropped and replaced.
- `StepError`: Relax itself cannot go on (an agent cannot be launched, a sample has no reward); the run ends.
"""

from typing import Any


class AgentExecutionError(Exception):
    """A session ended in a way that cannot be trained on. The message says why."""


class StepError(Exception):
    """The run must end; the message is one line that says why."""


class ApiError(Exception):
    """An error answer of the chat API, in OpenAI's envelope unless the generation knows another form."""

    def __init__(
        self, status: int, code: str, message: str, *, kind: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.kind = kind or code
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        return {
            "error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code},
        }

    @property
    def headers(self) -> dict[str, str]:
        """Answers that a repeat cannot mend tell SDKs so: a repeat would fork the session's history."""
        return {"x-should-retry": "false"} if self.status in (404, 500) else {}


def invalid_request(message: str, param: str) -> ApiError:
    return ApiError(400, "invalid_request_error", message, param=param)


def unauthenticated(message: str) -> ApiError:
    return ApiError(401, "authentication_error", message)


def session_discarded() -> ApiError:
    """The session is unknown, finished or discarded."""
    return ApiError(
        404,
        "session_discarded",
        "the session does not exist or has been discarded",
        kind="not_found_error",
        param="session_id",
    )


def context_length_exceeded(limit: int, tokens: int) -> ApiError:
    """`limit` and `tokens` count tokens of the whole conversation."""
    return ApiError(
        400,
        "context_length_exceeded",
        f"This model's maximum context length is {limit} tokens. However, your messages resulted in {tokens} tokens.",
        kind="invalid_request_error",
        param="messages",
    )


def internal_error(message: str) -> ApiError:
    return ApiError(500, "internal_error", message)
