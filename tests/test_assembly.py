"""The server as it is run: real settings, configuration, rows and confinement, up to the first model call."""

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from scripted import request_body

import agent_server


def test_a_real_server_starts_serves_and_leaves_nothing(open_folder: Callable[[], Path], sif: Path) -> None:
    tmp_path = open_folder()
    rows = tmp_path / "data" / "R2E-Gym-Subset" / "data" / "train-00000-of-00001.parquet"
    rows.parent.mkdir(parents=True)
    images = ["calc:1", "gone:1"]
    table = {
        "repo_name": ["calc", "gone"],
        "docker_image": images,
        "commit_hash": ["a" * 40, "b" * 40],
        "problem_statement": ["Fix it."] * 2,
        "expected_output_json": [json.dumps({"test_it": "PASSED"})] * 2,
    }
    pq.write_table(pa.table(table), rows)
    sifs, tmp = open_folder(), open_folder()
    evaluation = tmp_path / "data" / "SWE-Bench-Verified" / "data" / "test-00000-of-00001.parquet"
    evaluation.parent.mkdir(parents=True)
    pq.write_table(pa.table({"docker_image": ["x"], "FAIL_TO_PASS": ["[]"]}), evaluation)
    image = sifs / "calc__1.sif"
    image.touch()
    folders = {
        "R2E_DATA_PATH": tmp_path / "data",
        "R2E_SIF_DIR": sifs,
        "AGENT_SERVER_WORK_DIR": tmp_path / "work",
        "AGENT_SERVER_TMP_DIR": tmp,
    }
    command = [sys.executable, "agent_server.py", "--port", "0", "--http-threads", "16", "--eval-group-size", "2"]
    start = functools.partial(
        subprocess.Popen[str],
        command,
        cwd=Path(agent_server.__file__).parent,
        env={**os.environ, **{name: str(folder) for name, folder in folders.items()}},
        stderr=subprocess.PIPE,
        text=True,
    )
    with start() as server:
        _, said = server.communicate(timeout=60)
        assert server.returncode == 2
        assert said.endswith(f"agent_server.py: every image is damaged, the first is {image}: build them again\n")
    image.unlink()
    image.symlink_to(sif)
    with start() as server:
        assert server.stderr is not None
        left_out, no_eval, start_line = (server.stderr.readline() for _ in range(3))
        assert f"no eval sessions: {evaluation} holds rows in SWE-bench form" in no_eval
        assert "train: 1 of 2 rows left out: 1 images have no SIF" in left_out
        assert left_out.endswith("the first is gone:1\n")
        assert "train: 1 rows, 1 images; eval: no rows; slots: train 64, eval 64, scoring " in start_line
        with httpx.Client(base_url=start_line.split(" on ")[1].split()[0], trust_env=False, timeout=60) as http:
            ready = http.get("/readyz").json()
            assert ready["tasks"]["train"]["rows"] == ready["tasks"]["train"]["rows_without_image"] == 1
            assert ready["confinement"].startswith("unprivileged: ")
            assert http.post("/sessions", json=request_body(mode="eval")).status_code == 409
            # Nothing listens on port 9: the first model call fails, and the session says so.
            body = request_body(base_url="http://127.0.0.1:9/agentic_api/")
            session_id = http.post("/sessions", json=body).json()["session_id"]
            view = http.get(f"/sessions/{session_id}", params={"wait": 60}).json()
        assert (view["status"], view["exit_code"], view["task_id"]) == ("failed", 1, f"calc__{'a' * 12}")
        assert view["error"].startswith("ModelError: model endpoint http://127.0.0.1:9/agentic_api/chat/completions: ")
        server.send_signal(signal.SIGTERM)
        log = server.communicate(timeout=60)[1]
    assert server.returncode == 128 + signal.SIGTERM
    assert log.endswith("INFO stopped\n")
    assert list(tmp.iterdir()) == []
