"""The forms of all answers: what the code gives, the type checker checks and /openapi.json says is one thing."""

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from typing_extensions import NotRequired, TypedDict

from swe_rollout.row_health import Trouble
from swe_rollout.states import Mode, Status, encodable

if TYPE_CHECKING:
    from swe_rollout.outcome import Outcome
    from swe_rollout.row_health import RowState
    from swe_rollout.tasks import Task


class SessionSummary(TypedDict):
    """What anybody may know of a session: no submission, and nothing that opens the trainer's API."""

    session_id: str
    group_id: str
    mode: Mode
    task_id: str
    status: Status
    exit_code: int | None
    error: str | None
    agent_exit_status: str | None
    reward: float | None
    reason: str | None
    n_calls: int
    timings: Mapping[str, float]
    opened_at: str


class SessionView(TypedDict):
    """All that a session's own client may know. `client_session_id` is not kept when the server is restarted."""

    session_id: str
    client_session_id: str | None
    group_id: str
    mode: Mode
    task_id: str
    status: Status
    exit_code: int | None
    error: str | None
    agent_exit_status: str | None
    submission: str | None
    reward: float | None
    reason: str | None
    n_calls: int
    timings: Mapping[str, float]


class Created(TypedDict):
    """The session of a create call."""

    session_id: str
    status: Status


class SessionList(TypedDict):
    """Sessions, newest first."""

    sessions: list[SessionSummary]


class Row(TypedDict):
    """What is known of a row from its sessions, those before the last start of the server included.

    `trouble` says why somebody should look at it, the worst first: `set_aside`, not leased for now; `failing`, at least
    half of its latest results are failures; `stopped_paying`, its last 16 rewards are 0.0 although it gave 1.0 before.
    `failures` counts sessions that failed in the row's image, sandbox, setup or scoring, `other_failures` the others.
    `latest` are the last rewards, null for a failure, the newest last. Seconds are means of completed sessions.
    """

    task_id: str
    mode: Mode
    docker_image: str
    trouble: list[Trouble]
    set_aside_until: str | None
    completed: int
    reward_mean: float | None
    latest: list[float | None]
    failures: int
    failures_in_a_row: int
    last_failure: str | None
    other_failures: int
    cancelled: int
    session_seconds: float | None
    scoring_seconds: float | None
    used_at: str | None


class RowList(TypedDict):
    """Rows, those in trouble first."""

    tasks: list[Row]


class Health(TypedDict):
    """The server lives, and which start of it."""

    status: str
    service_epoch: str
    run_id: str


class SlotCounts(TypedDict):
    """Sandboxes that may run at once, and who waits."""

    in_use: int
    waiting: int
    capacity: int


class Readiness(Health):
    """Whether sessions are admitted, and how things stand."""

    counts: Mapping[Mode, Mapping[Status, int]]
    tasks: Mapping[Mode, Mapping[str, int]]
    slots: Mapping[str, SlotCounts]
    confinement: str
    config_fingerprint: str


class Fault(TypedDict):
    """`field` is the part of the request at fault, if it is one."""

    code: str
    message: str
    field: NotRequired[str]


class Refusal(TypedDict):
    """Why a call was refused; nothing has changed."""

    error: Fault


def view_of(
    session_id: str,
    client_session_id: str | None,
    group_id: str,
    mode: Mode,
    task_id: str,
    status: Status,
    outcome: "Outcome | None",
    n_calls: int,
    timings: Mapping[str, float],
) -> SessionView:
    """A session's view, ready for JSON."""
    return {
        "session_id": session_id,
        "client_session_id": client_session_id,
        "group_id": group_id,
        "mode": mode,
        "task_id": task_id,
        "status": status,
        "exit_code": outcome.exit_code if outcome else None,
        "error": outcome.error if outcome else None,
        "agent_exit_status": outcome.agent_exit_status if outcome else None,
        "submission": encodable(outcome.submission) if outcome else None,
        "reward": outcome.reward if outcome else None,
        "reason": encodable(outcome.reason) if outcome else None,
        "n_calls": n_calls,
        "timings": {name: round(seconds, 6) for name, seconds in timings.items()},
    }


def row_of(mode: Mode, task: "Task", state: "RowState") -> Row:
    """What may be told of a row, ready for JSON."""
    health = state.health
    return {
        "task_id": encodable(task.id),
        "mode": mode,
        "docker_image": encodable(task.docker_image),
        "trouble": state.troubles,
        "set_aside_until": _moment(state.set_aside_until),
        "completed": health.completed,
        "reward_mean": _mean(health.reward_sum, health.completed),
        "latest": list(health.latest),
        "failures": health.failures,
        "failures_in_a_row": health.failures_in_a_row,
        "last_failure": health.last_failure or None,
        "other_failures": health.other_failures,
        "cancelled": health.cancelled,
        "session_seconds": _mean(health.session_seconds, health.completed),
        "scoring_seconds": _mean(health.scoring_seconds, health.scored),
        "used_at": _moment(health.used_at or None),
    }


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 6) if count else None


def _moment(unix: float | None) -> str | None:
    return None if unix is None else datetime.fromtimestamp(unix, timezone.utc).isoformat(timespec="milliseconds")


def public(view: SessionView, opened_at: str) -> SessionSummary:
    """The part of `view` that anybody may know."""
    return {
        "session_id": view["session_id"],
        "group_id": view["group_id"],
        "mode": view["mode"],
        "task_id": view["task_id"],
        "status": view["status"],
        "exit_code": view["exit_code"],
        "error": view["error"],
        "agent_exit_status": view["agent_exit_status"],
        "reward": view["reward"],
        "reason": view["reason"],
        "n_calls": view["n_calls"],
        "timings": view["timings"],
        "opened_at": opened_at,
    }
