"""The sandbox an agent works in: prepared, and without what it must not see."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from swe_rollout.cancellation import Cancellation
from swe_rollout.config import SetupSection
from swe_rollout.errors import SetupError, without_agent
from swe_rollout.sandbox.channel import CommandResult
from swe_rollout.sandbox.sandbox import Sandbox

_SEAL = (Path(__file__).parent / "seal.sh").read_text()


class AgentWorkspace:
    """Runs the agent's commands in its sandbox."""

    def __init__(
        self, sandbox: Sandbox, setup: SetupSection, hidden: Sequence[str], cancellation: Cancellation
    ) -> None:
        """Prepare a started sandbox, without the paths in `hidden`. Raises `SetupError` naming the step that failed."""
        self._sandbox = sandbox
        self._cancellation = cancellation
        for what, script in (
            ("the setup script", setup.script),
            ("hiding the tests and the repository's future", f"set -- {shlex.join(hidden)}\n{_SEAL}"),
        ):
            with without_agent(SetupError, f"{what} broke the sandbox"):
                result = self.run(script, setup.timeout)
            if result.returncode != 0 or result.timed_out:
                ending = "timed out" if result.timed_out else f"failed with exit code {result.returncode}"
                raise SetupError(f"{what} {ending}: {result.output.strip()[-500:]}")
        with without_agent(SetupError, "a first command broke the sandbox"):
            sandbox.learn_noise(timeout=setup.timeout, cancellation=cancellation)

    def run(self, command: str, timeout: float) -> CommandResult:
        """See `Sandbox.run`."""
        return self._sandbox.run(command, timeout=timeout, cancellation=self._cancellation)
