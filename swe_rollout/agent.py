"""The agent: mini-swe-agent's DefaultAgent with what training needs."""

from collections.abc import Callable
from typing import Any

from minisweagent.agents.default import DefaultAgent
from minisweagent.exceptions import TimeExceeded

from swe_rollout.config import AgentSection
from swe_rollout.environment import SandboxEnvironment
from swe_rollout.model import RelaxModel


class MyAgent(DefaultAgent):
    """Tells the model how many steps are left, and ends when its commands have used up their time."""

    env: SandboxEnvironment

    def __init__(
        self, config: AgentSection, model: RelaxModel, env: SandboxEnvironment, *, on_call: Callable[[int], None]
    ) -> None:
        """`on_call` is told the number of each model call before it is made."""
        limits = config.model_dump(exclude={"wall_time_limit_seconds"})
        # There is no price for a policy under training, and time is counted without Relax's pauses.
        self._on_call = on_call
        super().__init__(model, env, cost_limit=0.0, wall_time_limit_seconds=0, **limits)

    def query(self) -> dict[str, Any]:
        """Ask for the next turn; raises mini-swe-agent's limit exceptions before the call is made."""
        if self.env.exhausted:
            raise TimeExceeded(
                {
                    "role": "exit",
                    "content": "TimeExceeded",
                    "extra": {"exit_status": "TimeExceeded", "submission": ""},
                }
            )
        steps_left = self.config.step_limit - self.n_calls
        if steps_left > 0:
            # The last message has not been sent yet, so adding to it does not fork the history.
            self.messages[-1]["content"] += f"\n\nSteps remaining: {steps_left}"
            self._on_call(self.n_calls + 1)
        message: dict[str, Any] = super().query()
        return message
