"""What a server remembers of its earlier starts, also after kill -9."""

import itertools
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted import Process, make_parts, request_body

from swe_rollout.errors import StartupError
from swe_rollout.journal import Journal
from swe_rollout.leases import Place
from swe_rollout.outcome import Outcome
from swe_rollout.row_health import RowHealth
from swe_rollout.session import Session, SessionRequest

Start = Callable[..., Process]


def names(number: int, **changes: Any) -> dict[str, Any]:
    """The names as they are in the field: the session's id is the key, and the request id contains it."""
    key = f"agentic_session_shard_0.session-{number:032x}"
    return request_body(session_id=key, api_key=key, request_id=f"req-{key}-nonce", **changes)


def test_a_server_that_was_killed_goes_on_where_it_stopped(start: Start, tmp_path: Path) -> None:
    first = start()
    done = names(1, group_id="done-a")
    live = names(2, group_id="b")
    ids = [first.http.post("/sessions", json=body).json()["session_id"] for body in (done, live)]
    told = first.http.get(f"/sessions/{ids[0]}?wait=60").json()
    assert (told["status"], told["client_session_id"]) == ("completed", done["session_id"])
    first.end()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "work").iterdir())
    assert ids[1].encode() in kept
    assert not [body for body in (done, live) if body["session_id"].encode() in kept]

    second = start()
    assert second.http.get(f"/sessions/{ids[0]}").json() == told | {"client_session_id": None}
    assert second.http.get(f"/sessions/{done['request_id']}").json()["session_id"] == ids[0]
    lost = second.http.get(f"/sessions/{ids[1]}?wait=60").json()
    assert (lost["status"], lost["exit_code"], lost["reward"]) == ("failed", 1, None)
    assert lost["error"] == "the server was restarted while the session was open; its sandbox died with the server"
    assert lost["task_id"] == "calc__000000000001"
    # The same create call again is the same session; another one of the same name is refused.
    again = second.http.post("/sessions", json=live)
    assert (again.status_code, again.json()) == (200, {"session_id": ids[1], "status": "failed"})
    assert second.http.post("/sessions", json=live | {"group_id": "c"}).status_code == 409
    assert second.http.post(f"/sessions/{ids[1]}/cancel").status_code == 204
    assert second.http.get(f"/sessions/{ids[1]}").json() == lost
    listed = second.http.get("/sessions", params={"status": "failed"}).json()["sessions"]
    assert [entry["session_id"] for entry in listed] == [ids[1]]
    assert datetime.fromisoformat(listed[0]["opened_at"]) < datetime.now(timezone.utc)
    # No row is given twice or left out, and an old group's id means nothing now.
    body = names(3, group_id="b")
    session_id = second.http.post("/sessions", json=body).json()["session_id"]
    assert second.http.get(f"/sessions/{session_id}").json()["task_id"] == "calc__000000000002"
    second.end()

    third = start()
    assert third.http.get(f"/sessions/{body['request_id']}").json()["status"] == "failed"
    assert third.http.get(f"/sessions/{ids[1]}").json() == lost
    opened = third.http.post("/sessions", json=names(4, group_id="b")).json()["session_id"]
    assert third.http.get(f"/sessions/{opened}").json()["task_id"] == "calc__000000000000"
    tasks = third.http.get("/readyz").json()["tasks"]["train"]
    assert (tasks["epoch"], tasks["position"]) == (1, 1)


def test_a_server_that_is_killed_while_sessions_come_and_go_forgets_none_that_it_told_of(start: Start) -> None:
    server = start()
    told: list[str] = []
    enough = threading.Event()

    def client(thread: int) -> None:
        for number in itertools.count(1000 * thread):
            try:
                body = names(number, group_id=f"{'done-' if number % 2 else ''}{number}")
                told.append(server.http.post("/sessions", json=body).json()["session_id"])
            except httpx.TransportError:
                return
            if len(told) > 100:
                enough.set()

    clients = [threading.Thread(target=client, args=(n,)) for n in range(8)]
    for thread in clients:
        thread.start()
    assert enough.wait(60)
    server.end()
    for thread in clients:
        thread.join()
    again = start()
    statuses = {again.http.get(f"/sessions/{session_id}").json()["status"] for session_id in told}
    assert statuses <= {"completed", "failed"}
    tasks = again.http.get("/readyz").json()["tasks"]["train"]
    # Every group has a row of its own; up to one create call per client was not answered any more.
    assert len(told) <= 3 * tasks["epoch"] + tasks["position"] <= len(told) + len(clients)


def test_two_servers_do_not_share_a_work_dir(start: Start, tmp_path: Path) -> None:
    first = start()
    second = start()
    assert second.process.wait(60) == 1
    assert second.start_line == (
        f"another server works in AGENT_SERVER_WORK_DIR={tmp_path / 'work'} (process {first.process.pid}): "
        "stop it, or choose another folder\n"
    )
    assert first.http.get("/readyz").status_code == 200


def test_a_file_that_is_no_sound_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite3"
    with closing(Journal(tmp_path)) as journal:
        parts = make_parts(lambda session: Outcome.failed(session.id))
        for number in range(300):
            request = SessionRequest(**names(number, group_id="g" * 500))
            journal.opened(Session(f"ses_{number}", request, parts.pools["train"].lease("g").task), Place(0, 1))
    sound = path.read_bytes()
    middle = len(sound) // 2
    newer = bytearray(sound)
    newer[63] += 1
    foreign = tmp_path / "foreign"
    with closing(sqlite3.connect(foreign)) as other:
        other.execute("CREATE TABLE sessions (id)")
    for content, why in [
        (b"", "is not an SQLite file"),
        (b"{}", "is not an SQLite file"),
        (foreign.read_bytes(), "belongs to another program"),
        (bytes(newer), "has version 2, and this server reads version 1"),
        (sound[:middle], "is damaged ("),
        (sound[:4096] + b"\xff" * (len(sound) - 4096), "is damaged ("),
    ]:
        path.write_bytes(content)
        with pytest.raises(StartupError) as refused:
            Journal(tmp_path)
        line = str(refused.value)
        assert line.startswith(f"the journal {path} {why}")
        assert line.endswith(
            ": move it away to start without the sessions it remembers, or set AGENT_SERVER_WORK_DIR to another folder"
        )
        assert "\n" not in line
        assert path.read_bytes() == content
    path.unlink()
    Journal(tmp_path).close()
    nowhere = tmp_path / "foreign" / "work"
    with pytest.raises(StartupError, match=f"AGENT_SERVER_WORK_DIR={nowhere}: Not a directory; choose another folder"):
        Journal(nowhere)


def test_what_ended_long_ago_is_forgotten_and_what_is_late_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]
    pool = make_parts(lambda session: Outcome.failed(session.id)).pools["train"]
    journal = Journal(tmp_path, clock=lambda: now[0])
    assert journal.place("train", pool.order) == Place(0, 0)
    sessions = [
        Session(f"ses_{n}", SessionRequest(**request_body(group_id=str(n))), pool.lease(str(n)).task) for n in range(3)
    ]
    # The answers to three leases, written in another order.
    for session, place in zip(sessions, [Place(0, 2), Place(1, 1), Place(0, 3)], strict=True):
        journal.opened(session, place)
    for session in sessions[:2]:
        session.end(Outcome.completed("Submitted", 1.0, submission="ü\r\n\0"))
        journal.ended(session, RowHealth(ended=2))
        now[0] += 50
    journal.ended(sessions[0], RowHealth(ended=1))
    journal.forget(100.0)
    journal.close()
    journal.close()
    # After its server has closed it, a thread that comes late changes nothing and breaks nothing.
    journal.ended(sessions[2], RowHealth(ended=1))
    assert f"ses_2: cannot write {journal.path}: " in caplog.text

    with closing(Journal(tmp_path, clock=lambda: now[0])) as journal:
        second, third = journal.remembered()
        assert (second.id, second.age, second.status) == ("ses_1", 50.0, "completed")
        assert second.view()["submission"] == "ü\r\n\0"
        assert (third.id, third.age, third.status) == ("ses_2", 0.0, "failed")
        assert journal.place("train", pool.order) == Place(1, 1)
        # With other rows or another seed an old place means nothing.
        assert journal.place("train", "another order") == Place(0, 0)
        assert journal.place("eval", pool.order) == Place(0, 0)
