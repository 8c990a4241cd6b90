"""The HTTP face: requests in, JSON out. Nothing is decided here."""

import contextlib
import hmac
import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from flask import Flask, Response, jsonify, request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from werkzeug.exceptions import HTTPException

from swe_rollout.answers import Created, Health, Readiness, RowList, SessionList, SessionView, SlotCounts
from swe_rollout.metrics import Metrics
from swe_rollout.openapi import Operation, describes, document
from swe_rollout.session import Mode, RequestError, SessionRequest, Status
from swe_rollout.sessions import RETRY_AFTER_SECONDS, Sessions

if TYPE_CHECKING:
    from swe_rollout.assembly import Parts

log = logging.getLogger(__name__)

TITLE = "SWE rollout agent server"
MAX_WAIT_SECONDS = 300.0
MAX_BODY_BYTES = 1 << 20
_THREADS_FOR_SHORT_CALLS = 4
_PARAMETERS = {"key": "The session_id that the server gave, or the request_id of the create call"}
_Model = TypeVar("_Model", bound=BaseModel)
_NEEDS_TOKEN = "this call needs `Authorization: Bearer` with the server's token"


class ReadQuery(BaseModel):
    """The query of a read call."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    wait: float = Field(0.0, ge=0.0, le=MAX_WAIT_SECONDS)
    """Seconds to wait for the session's end."""


class FindQuery(BaseModel):
    """The query of a list call: what sessions must have, if anything."""

    status: Literal["", Status] = ""
    mode: Literal["", Mode] = ""
    group_id: str = ""


class RowQuery(BaseModel):
    """The query of a call for rows."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    mode: Literal["", Mode] = ""
    trouble: bool = False
    """Whether to tell only of rows that are in trouble."""


def create_app(
    sessions: Sessions, metrics: Metrics, parts: "Parts", *, token: str | None, run_id: str, http_threads: int
) -> Flask:
    """The WSGI application over `sessions`. With a `token`, every call but GET /healthz must carry it.

    At most `http_threads` less a few may be held by calls that wait, so that short calls are always answered;
    a call over that is answered at once with the state as it is.
    """
    app = Flask(__name__, static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    waiting = threading.BoundedSemaphore(max(1, http_threads - _THREADS_FOR_SHORT_CALLS))

    @app.before_request
    def authorize() -> None:
        if token is not None and request.path != "/healthz":
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
                raise RequestError(401, "unauthorized", _NEEDS_TOKEN)

    @app.post("/sessions")
    @describes(Operation({201: Created, 200: Created}, refusals=(400, 409, 413, 503), body=SessionRequest))
    def create() -> tuple[Response, int]:
        """Open a session; the same request_id again finds the same session."""
        session, is_new = sessions.open(_valid(lambda: SessionRequest.model_validate_json(request.get_data())))
        return _json(Created(session_id=session.id, status=session.status)), 201 if is_new else 200

    @app.get("/sessions/<key>")
    @describes(Operation({200: SessionView}, refusals=(400, 404), query=ReadQuery))
    def read(key: str) -> Response:
        """How the session stands, after up to `wait` seconds of waiting for its end."""
        seconds = _valid(lambda: ReadQuery.model_validate(request.args.to_dict())).wait
        with _one_of(waiting) as may_wait:
            return _json(sessions.wait(key, seconds if may_wait else 0.0).view())

    @app.post("/sessions/<key>/cancel")
    @describes(Operation({204: None}, refusals=(404,)))
    def cancel(key: str) -> tuple[str, int]:
        """Give the session up. Idempotent; a request_id may come before its create call."""
        sessions.cancel(key, "the client cancelled the session")
        return "", 204

    @app.get("/sessions")
    @describes(Operation({200: SessionList}, refusals=(400,), query=FindQuery))
    def find() -> Response:
        """The sessions that match, newest first."""
        query = _valid(lambda: FindQuery.model_validate(request.args.to_dict()))
        found = sessions.list(status=query.status or None, mode=query.mode or None, group_id=query.group_id or None)
        return _json(SessionList(sessions=[session.summary() for session in found]))

    @app.get("/tasks")
    @describes(Operation({200: RowList}, refusals=(400,), query=RowQuery))
    def rows() -> Response:
        """What is known of each row, those in trouble first."""
        query = _valid(lambda: RowQuery.model_validate(request.args.to_dict()))
        return _json(RowList(tasks=parts.rows(mode=query.mode or None, in_trouble=query.trouble)))

    @app.get("/healthz")
    @describes(Operation({200: Health}, is_open=True))
    def health() -> Response:
        """The server lives."""
        return _json(Health(status="ok", service_epoch=sessions.epoch, run_id=run_id))

    @app.get("/readyz")
    @describes(Operation({200: Readiness, 503: Readiness}))
    def ready() -> tuple[Response, int]:
        """Whether sessions are admitted, and how things stand."""
        closing = sessions.closing
        slots = {
            name: SlotCounts(in_use=p.in_use, waiting=p.waiting, capacity=p.capacity) for name, p in parts.slots.items()
        }
        told = Readiness(
            status="draining" if closing else "ready",
            service_epoch=sessions.epoch,
            run_id=run_id,
            counts=sessions.counts(),
            tasks=parts.tasks(),
            slots=slots,
            confinement=parts.confinement,
            config_fingerprint=parts.config_fingerprint,
        )
        return _json(told), 503 if closing else 200

    @app.get("/metrics")
    @describes(Operation({200: str}))
    def show_metrics() -> Response:
        """Prometheus metrics."""
        return Response(metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/openapi.json")
    @describes(Operation({200: dict[str, Any]}))
    def describe() -> Response:
        """This document."""
        return jsonify(document(app, title=TITLE, parameters=_PARAMETERS, needs_token=token is not None))

    _answer_errors_in_json(app)
    return app


def _answer_errors_in_json(app: Flask) -> None:
    @app.errorhandler(RequestError)
    def refused(error: RequestError) -> Response:
        return _refusal(error.status, error.code, str(error), field=error.field)

    @app.errorhandler(HTTPException)
    def not_served(error: HTTPException) -> Response:
        headers = {k: v for k, v in error.get_headers() if k == "Allow"}
        code = error.name.lower().replace(" ", "_")
        message = f"{request.method} {request.path}: {error.name}"
        return _refusal(error.code or 500, code, message, headers=headers)

    @app.errorhandler(Exception)
    def broken(error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url_rule, exc_info=error)
        return _refusal(500, "internal_error", f"internal error: {type(error).__name__}; see the server's log")


def _refusal(
    status: int, code: str, message: str, *, field: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    error: dict[str, Any] = {"code": code, "message": message}
    if field is not None:
        error["field"] = field
    response = jsonify(error=error)
    response.status_code = status
    response.headers.update(headers or {})
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def _json(answer: object) -> Response:
    return jsonify(answer)


def _valid(read: Callable[[], _Model]) -> _Model:
    try:
        return read()
    except ValidationError as invalid:
        errors = invalid.errors(include_url=False, include_context=False, include_input=False)
    if not errors[0]["loc"]:
        raise RequestError(400, "bad_body", f"the body must be a JSON object: {errors[0]['msg']}")
    raise RequestError(
        400,
        "bad_field",
        "; ".join(f"{error['loc'][0]}: {error['msg']}" for error in errors),
        field=str(errors[0]["loc"][0]),
    )


@contextlib.contextmanager
def _one_of(semaphore: threading.BoundedSemaphore) -> Iterator[bool]:
    """Whether there was one left, which is held within the block."""
    got = semaphore.acquire(blocking=False)
    try:
        yield got
    finally:
        if got:
            semaphore.release()
