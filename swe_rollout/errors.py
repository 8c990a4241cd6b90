"""What can go wrong, and whose fault it is.

Each family leads to exactly one ending of a session (`outcome.py`):

- `InfrastructureError`: ours or the machine's. The session fails; there is no reward to train on.
- `AgentFault`: the agent broke its own sandbox or tree. The session completes with reward 0.0.
- `Cancelled`: Relax or the client gave the session up. No reward, no blame.

`StartupError` never meets a session: it keeps the server from starting.
"""

import contextlib
from collections.abc import Iterator


class InfrastructureError(Exception):
    """A fault of the server, the machine, the data or the model endpoint."""


class ImageError(InfrastructureError):
    """The task's SIF is missing or damaged."""


class SandboxError(InfrastructureError):
    """A sandbox cannot start, or died from outside."""


class SetupError(InfrastructureError):
    """The command that prepares a fresh sandbox for the agent failed."""


class ModelError(InfrastructureError):
    """The model endpoint refused, failed or cannot be reached."""


class ScoringError(InfrastructureError):
    """The judge could not do its work; says nothing about the submission."""


class AgentFault(Exception):
    """The agent made its own sandbox unusable. `exit_status` names how, in mini-swe-agent's style."""

    def __init__(self, exit_status: str, message: str) -> None:
        super().__init__(message)
        self.exit_status = exit_status


class Cancelled(Exception):
    """The session was given up; the message says by whom."""


class StartupError(Exception):
    """The server must not start; the message is one line that says what to do."""


@contextlib.contextmanager
def without_agent(kind: type[InfrastructureError], what: str) -> Iterator[None]:
    """Within the block nothing of an agent's is in the sandbox yet: what breaks it becomes an error of `kind`."""
    try:
        yield
    except AgentFault as fault:
        raise kind(f"{what}: {fault}") from fault
