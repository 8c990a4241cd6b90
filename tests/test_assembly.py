"""The server as it is run: real settings, configuration, rows and confinement, up to the first model call."""

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
from waiting import until

import agent_server

TRAIN = "R2E-Gym-Subset/data/train-00000-of-00001.parquet"
EVAL = "SWE-Bench-Verified/data/test-00000-of-00001.parquet"
SCRIPT = ": '>>>>> Start Test Output'\npytest -rA\n: '>>>>> End Test Output'\n"
FETCH = "fetch the data with `bash setup_r2e_data_and_sifs.sh`"
BUILD = "set R2E_SIF_DIR, or `bash setup_r2e_data_and_sifs.sh` builds what is missing or damaged"


class Folders:
    """What servers are given."""

    def __init__(self, open_folder: Callable[[], Path]) -> None:
        self.data, self.sifs, self.tmp = (open_folder() for _ in range(3))
        self._open_folder = open_folder

    def write(self, name: str, **columns: object) -> Path:
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        return path

    def train(self, *projects: str) -> Path:
        return self.write(
            TRAIN,
            repo_name=projects,
            docker_image=[f"{project}:1" for project in projects],
            commit_hash=[digit * 40 for digit in "abcdef"[: len(projects)]],
            problem_statement=["Fix it."] * len(projects),
            expected_output_json=[json.dumps({"test_it": "PASSED"})] * len(projects),
        )

    def eval(self, *repos: str, **columns: object) -> Path:
        return self.write(
            EVAL,
            instance_id=[repo.replace("/", "__") + "-1" for repo in repos],
            repo=repos,
            version=["1"] * len(repos),
            problem_statement=["Fix it."] * len(repos),
            FAIL_TO_PASS=['["test_it"]'] * len(repos),
            PASS_TO_PASS=["[]"] * len(repos),
            **columns,
        )

    def start(self, *specs: str, sifs: Path | None = None, **variables: Path) -> subprocess.Popen[str]:
        folders = {"AGENT_SERVER_WORK_DIR": self._open_folder(), "AGENT_SERVER_TMP_DIR": self.tmp}
        folders |= {"R2E_DATA_PATH": self.data, "R2E_SIF_DIR": sifs or self.sifs, **variables}
        options = ["--port=0", "--http-threads=16", "--eval-group-size=2", *(f"--config={spec}" for spec in specs)]
        return subprocess.Popen(
            [sys.executable, "agent_server.py", *options],
            cwd=Path(agent_server.__file__).parent,
            env={**os.environ, **{name: str(folder) for name, folder in folders.items()}},
            stderr=subprocess.PIPE,
            text=True,
        )


def refusal(server: subprocess.Popen[str]) -> str:
    """The one line of a server that does not start."""
    with server:
        _, said = server.communicate(timeout=200)
    assert server.returncode == 2, said
    last = said.splitlines()[-1]
    assert last.startswith("agent_server.py: "), said
    assert "Traceback" not in said
    return last.removeprefix("agent_server.py: ")


def test_a_real_server_starts_serves_and_leaves_nothing(open_folder: Callable[[], Path], sif: Path) -> None:
    folders = Folders(open_folder)
    folders.train("calc", "gone", "half", "page", "none")
    folders.write(
        TRAIN.replace("00000", "00001", 1),
        repo_name=["calc"],
        docker_image=["calc:1"],
        commit_hash=["0" * 40],
        problem_statement=["Fix it."],
        expected_output_json=["{}"],
    )
    folders.eval("pallets/flask", "unknown/project", eval_script=[SCRIPT] * 2)
    half, page, none = (folders.sifs / f"{name}__1.sif" for name in ("half", "page", "none"))
    half.write_bytes(sif.read_bytes()[: sif.stat().st_size // 2])
    page.write_text("<html>429</html>")
    none.touch()
    (folders.sifs / "calc__1.sif").symlink_to(sif)
    for repo in ("pallets_1776_flask", "unknown_1776_project"):
        (folders.sifs / f"swebench__sweb.eval.x86_64.{repo}-1__latest.sif").symlink_to(sif)
    with folders.start() as server:
        assert server.stderr is not None
        lines = []
        while "listening on" not in (line := server.stderr.readline()):
            assert line, lines
            lines.append(line.split(" ", 1)[1].rstrip())
        size = sif.stat().st_size
        assert lines == [
            f"WARNING train: 4 of 6 rows left out: images without a SIF: 1, the first is gone:1; damaged SIFs: 3, the"
            f" first: image {half} is cut short: {half.stat().st_size} bytes of {size}; build it again; {BUILD}",
            f"WARNING train: image {none} is not a SIF file (0 bytes); build it again",
            f"WARNING train: image {page} is not a SIF file (16 bytes); build it again",
            "WARNING train: rows left out, expected_output_json names no test: calc__000000000000",
            *lines[4:],
        ]
        assert lines[4].startswith("WARNING eval: rows left out, ")
        assert lines[4].endswith(": unknown__project-1")
        assert [line for line in lines[5:] if not line.startswith("INFO limits of sandboxes are held ")] == []
        assert (
            " train: 1 of 6 rows (1 bad), 1 of 5 images (1 missing, 3 damaged);"
            " eval: 1 of 2 rows (1 bad), 1 images; slots: train 64, eval 64, scoring "
        ) in line
        with httpx.Client(base_url=line.split(" on ")[1].split()[0], trust_env=False, timeout=60) as http:
            ready = http.get("/readyz").json()
            found = {"rows": 1, "rows_read": 6, "rows_without_image": 4, "bad_rows": 1}
            found |= {"images": 1, "missing_images": 1, "damaged_images": 3}
            assert {name: ready["tasks"]["train"][name] for name in found} == found
            assert ready["confinement"].startswith("unprivileged: ")
            for mode, task in (("eval", "pallets__flask-1"), ("train", f"calc__{'a' * 12}")):
                # Nothing listens on port 9: the first model call fails, and the session says so.
                body = request_body(mode=mode, base_url="http://127.0.0.1:9/agentic_api/")
                session_id = http.post("/sessions", json=body).json()["session_id"]
                view = http.get(f"/sessions/{session_id}", params={"wait": 60}).json()
                assert (view["status"], view["exit_code"], view["task_id"]) == ("failed", 1, task)
                refused = "ModelError: model endpoint http://127.0.0.1:9/agentic_api/chat/completions: "
                assert view["error"].startswith(refused)
        server.send_signal(signal.SIGTERM)
        log = server.communicate(timeout=60)[1]
    assert server.returncode == 128 + signal.SIGTERM
    assert log.endswith("INFO stopped\n")
    until(lambda: not list(folders.tmp.iterdir()), "nothing is left")


def test_damaged_or_useless_data_keeps_the_server_from_starting(open_folder: Callable[[], Path], sif: Path) -> None:
    """Not the first lease but the start fails, with one line that names the file and what mends it."""
    pointer, images, classic, nothing = (Folders(open_folder) for _ in range(4))
    for folders in (pointer, classic):
        folders.train("calc")
        (folders.sifs / "calc__1.sif").symlink_to(sif)
    damaged = pointer.eval("pallets/flask")
    damaged.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 99\n")
    rows = images.train("half", "gone")
    half = images.sifs / "half__1.sif"
    half.write_bytes(sif.read_bytes()[: sif.stat().st_size // 2])
    unscorable = classic.eval("pallets/flask", "psf/requests")

    servers = [
        pointer.start(),
        # Without eval its file is not looked at.
        pointer.start("data.eval=", sifs=nothing.sifs),
        images.start(),
        classic.start(),
        nothing.start(),
        nothing.start("data.eval=", "data.train="),
    ]
    said = [refusal(server) for server in servers]
    without_eval = "; without eval sessions the server starts with --config data.eval="
    assert said[0] == f"eval: {damaged} is a Git LFS pointer, not the data: {FETCH}{without_eval}"
    assert said[1] == (
        f"train: none of the 1 rows of {pointer.data / TRAIN} can be used: "
        f"images without a SIF: 1, the first is calc:1; {BUILD}"
    )
    sizes = f"{half.stat().st_size} bytes of {sif.stat().st_size}"
    assert said[2] == (
        f"train: none of the 2 rows of {rows} can be used: images without a SIF: 1, the first is gone:1;"
        f" damaged SIFs: 1, the first: image {half} is cut short: {sizes}; build it again; {BUILD}"
    )
    assert said[3].startswith(
        f"eval: none of the 2 rows of {unscorable} can be used: rows that cannot be judged: 2, the first "
    )
    assert "pallets__flask-1: the row carries no eval_script " in said[3]
    assert said[3].endswith(without_eval)
    patterns = ("R2E-Gym-Subset/data/train-*.parquet", "SWE-Bench-Verified/data/test-*.parquet")
    absent = " and ".join(f"no file matches {pattern} below {nothing.data}" for pattern in patterns)
    assert said[4] == f"{absent}: set R2E_DATA_PATH, or {FETCH}"
    assert said[5] == "data.train and data.eval are both empty: name the files of one"
