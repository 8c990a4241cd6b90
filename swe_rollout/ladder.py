"""The order that the server's time limits must have, checked as a whole before it starts."""

from typing import TYPE_CHECKING, NamedTuple

from swe_rollout.errors import StartupError
from swe_rollout.settings import Settings, variable_of

if TYPE_CHECKING:
    from swe_rollout.config import RolloutConfig

CLIENT_POLL_SECONDS = 60.0
"""How long agent_client.sh waits in one call; POLL_SECONDS there."""


class _Limit(NamedTuple):
    name: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name}={self.seconds:g}"


def check_ladder(settings: Settings, config: "RolloutConfig") -> None:
    """Raise `StartupError`, one line naming every pair of limits that is out of order, both with their values."""
    client_ttl = _Limit(variable_of("client_ttl_seconds"), settings.client_ttl_seconds)
    record_ttl = _Limit(variable_of("record_ttl_seconds"), settings.record_ttl_seconds)
    poll = _Limit("agent_client.sh's POLL_SECONDS", CLIENT_POLL_SECONDS)
    wall_time = _Limit("agent.wall_time_limit_seconds", config.agent.wall_time_limit_seconds)
    rungs = [
        (_Limit("environment.timeout", config.environment.timeout), wall_time, "a command may not outlast its session"),
        (_Limit("scoring.timeout", config.scoring.timeout), wall_time, "the judge may not take longer than the agent"),
        (
            _Limit("model.connect_timeout", config.model.connect_timeout),
            client_ttl,
            "an endpoint that takes no connection must be noticed before a client counts as gone",
        ),
        (client_ttl, record_ttl, "what a client may be silent about must still be there when it asks"),
    ]
    wrong = [
        f"{lower} is more than {upper}: {why}" for lower, upper, why in rungs if not lower.seconds <= upper.seconds
    ]
    if not client_ttl.seconds > poll.seconds:
        wrong.append(f"{client_ttl} is not more than {poll}: a client that waits its turn must not count as gone")
    if wrong:
        raise StartupError("time limits are out of order: " + "; ".join(wrong))
