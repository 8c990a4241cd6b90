"""The HTTP face: requests in, JSON out. Nothing is decided here."""

import contextlib
import hmac
import logging
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flask import Flask, Response, jsonify, request
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException

from swe_rollout.metrics import Metrics
from swe_rollout.session import RequestError, SessionRequest
from swe_rollout.sessions import RETRY_AFTER_SECONDS, Sessions

if TYPE_CHECKING:
    from swe_rollout.assembly import Parts

log = logging.getLogger(__name__)

MAX_WAIT_SECONDS = 300.0
MAX_BODY_BYTES = 1 << 20
_THREADS_FOR_SHORT_CALLS = 4
_NEEDS_TOKEN = "this call needs `Authorization: Bearer` with the server's token"


def create_app(
    sessions: Sessions, metrics: Metrics, parts: "Parts", *, token: str | None, run_id: str, http_threads: int
) -> Flask:
    """The WSGI application over `sessions`. With a `token`, every call but GET /healthz must carry it.

    At most `http_threads` less a few may be held by calls that wait, so that short calls are always answered;
    a call over that is answered at once with the state as it is.
    """
    app = Flask(__name__)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    waiting = threading.BoundedSemaphore(max(1, http_threads - _THREADS_FOR_SHORT_CALLS))

    @app.before_request
    def authorize() -> None:
        if token is not None and request.path != "/healthz":
            scheme, _, given = request.headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
                raise RequestError(
                    401, "unauthorized", "this call needs `Authorization: Bearer` with the server's token"
                )

    @app.post("/sessions")
    def create() -> tuple[Response, int]:
        session, is_new = sessions.open(_read_body(request.get_data()))
        return jsonify(session_id=session.id, status=session.status), 201 if is_new else 200

    @app.get("/sessions/<key>")
    def read(key: str) -> Response:
        seconds = _seconds(request.args.get("wait", "0"))
        with _one_of(waiting) as may_wait:
            session = sessions.wait(key, seconds if may_wait else 0.0)
        return jsonify(session.view())

    @app.post("/sessions/<key>/cancel")
    def cancel(key: str) -> tuple[str, int]:
        sessions.cancel(key, "the client cancelled the session")
        return "", 204

    @app.get("/sessions")
    def find() -> Response:
        wanted = {name: request.args.get(name) for name in ("status", "mode", "group_id")}
        return jsonify(sessions=[session.summary() for session in sessions.list(**wanted)])

    @app.get("/healthz")
    def health() -> Response:
        return jsonify(status="ok", service_epoch=sessions.epoch, run_id=run_id)

    @app.get("/readyz")
    def ready() -> tuple[Response, int]:
        return jsonify(
            status="draining" if sessions.closing else "ready",
            service_epoch=sessions.epoch,
            run_id=run_id,
            counts=sessions.counts(),
            tasks=parts.tasks(),
            slots={
                name: {"in_use": pool.in_use, "waiting": pool.waiting, "capacity": pool.capacity}
                for name, pool in parts.slots.items()
            },
            confinement=parts.confinement,
            config_fingerprint=parts.config_fingerprint,
        ), 503 if sessions.closing else 200

    @app.get("/metrics")
    def show_metrics() -> Response:
        return Response(metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8")

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

    return app


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


def _read_body(body: bytes) -> SessionRequest:
    try:
        return SessionRequest.model_validate_json(body)
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


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        message = f"wait: {text!r} is not a number of seconds from 0 to {MAX_WAIT_SECONDS:.0f}"
        raise RequestError(400, "bad_field", message, field="wait")
    return seconds


@contextlib.contextmanager
def _one_of(semaphore: threading.BoundedSemaphore) -> Iterator[bool]:
    """Whether there was one left, which is held within the block."""
    got = semaphore.acquire(blocking=False)
    try:
        yield got
    finally:
        if got:
            semaphore.release()
