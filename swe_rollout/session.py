"""One session: what the client asked for, where it stands, how it ended."""

import dataclasses
import hashlib
import json
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from swe_rollout.answers import SessionSummary, SessionView, public, view_of
from swe_rollout.attendance import Attendance
from swe_rollout.cancellation import Cancellation
from swe_rollout.outcome import Outcome
from swe_rollout.states import MODES as MODES
from swe_rollout.states import STAGES as STAGES
from swe_rollout.states import Mode as Mode
from swe_rollout.states import Stage, encodable
from swe_rollout.states import Status as Status

if TYPE_CHECKING:
    from swe_rollout.tasks import Task

REQUEST_ID = r"^req-[A-Za-z0-9._:-]+$"
REQUEST_ID_LENGTH = 200
_ERROR_LENGTH = 2000
_SHORTEST_SECRET = 6
"""Shorter keys are parts of words, and no secret."""


def _sendable(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("is not one word of visible ASCII characters, as a header needs it")
    return key


class SessionRequest(BaseModel):
    """The body of a create call. Other fields are ignored, so that other versions of a client work.

    The trainer uses a session's id as its API key too, so neither shows in a `repr`.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", use_attribute_docstrings=True)

    session_id: str = Field(min_length=1, max_length=500, repr=False)
    """The trainer's name for the session."""
    group_id: str = Field(min_length=1, max_length=500)
    """Sessions of one group get the same task."""
    mode: Mode
    base_url: str = Field(max_length=2000, pattern=r"^https?://\S+$")
    """Root of the trainer's chat API, passed on as it is."""
    api_key: Annotated[SecretStr, AfterValidator(_sendable)] = Field(min_length=1, max_length=500)
    request_id: str | None = Field(None, max_length=REQUEST_ID_LENGTH, pattern=REQUEST_ID, repr=False)
    """The client's own name for this call: the same call sent again finds the same session."""

    @property
    def key(self) -> str | None:
        """Stands for the request id, which may contain the API key, where it is kept."""
        return request_key(self.request_id) if self.request_id else None

    def digest(self) -> str:
        """The same for requests with the same fields, and says nothing of them."""
        fields = self.model_dump() | {"api_key": self.api_key.get_secret_value()}
        return _sha256(json.dumps(fields, sort_keys=True))


class RequestError(Exception):
    """A request is refused; nothing has changed. `status` is the HTTP status, `field` the part at fault."""

    def __init__(self, status: int, code: str, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field


class Session:
    """A task and the state of one attempt at it. Thread-safe.

    Invariants: `status` only moves forward; `outcome` is set exactly once; `ended` is set after that, by the owner,
    when the end is kept, and wakes exactly those who wait for this session. Nobody is told of the end before.
    """

    def __init__(
        self,
        session_id: str,
        request: SessionRequest,
        task: "Task",
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = session_id
        self.request = request
        self.task = task
        self.cancellation = Cancellation()
        self.attendance = Attendance(clock)
        self.ended = threading.Event()
        self.opened_at = datetime.now(timezone.utc)
        self._stage: Stage = "queued"
        self.outcome: Outcome | None = None
        self.n_calls = 0
        """Model calls made so far; the rollout keeps it."""
        self.timings: dict[str, float] = {}
        self._clock = clock
        self._opened = clock()
        self._lock = threading.Lock()

    @property
    def status(self) -> Status:
        """What may be told: the stage, until the end is kept."""
        return self._stage if self.outcome is None or not self.ended.is_set() else self.outcome.status

    @property
    def mode(self) -> Mode:
        return self.request.mode

    @property
    def group_id(self) -> str:
        return self.request.group_id

    @property
    def request_key(self) -> str | None:
        return self.request.key

    @property
    def request_digest(self) -> str:
        return self.request.digest()

    def cancel(self, reason: str) -> bool:
        """Give the session up; False, and nothing changed, if it has ended or was given up before."""
        if self.outcome is not None or self.cancellation.reason is not None:
            return False
        self.cancellation.cancel(reason)
        return True

    def wait(self, seconds: float) -> None:
        """Return at the session's end, or after `seconds`; its client is present meanwhile."""
        with self.attendance.present():
            self.ended.wait(seconds)

    def advance(self, stage: Stage) -> None:
        """Tell that the session has reached `stage`. Going back, or on after the end, changes nothing."""
        with self._lock:
            if STAGES.index(stage) > STAGES.index(self._stage):
                self._stage = stage

    def note(self, name: str, seconds: float) -> None:
        """Add `seconds` to the time spent in the phase called `name`. After the end nothing is added."""
        with self._lock:
            if self.outcome is None:
                self.timings[name] = self.timings.get(name, 0.0) + seconds

    def end(self, outcome: Outcome) -> bool:
        """Set the end; False, and nothing changed, if there was one before."""
        with self._lock:
            if self.outcome is not None:
                return False
            if outcome.error is not None:
                outcome = dataclasses.replace(outcome, error=self.without_key(one_line(outcome.error)))
            self.timings["total"] = self._clock() - self._opened
            self.n_calls = max(self.n_calls, outcome.n_calls)
            self.outcome = outcome
            return True

    def without_key(self, text: str) -> str:
        """`text` with the API key blotted out: a trainer's endpoint may quote it when it refuses a call."""
        key = self.request.api_key.get_secret_value()
        return text.replace(key, "[api key]") if len(key) >= _SHORTEST_SECRET else text

    def view(self, *, before_it_is_told: bool = False) -> SessionView:
        """All that the session's own client may know, ready for JSON; the end only when it may be told, or if asked."""
        request = self.request
        names = (self.id, request.session_id, request.group_id, request.mode, self.task.id)
        with self._lock:
            outcome = self.outcome if before_it_is_told or self.ended.is_set() else None
            return view_of(*names, outcome.status if outcome else self._stage, outcome, self.n_calls, self.timings)

    def summary(self) -> SessionSummary:
        """What anybody may know."""
        return public(self.view(), self.opened_at.isoformat(timespec="milliseconds"))

    def ending(self) -> str:
        """The end in one line for the log."""
        with self._lock:
            outcome = self.outcome
            if outcome is None:
                return self._stage
            words = {
                "status": outcome.status,
                "exit_status": outcome.agent_exit_status,
                "reward": outcome.reward,
                "calls": self.n_calls,
                "seconds": round(self.timings["total"], 3),
                "reason": outcome.reason,
                "error": outcome.error,
            }
        return " ".join(f"{name}={shown(word)}" for name, word in words.items() if word not in ("", None))


def request_key(request_id: str) -> str:
    """What stands for `request_id` where it is kept."""
    return _sha256(request_id)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def one_line(text: str) -> str:
    """`text` on a single line of bounded length."""
    line = encodable(" ".join(text.split()))
    return line if len(line) <= _ERROR_LENGTH else line[: _ERROR_LENGTH - 1] + "…"


def shown(value: object) -> str:
    """`value` for a log line: quoted where it would not read as one word."""
    text = str(value)
    return text if text.isprintable() and not set(text) & set(' "=\\') else json.dumps(text)
