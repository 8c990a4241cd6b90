"""The HTTP face over real sockets; the rollouts behind it are scripted."""

import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest
from scripted import Gate, Process, Run, Server, make_parts, read_answer, request_body, send_poll

from swe_rollout.cancellation import Cancellation
from swe_rollout.journal import Journal
from swe_rollout.leases import Lease, TaskPool
from swe_rollout.listener import raise_file_limit
from swe_rollout.outcome import Outcome
from swe_rollout.records import Record
from swe_rollout.session import Mode, Session, SessionRequest
from swe_rollout.sessions import Sessions

Serve = Callable[..., Server]
Start = Callable[..., Process]
KEY = request_body()["api_key"]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "work")) as opened:
        yield opened


def make_sessions(
    run: Run, journal: Journal, *, record_ttl: float = 60.0, clock: Callable[[], float] = time.monotonic
) -> Sessions:
    return Sessions(
        run,
        make_parts(run).pools,
        max_open=10,
        record_ttl=record_ttl,
        client_ttl=120.0,
        journal=journal,
        on_end=lambda _: None,
        clock=clock,
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        *(({name: None}, name) for name in request_body()),
        *(({name: ""}, name) for name in request_body()),
        *(({name: 7}, name) for name in request_body()),
        ({"mode": "test"}, "mode"),
        ({"base_url": "relax:1/agentic_api"}, "base_url"),
        ({"base_url": ["http://relax"]}, "base_url"),
        ({"api_key": "k" * 501}, "api_key"),
        ({"request_id": "77"}, "request_id"),
        ({"request_id": "req-"}, "request_id"),
        ({"request_id": "req-a/b"}, "request_id"),
        ({"request_id": "req-a\n"}, "request_id"),
        ({"request_id": "req-" + "a" * 197}, "request_id"),
        ({"request_id": True}, "request_id"),
    ],
)
def test_a_bad_field_is_named_and_opens_nothing(serve: Serve, changes: dict[str, Any], field: str) -> None:
    server = serve(Gate())
    answer = server.http.post("/sessions", json=request_body(**changes))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["field"]) == (400, "bad_field", field)
    assert error["message"].startswith(f"{field}: ")
    assert KEY not in answer.text
    assert server.http.get("/sessions").json() == {"sessions": []}


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "message"),
    [
        ("POST", "/sessions", b"not json", 400, "the body must be a JSON object: Invalid JSON"),
        ("POST", "/sessions", b"", 400, "the body must be a JSON object: Invalid JSON"),
        ("POST", "/sessions", b"[]", 400, "the body must be a JSON object: Input should be an object"),
        ("POST", "/sessions", b'{"mode": "\xff"}', 400, "the body must be a JSON object: Invalid JSON"),
        ("POST", "/sessions", b'"' + b"x" * (1 << 20) + b'"', 413, "POST /sessions: Request Entity Too Large"),
        ("GET", "/sessions/ses_0_1", b"", 404, "no such session"),
        ("POST", "/sessions/ses_0_1/cancel", b"", 404, "no such session"),
        ("GET", "/sessions/req-unknown", b"", 404, "no such session"),
        ("GET", "/", b"", 404, "GET /: Not Found"),
        ("DELETE", "/sessions", b"", 405, "DELETE /sessions: Method Not Allowed"),
        *(
            ("GET", f"/sessions/ses_0_1?wait={wait}", b"", 400, "wait: ")
            for wait in ("", "soon", "-1", "nan", "inf", "300.1", "1e9")
        ),
    ],
)
def test_every_refusal_is_json(serve: Serve, method: str, path: str, content: bytes, status: int, message: str) -> None:
    answer = serve(Gate()).http.request(method, path, content=content)
    assert answer.status_code == status
    assert answer.json()["error"]["message"].startswith(message)


def test_an_unexpected_error_is_told_in_json_and_logged(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(TaskPool):
        def lease(self, group_id: str) -> Lease:
            raise ZeroDivisionError(group_id)

    server = serve(Gate())
    pools = cast("dict[Mode, TaskPool]", server.parts.pools)
    pools["eval"] = Broken([pools["train"].lease("g").task], group_size=1, shuffle=False, seed=1)
    answer = server.http.post("/sessions", json=request_body(mode="eval", request_id="req-1"))
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal error: ZeroDivisionError; see the server's log"
    assert "Traceback" in caplog.text
    # Nothing of it stays: the same call can succeed later.
    pools["eval"] = pools["train"]
    assert server.open(mode="eval", request_id="req-1").endswith("_1")


def test_a_session_from_create_to_result(serve: Serve) -> None:
    gate = Gate(Outcome.completed("Submitted", 1.0, submission="a\r\nü\udc80", reason="2 of 2 tests", n_calls=3))
    server = serve(gate)
    answer = server.http.post("/sessions", json=request_body(newer_field=1))
    assert answer.status_code == 201
    session_id = answer.json()["session_id"]
    assert session_id == f"ses_{server.sessions.epoch}_1"
    [session] = gate.wait_for(1)
    live = server.http.get(f"/sessions/{session_id}").json()
    assert (live["status"], live["exit_code"], live["reward"]) == ("running", None, None)
    gate.open()
    view = server.ended(session_id)
    assert view.pop("timings") == {"model": 1.25, "scoring": 0.5, "total": round(session.timings["total"], 6)}
    assert view == {
        "session_id": session_id,
        "client_session_id": "agentic_session_shard_0.session-77",
        "group_id": "train:prepare_group_0",
        "mode": "train",
        "task_id": "calc__000000000000",
        "status": "completed",
        "exit_code": 0,
        "error": None,
        "agent_exit_status": "Submitted",
        # jq would refuse the whole answer for half of a surrogate pair.
        "submission": "a\r\nü\ufffd",
        "reward": 1.0,
        "reason": "2 of 2 tests",
        "n_calls": 3,
    }


def test_the_same_create_call_fifty_times_at_once_is_one_session(serve: Serve) -> None:
    gate = Gate()
    server = serve(gate)
    body = request_body(request_id="req-same")
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(lambda _: server.http.post("/sessions", json=body), range(50)))
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert {answer.json()["session_id"] for answer in answers} == {f"ses_{server.sessions.epoch}_1"}
    assert server.parts.pools["train"].counts()["leased"] == 1

    other = server.http.post("/sessions", json=body | {"api_key": "another"})
    assert (other.status_code, other.json()["error"]["field"]) == (409, "request_id")
    gate.open()
    assert server.ended("req-same")["status"] == "completed"
    again = server.http.post("/sessions", json=body)
    assert (again.status_code, again.json()["status"]) == (200, "completed")
    # Without a request id every call is a session of its own.
    assert server.open() != server.open()


def test_a_long_poll_ends_with_its_own_session_only(serve: Serve) -> None:
    gates = {"a": Gate(), "b": Gate()}
    server = serve(lambda session: gates[session.request.group_id](session))
    first, second = server.open(group_id="a"), server.open(group_id="b")
    with ThreadPoolExecutor(2) as threads:
        polls = [threads.submit(server.http.get, f"/sessions/{key}?wait=300", timeout=None) for key in (first, second)]
        gates["a"].open()
        assert polls[0].result(timeout=60).json()["status"] == "completed"
        assert not polls[1].done()
        gates["b"].open()
        assert polls[1].result(timeout=60).json()["status"] == "completed"
    # A wait that runs out tells how things stand.
    gates["b"] = Gate()
    assert server.http.get(f"/sessions/{server.open(group_id='b')}?wait=0.01").json()["exit_code"] is None


@pytest.mark.parametrize("stages", [(), ("running",), ("running", "scoring"), ("scoring", "running", "queued")])
def test_cancel_in_every_stage(serve: Serve, stages: tuple[str, ...]) -> None:
    gate = Gate(stages=stages)
    server = serve(gate)
    session_id = server.open(request_id="req-1")
    [session] = gate.wait_for(1)
    assert session.status == (stages[0] if stages[:1] == ("scoring",) else (("queued", *stages)[-1]))
    assert server.http.post(f"/sessions/{session_id}/cancel").status_code == 204
    view = server.ended(session_id)
    assert (view["status"], view["exit_code"], view["error"]) == (
        "cancelled",
        143,
        "the client cancelled the session",
    )
    # Again, by the other name, after the end: the same answer, and nothing moves.
    assert server.http.post("/sessions/req-1/cancel").status_code == 204
    session.advance("scoring")
    session.note("late", 1.0)
    assert server.http.get("/sessions/req-1").json() == view
    assert server.sessions.counts()["train"]["cancelled"] == 1


def test_cancel_does_not_wait_for_a_rollout_that_is_slow_to_end(serve: Serve) -> None:
    let_go = threading.Event()

    def stubborn(_: Session) -> Outcome:
        let_go.wait(60)
        return Outcome.completed("Submitted", 0.0)

    server = serve(stubborn)
    session_id = server.open()
    assert server.http.post(f"/sessions/{session_id}/cancel").status_code == 204
    assert server.http.get(f"/sessions/{session_id}").json()["exit_code"] is None
    let_go.set()
    # It was over before it noticed: what is known is told.
    assert server.ended(session_id)["status"] == "completed"


def test_a_cancel_that_overtakes_its_create(serve: Serve) -> None:
    gate = Gate()
    server = serve(gate)
    for _ in range(2):
        assert server.http.post("/sessions/req-early/cancel").status_code == 204
    answer = server.http.post("/sessions", json=request_body(request_id="req-early"))
    assert (answer.status_code, answer.json()["status"]) == (201, "cancelled")
    assert server.ended("req-early")["exit_code"] == 143
    # The group's other sessions find the row as if this one had run.
    assert server.parts.pools["train"].counts()["leased"] == 1
    # What could not be a request id is not remembered.
    assert server.http.post(f"/sessions/req-{'a' * 200}/cancel").status_code == 404


def test_remembered_cancels_are_bounded(journal: Journal) -> None:
    sessions = make_sessions(Gate(), journal)
    for number in range(10_001):
        sessions.cancel(f"req-{number}", "given up")
    opened = {
        number: sessions.open(SessionRequest(**request_body(request_id=f"req-{number}")))[0]
        for number in (0, 1, 10_000)
    }
    assert [session.status == "cancelled" for session in opened.values()] == [False, True, True]
    assert sessions.close("over", seconds=60) == []


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError(f"two\nlines about {KEY}"), "internal error: RuntimeError: two lines about [api key]"),
        pytest.param(
            SystemExit(3),
            "internal error: the session's thread stopped without an outcome",
            marks=pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
        ),
    ],
)
def test_a_rollout_that_raises_fails_its_session_in_one_line(
    serve: Serve, caplog: pytest.LogCaptureFixture, error: BaseException, line: str
) -> None:
    def broken(session: Session) -> Outcome:
        session.n_calls = 2
        raise error

    server = serve(broken)
    view = server.ended(server.open())
    assert (view["status"], view["exit_code"], view["error"], view["reward"]) == ("failed", 1, line, None)
    assert KEY not in caplog.text


def test_short_calls_are_answered_while_two_hundred_clients_wait(serve: Serve) -> None:
    gate = Gate()
    server = serve(gate, http_threads=32)
    session_id = server.open()
    gate.wait_for(1)
    with ExitStack() as stack:
        waiting = [stack.enter_context(send_poll(server.url, session_id)) for _ in range(200)]
        # All but 28 are told at once how things stand; those 28 wait.
        told_at_once: list[socket.socket] = []
        while len(told_at_once) < 172:
            told_at_once += [c for c in waiting if c not in told_at_once and _has_answer(c)]
            assert server.http.get("/healthz").status_code == 200
        assert server.open() != session_id
        gate.open()
        answers = [read_answer(connection) for connection in waiting]
    assert [answer["status"] for answer in answers].count("running") == 172
    assert [answer["status"] for answer in answers].count("completed") == 28


def test_health_and_cancel_are_answered_while_a_thousand_clients_wait(serve: Serve) -> None:
    raise_file_limit()
    gate = Gate()
    polls = threading.Semaphore(0)

    def front(app: Any) -> Any:
        def through(environ: dict[str, Any], start_response: Any) -> Any:
            if "wait=300" in environ["QUERY_STRING"]:
                polls.release()
            return app(environ, start_response)

        return through

    server = serve(gate, front=front, http_threads=1200)
    waited_for, other = server.open(), server.open()
    gate.wait_for(2)
    with ExitStack() as stack:
        waiting = [stack.enter_context(send_poll(server.url, waited_for)) for _ in range(1000)]
        for _ in range(1000):
            assert polls.acquire(timeout=60)
        assert server.http.get("/healthz").status_code == 200
        assert server.http.get("/readyz").json()["counts"]["train"]["running"] == 2
        assert server.http.post(f"/sessions/{other}/cancel").status_code == 204
        assert server.ended(other)["status"] == "cancelled"
        # All that was answered before any of them had to be.
        assert not any(map(_has_answer, waiting))
        gate.open()
        assert [read_answer(connection)["status"] for connection in waiting] == ["completed"] * 1000


def _has_answer(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


def test_nobody_else_sees_the_api_key(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """Relax uses the session id as key; then neither shows, nor the request id made of it."""
    caplog.set_level(logging.DEBUG)
    gate = Gate(Outcome.failed(f"ModelError: 404: no session {KEY}"))
    server = serve(gate)
    session_id = server.open(session_id=KEY, request_id=f"req-{KEY}")
    gate.open()
    assert server.ended(session_id)["error"] == "ModelError: 404: no session [api key]"
    said = [server.http.get(path).text for path in ("/sessions", "/readyz", "/metrics", "/healthz")]
    assert session_id in said[0]
    assert KEY not in "".join(said) + caplog.text + repr(gate.wait_for(1)[0].request)


def test_a_token_opens_every_call(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = "s3cret-token"
    server = serve(Gate(), token=token)
    calls = [
        ("POST", "/sessions"),
        *(
            ("GET", path)
            for path in ("/sessions", "/sessions/ses_1", "/readyz", "/metrics", "/openapi.json", "/nothing")
        ),
        ("POST", "/sessions/req-1/cancel"),
        ("DELETE", "/sessions"),
    ]
    wrong = ["", "Bearer", f"Basic {token}", token, f"Bearer {token}x", f"Bearer {token[:-1]}", "Bearer ü"]
    for method, path in calls:
        for header in wrong:
            answer = server.http.request(method, path, headers={"Authorization": header.encode("latin-1")})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json()["error"] == {
                "code": "unauthorized",
                "message": "this call needs `Authorization: Bearer` with the server's token",
            }
    assert server.http.get("/healthz").status_code == 200
    for scheme in ("Bearer", "bearer", "BEARER "):
        server.http.headers["Authorization"] = f"{scheme} {token}"
        assert server.http.get("/sessions").json() == {"sessions": []}
    server.http.post(f"/sessions/{server.open()}/cancel")
    said = [server.http.get(path).text for path in ("/sessions", "/readyz", "/metrics", "/healthz")]
    assert token not in "".join(said) + caplog.text


def test_listing_counts_and_metrics(serve: Serve) -> None:
    gates = {"a": Gate(), "b": Gate(Outcome.failed("ImageError: gone")), "c": Gate()}
    server = serve(lambda session: gates[session.request.group_id](session), modes=("train", "eval"), run_id="launch-1")
    a, b, c = server.open(group_id="a"), server.open(group_id="b", mode="eval"), server.open(group_id="c")
    for name in ("a", "b"):
        gates[name].open()
    server.ended(a)
    server.ended(b)
    gates["c"].wait_for(1)

    def listed(**filters: str) -> list[str]:
        return [entry["session_id"] for entry in server.http.get("/sessions", params=filters).json()["sessions"]]

    assert listed() == [c, b, a]
    assert listed(status="completed") == [a]
    assert listed(mode="train") == [c, a]
    assert listed(mode="train", group_id="c", status="running") == [c]
    for path in ("/sessions?status=nonsense", "/sessions?mode=nonsense", "/tasks?mode=nonsense"):
        refused = server.http.get(path)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "bad_field"), path

    with server.parts.slots["train"].hold(Cancellation()):
        ready = server.http.get("/readyz").json()
        metrics = server.http.get("/metrics").text.splitlines()
    assert ready["status"] == "ready"
    assert ready["run_id"] == server.http.get("/healthz").json()["run_id"] == "launch-1"
    assert ready["counts"]["train"] == dict.fromkeys(ready["counts"]["train"], 0) | {"completed": 1, "running": 1}
    assert ready["counts"]["eval"]["failed"] == 1
    assert ready["tasks"]["train"]["leased"] == 2
    assert ready["slots"] == {"train": {"in_use": 1, "waiting": 0, "capacity": 4}}
    assert (ready["confinement"], ready["config_fingerprint"]) == ("unprivileged: for the test", "0123abcd")

    for line in (
        'swe_rollout_sessions{mode="train",status="running"} 1.0',
        'swe_rollout_sessions_ended_total{mode="eval",status="failed"} 1.0',
        'swe_rollout_rewards_total{exit_status="Submitted",mode="train",reward="1"} 1.0',
        'swe_rollout_phase_seconds_sum{mode="train",phase="model"} 1.25',
        'swe_rollout_slots{pool="train",state="in_use"} 1.0',
        'swe_rollout_slots{pool="train",state="capacity"} 4.0',
    ):
        assert line in metrics


def test_modes_without_rows_and_a_full_or_stopping_server(serve: Serve) -> None:
    gate = Gate()
    server = serve(gate, train_concurrency=1, eval_concurrency=1, max_sessions=2)
    refused = server.http.post("/sessions", json=request_body(mode="eval"))
    assert (refused.status_code, refused.json()["error"]["field"]) == (409, "mode")
    assert "below R2E_DATA_PATH that match data.eval of the configuration" in refused.json()["error"]["message"]

    first = server.open(request_id="req-1")
    server.open()
    full = server.http.post("/sessions", json=request_body())
    assert (full.status_code, full.headers["retry-after"], full.json()["error"]["code"]) == (503, "5", "full")
    assert "AGENT_SERVER_MAX_SESSIONS" in full.json()["error"]["message"]
    assert server.http.post("/sessions", json=request_body(request_id="req-1")).status_code == 200

    assert server.sessions.close("the server is stopping", seconds=60) == []
    assert server.ended(first)["error"] == "the server is stopping"
    stopping = server.http.post("/sessions", json=request_body())
    assert (stopping.status_code, stopping.headers["retry-after"]) == (503, "5")
    assert stopping.json()["error"] == {"code": "draining", "message": "the server is stopping"}
    ready = server.http.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "draining")
    assert server.http.get("/healthz").status_code == 200


def test_records_are_kept_for_a_while_after_the_end(journal: Journal) -> None:
    now = [0.0]
    gate = Gate()
    sessions = make_sessions(gate, journal, record_ttl=10.0, clock=lambda: now[0])
    session, _ = sessions.open(SessionRequest(**request_body(request_id="req-1")))
    now[0] = 100.0
    assert sessions.get("req-1") is session
    gate.open()
    assert sessions.wait(session.id, 60).view()["timings"]["total"] == 100.0
    now[0] = 109.9
    assert sessions.list() == [session]
    now[0] = 110.0
    assert sessions.list() == []
    # Forgotten by both names, but still counted; the request id may be used again.
    assert sessions.counts()["train"]["completed"] == 1
    again, is_new = sessions.open(SessionRequest(**request_body(request_id="req-1")))
    assert is_new
    assert again.id != session.id


def test_a_session_whose_client_is_gone_is_cancelled(journal: Journal) -> None:
    now = [0.0]
    gate = Gate()
    sessions = make_sessions(gate, journal, clock=lambda: now[0])
    names = ("silent", "asks", "creates again", "waits")
    opened = {
        name: sessions.open(SessionRequest(**request_body(group_id=name, request_id=f"req-{index}")))[0]
        for index, name in enumerate(names)
    }
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(sessions.wait, "req-3", 300)
        now[0] = 119.0
        while cast(Session, opened["waits"]).attendance.away():
            threading.Event().wait(0.01)
        sessions.sweep()
        assert {record.status for record in opened.values()} <= {"queued", "running"}
        sessions.wait(opened["asks"].id, 0)
        assert sessions.open(SessionRequest(**request_body(group_id="creates again", request_id="req-2")))[1] is False
        # Others who look are not the client.
        sessions.get("req-0")
        sessions.list()
        now[0] = 120.0
        sessions.sweep()
        view = sessions.wait("req-0", 60).view()
        assert (view["status"], view["exit_code"]) == ("cancelled", 143)
        assert view["error"] == "abandoned: no client has asked for the session for 120 s"
        now[0] = 239.0
        sessions.sweep()
        assert [sessions.wait(f"req-{n}", 60).view()["exit_code"] for n in (1, 2)] == [143, 143]
        # Inside a call, however long, a client is there.
        now[0] = 10_000.0
        sessions.sweep()
        assert not poll.done()
        gate.open()
        assert poll.result(timeout=60).status == "completed"


def test_an_early_dropped_group_frees_its_row_and_late_ends_change_nothing(journal: Journal) -> None:
    let_go = threading.Event()
    started = threading.Semaphore(0)

    def stubborn(session: Session) -> Outcome:
        started.release()
        let_go.wait(60)
        session.cancellation.check()
        return Outcome.completed("Submitted", 1.0)

    sessions = make_sessions(stubborn, journal)

    def begin(request_id: str) -> Record:
        return sessions.open(SessionRequest(**request_body(request_id=request_id)))[0]

    first, second = begin("req-1"), begin("req-2")
    assert first.view()["task_id"] == second.view()["task_id"] == "calc__000000000000"
    for request_id in ("req-1", "req-2"):
        sessions.cancel(request_id, "the client cancelled the session")
    let_go.set()
    assert [sessions.wait(key, 60).status for key in ("req-1", "req-2")] == ["cancelled"] * 2
    # The same group id from a trainer that starts anew.
    assert begin("req-3").view()["task_id"] == "calc__000000000001"
    before = first.view()
    assert cast(Session, first).end(Outcome.completed("Submitted", 1.0)) is False
    assert first.view() == before
    assert sessions.close("over", seconds=60) == []


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_sessions_then_sandboxes_then_the_server(
    start: Start, number: signal.Signals, exit_code: int
) -> None:
    server = start("--run-id", "launch-7")
    time_of_day = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
    found = re.match(
        rf"{time_of_day} INFO listening on (http://127\.0\.0\.1:[1-9]\d*) run=launch-7 epoch=(\w+) (.*)\n",
        server.start_line,
    )
    assert found, server.start_line
    assert found[3] == (
        "train: 3 rows, 3 images; eval: no rows; slots: train 4; confinement: unprivileged: for the test"
    )
    session_id = server.http.post("/sessions", json=request_body()).json()["session_id"]
    with send_poll(server.url, session_id) as poll:
        # Requests are taken in the order they come: when this one is answered the poll is in.
        assert server.http.get("/healthz").json()["run_id"] == "launch-7"
        server.process.send_signal(number)
        server.process.send_signal(number)
        # An answer, not a reset connection, is what tells a client to stop.
        assert read_answer(poll)["error"] == "the server is stopping"
    said, log = server.process.communicate(timeout=60)
    assert server.process.returncode == exit_code
    assert said == "parts closed\n"
    events = [line.split(" ", 2)[2] for line in log.splitlines()]
    assert events[0] == f"{session_id} start mode=train group=train:prepare_group_0 task=calc__000000000000"
    assert events[1] == f"stopping: {number.name}"
    assert re.fullmatch(
        rf'{session_id} end status=cancelled calls=0 seconds=[\d.]+ error="the server is stopping"', events[2]
    )
    assert events[3:] == ["stopped"]


def test_a_session_that_cannot_be_stopped_ends_for_its_client(journal: Journal) -> None:
    let_go = threading.Event()

    def stubborn(_: Session) -> Outcome:
        let_go.wait(60)
        return Outcome.completed("Submitted", 1.0)

    sessions = make_sessions(stubborn, journal)
    session, _ = sessions.open(SessionRequest(**request_body()))
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(sessions.wait, session.id, 300)
        assert sessions.close("the server is stopping", seconds=0.1) == [session.id]
        view = poll.result(timeout=60).view()
    assert (view["status"], view["exit_code"], view["error"]) == ("cancelled", 143, "the server is stopping")
    let_go.set()
    for thread in threading.enumerate():
        if thread.name == session.id:
            thread.join(60)
    assert sessions.get(session.id).view() == view


def test_a_server_whose_session_hangs_exits_all_the_same(start: Start) -> None:
    server = start()
    hanging = server.http.post("/sessions", json=request_body(group_id="hang")).json()["session_id"]
    with send_poll(server.url, hanging) as poll:
        assert server.http.get("/healthz").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert read_answer(poll)["status"] == "cancelled"
        assert server.process.wait(10) == 143
    log = server.end()[1]
    assert f"ERROR {hanging} did not end in time; its processes are killed" in log
    assert log.endswith("INFO stopped\n")
    again = start()
    assert again.http.get(f"/sessions/{hanging}").json()["error"] == "the server is stopping"
