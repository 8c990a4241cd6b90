"""What is known of rows, and what it changes: through HTTP, across restarts, and from a manifest to the start line."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scripted import Process, Server, request_body
from test_assembly import Folders, refusal

import agent_server
from swe_rollout.errors import StartupError
from swe_rollout.journal import Journal
from swe_rollout.outcome import Outcome
from swe_rollout.row_health import RowHealth
from swe_rollout.session import Session, SessionRequest
from swe_rollout.validated import read_manifest

ROWS = [f"calc__{number:012d}" for number in range(3)]


def rows(http: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = http.get("/tasks", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["tasks"]
    return found


def test_what_sessions_tell_of_their_rows(serve: Callable[..., Server], caplog: pytest.LogCaptureFixture) -> None:
    ends = {
        "paid": Outcome.completed("Submitted", 1.0),
        "zero": Outcome.completed("LimitsExceeded", 0.0),
        "image": Outcome.failed("ImageError: key-nobody-may-see is gone", blames_row=True),
        "model": Outcome.failed("ModelError: 500"),
    }

    complete = {name: threading.Event() for name in "abcdefg"}

    def run(session: Session) -> Outcome:
        session.note("scoring", 2.0)
        assert complete[session.group_id].wait(60)
        return ends[session.request.session_id]

    server = serve(run, modes=("train", "eval"), row_failures=5)

    def group(name: str, *kinds: str, mode: str = "train") -> None:
        sessions = [server.open(group_id=name, session_id=kind, mode=mode) for kind in kinds]
        complete[name].set()
        for session_id in sessions:
            server.ended(session_id)

    group("a", *["paid", "zero"] * 4)
    group("b", *["model"] * 3, *["image"] * 5)
    group("c", *["zero"] * 8)
    group("d", *["zero"] * 8)
    group("f", *["image", "model"] * 4, mode="eval")
    assert [line for line in caplog.messages if " row " in line] == [
        f"train row {ROWS[1]}: set aside for 3600 s, after 5 infrastructure failures in a row, the last: "
        "ImageError: [api key] is gone"
    ]
    # The row of b is not leased: after d and the row of c it is d's again, which has stopped paying.
    group("e", *["zero"] * 8)
    group("g", *["zero"] * 8)
    known = rows(server.http)
    assert [(row["mode"], row["task_id"], row["trouble"]) for row in known] == [
        ("train", ROWS[1], ["set_aside", "failing"]),
        ("eval", ROWS[0], ["failing"]),
        ("train", ROWS[0], ["stopped_paying"]),
        ("train", ROWS[2], []),
        ("eval", ROWS[1], []),
        ("eval", ROWS[2], []),
    ]
    aside, _, unpaid, hard, fresh, _ = known
    assert aside["set_aside_until"] > aside["used_at"] > "20"
    assert {name: aside[name] for name in ("failures", "failures_in_a_row", "other_failures", "completed")} == {
        "failures": 5, "failures_in_a_row": 5, "other_failures": 3, "completed": 0
    }  # fmt: skip
    assert (aside["last_failure"], aside["latest"]) == ("ImageError: [api key] is gone", [None] * 5)
    assert (unpaid["reward_mean"], unpaid["latest"]) == (0.166667, [0.0] * 16)
    # Only the four that submitted were judged.
    assert (unpaid["scoring_seconds"], unpaid["session_seconds"] > 0) == (2.0, True)
    assert (hard["completed"], hard["reward_mean"], hard["scoring_seconds"]) == (16, 0.0, None)
    assert {fresh[name] for name in ("reward_mean", "session_seconds", "last_failure", "used_at")} == {None}

    assert rows(server.http, trouble=1) == known[:3]
    assert rows(server.http, mode="eval", trouble="true") == known[1:2]
    assert server.http.get("/tasks?mode=nonsense").status_code == 400
    tasks = server.http.get("/readyz").json()["tasks"]
    assert [(tasks[mode]["set_aside"], tasks[mode]["in_trouble"]) for mode in ("train", "eval")] == [(1, 2), (0, 1)]
    metrics = server.http.get("/metrics").text.splitlines()
    for mode, state, count in (("train", "all", 3), ("train", "set_aside", 1), ("train", "in_trouble", 2)):
        assert f'swe_rollout_rows{{mode="{mode}",state="{state}"}} {count}.0' in metrics
    assert not [line for line in metrics if "calc__" in line]


def test_a_row_stays_set_aside_over_kill_9_and_is_tried_after_its_pause(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    def session(server: Process, group: str) -> str:
        body = {"session_id": "s", "group_id": group, "mode": "train", "base_url": "http://relax:1/", "api_key": "key"}
        session_id = server.http.post("/sessions", json=body).json()["session_id"]
        view = server.http.get(f"/sessions/{session_id}", params={"wait": 60}).json()
        return str(view["task_id"])

    with closing(Journal(tmp_path / "work")):
        # As a server left it that kept no health.
        pass
    with closing(sqlite3.connect(tmp_path / "work" / "journal.sqlite3")) as database:
        database.execute("DROP TABLE rows")
    first = start("--row-failures", "1")
    assert session(first, "fail-a") == ROWS[0]
    first.end()
    second = start("--row-failures", "1")
    known = rows(second.http, trouble=1)
    assert [(row["task_id"], row["failures"], row["trouble"]) for row in known] == [(ROWS[0], 1, ["set_aside"])]
    assert [session(second, f"done-{number}") for number in range(4)] == [ROWS[1], ROWS[2], ROWS[1], ROWS[2]]
    _, said = second.end(signal.SIGTERM)
    assert " row " not in said
    # With another rule the same record says something else.
    third = start("--row-failures", "1", "--row-pause-seconds", "0")
    assert [session(third, f"done-{number}") for number in range(2)] == [ROWS[0], ROWS[1]]
    _, said = third.end(signal.SIGTERM)
    assert [line.split(" ", 1)[1] for line in said.splitlines() if " row " in line] == [
        f"WARNING train row {ROWS[0]}: tried again, after 1 infrastructure failures in a row, the last: "
        "ImageError: gone",
        f"WARNING train row {ROWS[0]}: no longer set aside, a session has completed",
    ]
    fourth = start("--row-failures", "1")
    assert rows(fourth.http, trouble=1) == []


def test_the_journal_keeps_the_newest_health_of_a_row(tmp_path: Path, serve: Callable[..., Server]) -> None:
    pool = serve(lambda session: Outcome.failed(session.id)).parts.pools["train"]
    newer = RowHealth(ended=2, completed=1, reward_sum=1.0, latest=(None, 1.0), last_failure="ü", used_at=0.1)
    with closing(Journal(tmp_path / "work")) as journal:
        for number, health in ((2, newer), (1, RowHealth(ended=1))):
            session = Session(f"ses_{number}", SessionRequest(**request_body()), pool.lease("g").task)
            session.end(Outcome.completed("Submitted", 1.0))
            journal.ended(session, health)
        assert journal.rows("train") == {ROWS[0]: newer}
        assert journal.rows("eval") == {}


def manifest(path: Path, *found: tuple[str, str, str], **more: list[object]) -> Path:
    columns = dict(zip(("task_id", "mode", "result"), map(list, zip(*found, strict=True)), strict=True))
    pq.write_table(pa.table({**columns, **more}), path)
    return path


def test_only_rows_that_the_manifest_calls_valid_are_leased(open_folder: Callable[[], Path], sif: Path) -> None:
    folders = Folders(open_folder)
    projects = ("good", "flaky", "wrong", "fresh", "fine")
    folders.train(*projects)
    for project in projects:
        (folders.sifs / f"{project}__1.sif").symlink_to(sif)
    folders.eval("pallets/flask", docker_image=["good:1"])
    ids = {project: f"{project}__{digit * 12}" for project, digit in zip(projects, "abcde", strict=True)}
    results = {"good": "valid", "flaky": "flaky", "wrong": "gold_fails", "fine": "valid"}
    file = folders.data / "manifest.parquet"
    manifest(file, *((ids[name], "train", result) for name, result in results.items()), ("gone", "train", "valid"))
    validated = {"AGENT_SERVER_VALIDATED": file}
    with folders.start(**validated) as server:
        try:
            assert server.stderr is not None
            said = [server.stderr.readline()]
            while "listening on" not in said[-1]:
                assert said[-1], said
                said.append(server.stderr.readline())
            assert (
                " train: 2 of 5 rows (1 flaky, 1 gold_fails, 1 not_in_manifest), 2 images;"
                " eval: 1 rows (1 not validated), 1 images; slots: "
            ) in said[-1]
            with httpx.Client(base_url=said[-1].split(" on ")[1].split()[0], trust_env=False, timeout=60) as http:
                assert {row["task_id"] for row in rows(http, mode="train")} == {ids["good"], ids["fine"]}
                tasks = http.get("/readyz").json()["tasks"]
        finally:
            server.terminate()
            server.communicate(timeout=60)
    counted = {"rows": 2, "rows_read": 5, "rows_without_image": 0, "bad_rows": 0, "left_out": 3, "left_out_flaky": 1}
    assert {name: tasks["train"][name] for name in counted} == counted
    assert (tasks["eval"]["not_validated"], tasks["eval"]["left_out"]) == (1, 0)

    manifest(file, (ids["good"], "train", "error"), (ids["fine"], "train", "error"))
    nothing, useless = folders.start(**validated), folders.start("data.train=", **validated)
    assert refusal(nothing) == (
        f"train: none of the 5 rows is valid by AGENT_SERVER_VALIDATED={file} (3 not_in_manifest, 2 error): run"
        " `python agent_server.py validate` with the same data, or start without the manifest"
        "; without train sessions the server starts with --config data.train="
    )
    assert refusal(useless) == (
        f"AGENT_SERVER_VALIDATED={file} has no eval row: run `python agent_server.py validate`, or start without it"
    )


def test_who_makes_a_manifest_is_not_bound_by_the_last_one(open_folder: Callable[[], Path]) -> None:
    folders = Folders(open_folder)
    folders.train("calc")
    validated = folders.data / "none.parquet"
    paths = {"R2E_DATA_PATH": folders.data, "R2E_SIF_DIR": folders.sifs, "AGENT_SERVER_VALIDATED": validated}
    made = subprocess.run(
        [sys.executable, "agent_server.py", "validate"],
        cwd=Path(agent_server.__file__).parent,
        env={**os.environ, **{name: str(path) for name, path in paths.items()}},
        capture_output=True,
        text=True,
        timeout=300,
    )
    # That is all that is wrong here; a server asks for the manifest first.
    assert "images without a SIF: 1, the first is calc:1" in made.stderr
    said = refusal(folders.start(AGENT_SERVER_VALIDATED=validated))
    assert said.startswith(f"AGENT_SERVER_VALIDATED={validated} cannot be read: No such file or directory: run ")


def test_what_is_no_manifest_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "manifest.parquet"
    whole = manifest(file, ("a", "train", "valid"), ("b", "train", "flaky")).read_bytes()

    def refused() -> str:
        with pytest.raises(StartupError) as error:
            read_manifest(file)
        line = str(error.value)
        assert "\n" not in line
        assert line.startswith(f"AGENT_SERVER_VALIDATED={file} ")
        assert line.endswith(": run `python agent_server.py validate`, or start without the manifest")
        return line.removeprefix(f"AGENT_SERVER_VALIDATED={file} ").rpartition(": run ")[0]

    assert read_manifest(file).results == {"train": {"a": "valid", "b": "flaky"}}
    for content in (whole[: len(whole) // 2], b"", b"{}", whole[:4] + b"\0" * (len(whole) - 400) + whole[-396:]):
        file.write_bytes(content)
        assert refused().startswith("cannot be read: ")
    file.unlink()
    assert refused() == "cannot be read: No such file or directory"
    file.mkdir()
    assert refused() == "cannot be read: Is a directory"
    file.rmdir()
    pq.write_table(pa.table({"task_id": ["a"], "instance_id": ["a"]}), file)
    assert refused() == "is not a manifest: it has no column mode, result"
    pq.write_table(pa.table({name: pa.array([], pa.string()) for name in ("task_id", "mode", "result")}), file)
    assert refused() == "has no rows"
    manifest(file, ("a", "test", "valid"))
    assert refused().startswith("is not a manifest: it has the row {")
    manifest(file, ("a", "train", "valid"), ("a", "eval", "valid"), ("a", "train", "flaky"))
    assert refused() == "is not a manifest: it has a of train twice"
