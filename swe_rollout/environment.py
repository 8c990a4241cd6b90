"""mini-swe-agent's Environment over a sandbox that starts with the first command.

Until the model has asked for a command there is no slot and no sandbox: Relax holds first answers
until a whole group has asked, and a session that held a slot meanwhile could starve its siblings.
"""

from collections.abc import Callable
from typing import Any, Protocol

from minisweagent.exceptions import Submitted

from swe_rollout.config import EnvironmentSection
from swe_rollout.sandbox.channel import CommandResult

SUBMISSION_LIMIT = 1 << 20
"""Characters. Each is kept in memory, the journal and the session's folder, as up to six bytes."""
SUBMIT_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Workspace(Protocol):
    """A prepared sandbox, as far as the agent needs it."""

    def run(self, command: str, timeout: float) -> CommandResult: ...


class SandboxEnvironment:
    """Executes the agent's commands; raises mini-swe-agent's `Submitted` when one submits."""

    def __init__(
        self, config: EnvironmentSection, open_workspace: Callable[[], Workspace], *, seconds_limit: float
    ) -> None:
        """`seconds_limit` bounds all commands together: the last one is cut when it is reached."""
        self.config = config
        self._open_workspace = open_workspace
        self._workspace: Workspace | None = None
        self._seconds_limit = seconds_limit
        self.seconds = 0.0
        """Spent in commands so far."""
        self.submitted = b""
        """What was printed after the submit marker. The submission that people and the trainer see is this as text."""

    @property
    def exhausted(self) -> bool:
        """Whether the commands have used up their time."""
        return self.seconds >= self._seconds_limit

    def execute(self, action: dict[str, Any], cwd: str = "") -> dict[str, Any]:
        """Run one command; the answer has mini-swe-agent's keys `output`, `returncode` and `exception_info`."""
        if self._workspace is None:
            self._workspace = self._open_workspace()
        command = str(action.get("command", ""))
        timeout = max(0.1, min(self.config.timeout, self._seconds_limit - self.seconds))
        result = self._workspace.run(command, timeout)
        self.seconds += result.seconds
        output = result.output
        if result.timed_out:
            return {
                "output": output,
                "returncode": -1,
                "exception_info": f"The command did not end within {timeout:g} seconds and was killed "
                "with everything it had started." + _told(result.killed),
            }
        if result.returncode == 0:
            self._check_submitted(result.raw)
        gone = "" if result.cwd == self.config.cwd else f"{self.config.cwd} is gone; the command ran in {result.cwd}."
        told = (gone + _told(result.killed)).strip()
        return {"output": output, "returncode": result.returncode, "exception_info": told}

    def _check_submitted(self, raw: bytes) -> None:
        # Bytes that are no UTF-8 come through unharmed: a patch has those of the files that it changes.
        lines = raw.decode("utf-8", "surrogateescape").lstrip().splitlines(keepends=True)
        if lines and lines[0].strip() == SUBMIT_MARKER:
            submission = "".join(lines[1:])
            if (surplus := len(submission) - SUBMISSION_LIMIT) > 0:
                submission = f"{submission[:SUBMISSION_LIMIT]}\n[{surplus} characters left out]\n"
            self.submitted = submission.encode("utf-8", "surrogateescape")
            text = self.submitted.decode("utf-8", "replace")
            raise Submitted(
                {
                    "role": "exit",
                    "content": text,
                    "extra": {"exit_status": "Submitted", "submission": text},
                }
            )

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return {"cwd": self.config.cwd, "timeout": self.config.timeout, **kwargs}

    def serialize(self) -> dict[str, Any]:
        return {
            "info": {
                "config": {
                    "environment": self.config.model_dump(mode="json"),
                    "environment_type": f"{type(self).__module__}.{type(self).__name__}",
                }
            }
        }


def _told(killed: str) -> str:
    return f" The sandbox went over a limit: {killed}." if killed else ""
