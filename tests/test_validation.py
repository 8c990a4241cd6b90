"""The commands `validate` and `rescore` on the sample tasks, and on rows made of them that nobody should train on."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from waiting import until

from data.results import parse_log
from data.rows import write_parquet
from swe_rollout.sandbox import processes
from swe_rollout.validation.replay import commands

REPOSITORY = Path(__file__).parents[1]
TRAIN = "R2E-Gym-Subset/data/train-00000-of-00001.parquet"
COIN = "scoring.command=[ $(od -An -N1 -tu1 /dev/urandom) -lt 128 ] || rm -rf xmltodict.py; bash run_tests.sh"
"""Half of the runs lose what is tested."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Desk:
    """Folders of one validation, and the command line that uses them."""

    data: Path
    sifs: Path
    tmp: Path
    output: Path

    @contextlib.contextmanager
    def started(self, command: str, *words: str | Path) -> Iterator["subprocess.Popen[str]"]:
        process = subprocess.Popen(
            # Ends with the tests, however they end.
            ["setpriv", "--pdeathsig=TERM", sys.executable, "agent_server.py", command, *words],
            cwd=REPOSITORY,
            env={**os.environ, "R2E_DATA_PATH": str(self.data), "R2E_SIF_DIR": str(self.sifs)}
            | {"AGENT_SERVER_TMP_DIR": str(self.tmp), "AGENT_SERVER_WORK_DIR": str(self.output.parent)}
            # What is under way when a run is killed is done again: the less, the sooner the tests end.
            | {"AGENT_SERVER_REWARD_CONCURRENCY": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def run(self, command: str, *words: str | Path) -> tuple[int, str, str]:
        with self.started(command, *words) as process:
            out, err = process.communicate(timeout=600)
            self.assert_tidy()
            return process.returncode, out, err

    def stopped(self, number: signal.Signals, *, after: int) -> tuple[int, str]:
        """Validate until there are `after` more results than before, then send the signal."""
        there = len(self.lines())
        with self.started("validate", "--mode", "train") as process:
            while len(self.lines()) < there + after:
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            process.send_signal(number)
            out, _ = process.communicate(timeout=60)
            return process.returncode, out

    def lines(self) -> list[dict[str, Any]]:
        """The results of finished rows so far."""
        file = self.output / "results.jsonl"
        return [json.loads(line) for line in file.read_bytes().splitlines()] if file.exists() else []

    def manifest(self) -> dict[str, Row]:
        return {row["task_id"]: row for row in pq.read_table(self.output / "manifest.parquet").to_pylist()}

    def assert_tidy(self) -> None:
        """Nothing of the run is left; a janitor may take a moment."""
        until(lambda: not list(self.tmp.iterdir()) and not processes.belonging_to(self.tmp), "nothing is left")


def make_desk(samples: Path, open_folder: Callable[[], Path]) -> Desk:
    folder = open_folder()
    shutil.copytree(samples / "data", folder / "data")
    (folder / "tmp").mkdir()
    return Desk(folder / "data", samples / "sifs", folder / "tmp", folder / "work" / "validation")


def like(row: Row, digit: str, **changes: object) -> Row:
    """Another row with the same image."""
    return {**row, "commit_hash": digit * 40, **changes}


def without_hunk(row: Row) -> str:
    parsed = json.loads(row["parsed_commit_content"])
    for diff in parsed["file_diffs"]:
        diff["hunks"] = diff["hunks"][:1]
    return json.dumps(parsed)


@pytest.fixture(scope="module")
def desk(samples: Path, open_folder: Callable[[], Path]) -> Desk:
    return make_desk(samples, open_folder)


@pytest.fixture(scope="module")
def sample(desk: Desk) -> Row:
    """The row of the quickest sample."""
    rows: list[Row] = pq.read_table(desk.data / TRAIN).to_pylist()
    return next(row for row in rows if row["repo_name"] == "xmltodict")


@pytest.mark.timeout(900)
def test_good_and_bad_rows(desk: Desk, sample: Row) -> None:
    """Each kind of bad row is found among good ones, in a run that is stopped and killed on its way."""
    good: list[Row] = pq.read_table(desk.data / TRAIN).to_pylist()
    before = json.loads(sample["execution_result_content"])["old_commit_res_stdout"]
    broken = {
        "a": like(sample, "a", parsed_commit_content=""),
        "b": like(sample, "b", parsed_commit_content=without_hunk(sample)),
        "c": like(sample, "c", expected_output_json=json.dumps(parse_log(before))),
        "d": like(sample, "d", docker_image="nowhere/xmltodict:1"),
        "e": like(sample, "e", expected_output_json="{}"),
    }
    good.sort(key=lambda row: row["repo_name"] != "xmltodict")

    def write() -> None:
        # What is done at once stands first, so that a stopped run does not have done much in vain.
        rows = [broken["a"], broken["c"], *good, broken["b"], broken["d"], broken["e"]]
        write_parquet(rows, desk.data / TRAIN)

    write()

    code, out = desk.stopped(signal.SIGTERM, after=1)
    assert (code, "stopped; run the same command to go on" in out) == (143, True), out
    desk.assert_tidy()
    first = desk.lines()
    code, _ = desk.stopped(signal.SIGKILL, after=1)
    assert code == -signal.SIGKILL
    assert not (desk.output / "manifest.parquet").exists()
    with (desk.output / "results.jsonl").open("ab") as file:
        file.write(b'{"task_id": "torn')
    desk.assert_tidy()
    code, out, err = desk.run("validate")
    assert code == 1, (out, err)

    names = {digit: f"xmltodict__{digit * 12}" for digit in broken}
    found = desk.manifest()
    bad = {name: (row["result"], row["reason"]) for name, row in found.items() if row["result"] != "valid"}
    assert bad.keys() == set(names.values())
    assert bad[names["a"]] == ("gold_fails", "the row holds no solution")
    assert bad[names["b"]][0] == "gold_fails"
    assert " of 60 tests as expected" in bad[names["b"]][1]
    assert bad[names["c"]] == ("noop_passes", "all 60 tests as expected")
    assert bad[names["d"]] == ("error", "image nowhere/xmltodict:1 has no SIF")
    assert bad[names["e"]][0] == "error"
    for name in bad:
        assert name in out
    assert {row["repo_name"] for row in good} <= {name.partition("__")[0] for name in found.keys() - bad.keys()}
    for name in found.keys() - bad.keys():
        row = found[name]
        assert [(run["kind"], run["reward"]) for run in row["runs"]] == [("noop", 0.0), ("gold", 1.0), ("replay", 1.0)]
        assert row["seconds"] == row["runs"][1]["seconds"] > 0
        for run in row["runs"]:
            assert (desk.output / run["log"]).stat().st_size > 0, run
    assert [run["kind"] for run in found[names["c"]]["runs"]] == ["noop"]

    # What was finished before a stop or a kill was not done again.
    lines = (desk.output / "results.jsonl").read_bytes().splitlines()
    whole = [json.loads(line) for line in lines if not line.endswith(b"torn")]
    assert len(whole) == len(lines) - 1
    assert whole[: len(first)] == first
    done = [line["task_id"] for line in whole if line["result"] != "error"]
    assert len(done) == len(set(done)) == len(found) - 2

    # A row that was mended is checked again; beside it only the errors are.
    broken["b"] = like(sample, "b")
    write()
    code, out, err = desk.run("validate", "--mode", "train")
    assert (code, " 3 checked in " in out) == (1, True), (out, err)
    assert desk.manifest()[names["b"]]["result"] == "valid"

    # A server that is given the manifest leases the rows that it calls valid.
    with desk.started("--port=0", "--config=data.eval=", f"--validated={desk.output / 'manifest.parquet'}") as server:
        assert server.stderr is not None
        said = [server.stderr.readline()]
        while "listening on" not in said[-1]:
            assert said[-1], said
            said.append(server.stderr.readline())
        with httpx.Client(base_url=said[-1].split(" on ")[1].split()[0], trust_env=False, timeout=60) as http:
            tasks = http.get("/readyz").json()["tasks"]["train"]
            leased = {row["task_id"] for row in http.get("/tasks").json()["tasks"]}
        server.terminate()
        server.communicate(timeout=60)
    valid = {name for name, row in desk.manifest().items() if row["result"] == "valid" and row["mode"] == "train"}
    assert leased == valid == {names["b"], *(f"{row['repo_name']}__{row['commit_hash'][:12]}" for row in good)}
    assert (tasks["rows"], tasks["left_out_gold_fails"], tasks["left_out_noop_passes"]) == (len(good) + 1, 1, 1)


def test_the_commands_of_a_replay(tmp_path: Path) -> None:
    """In a repository of git alone: what it writes to patch.txt makes the same change again."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]

    def do(*words: str) -> str:
        return subprocess.run(words, cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True).stdout

    for name, text in (
        ("a.sql", "-- a/b comment\nselect 1\n"),
        ("gone", "x\n"),
        ("[x]", "1\n"),
        (".gitignore", "*.log"),
    ):
        (tmp_path / name).write_text(text)
    do(*git, "init", "-q")
    do(*git, "add", "-A")
    do(*git, "commit", "-qm", "before")
    (tmp_path / "a.sql").write_text("select 1\n")
    (tmp_path / "gone").rename(tmp_path / "moved")
    (tmp_path / "[x]").write_text("2\n")
    (tmp_path / "new.log").write_text("ignored\n")
    do(*git, "add", "-A", "--force")
    patch = do(*git, "diff", "--cached", "-M")
    assert "rename from gone" in patch
    do(*git, "reset", "-q", "--hard")
    (tmp_path / "unrelated").write_text("not of the change")

    for command in commands(patch)[:2]:
        do("bash", "-c", command)

    written = (tmp_path / "patch.txt").read_text()
    do(*git, "reset", "-q", "--hard")
    do(*git, "apply", "patch.txt")
    assert (tmp_path / "a.sql").read_text() == "select 1\n"
    assert ((tmp_path / "gone").exists(), (tmp_path / "moved").read_text()) == (False, "x\n")
    assert (tmp_path / "[x]").read_text() == "2\n"
    assert (tmp_path / "new.log").read_text() == "ignored\n"
    assert "unrelated" not in written


def test_flaky_row(desk: Desk, sample: Row, tmp_path: Path) -> None:
    """Its reward is tossed up. That 24 coins fall the same way happens once in eight million times."""
    name = f"xmltodict__{sample['commit_hash'][:12]}"
    ids = tmp_path / "ids"
    ids.write_text(f"# mine\r\n{name}\r\n\r\n", "utf-8-sig")
    words = ("--mode", "train", "--ids", ids, "--repeat", "24", "--output", desk.output.parent / "coin")
    code, out, err = desk.run("validate", *words, "--config", COIN)
    assert code == 1, (out, err)
    (row,) = pq.read_table(desk.output.parent / "coin" / "manifest.parquet").to_pylist()
    assert (row["task_id"], row["result"]) == (name, "flaky")
    assert {run["reward"] for run in row["runs"] if run["kind"] == row["reason"].partition(":")[0]} == {0.0, 1.0}


def test_rescore(desk: Desk, tmp_path: Path) -> None:
    """Sessions are the replays of the first test: one is left as it is, of the others something was changed."""
    kept, changed, unknown, limited = (tmp_path / name for name in ("kept", "changed", "unknown", "limited"))
    stored = sorted(desk.output.glob("sessions/*/*xmltodict*"))[0]
    for folder in (kept, changed, unknown, limited):
        shutil.copytree(stored, folder)
    edit(changed / "outcome.json", reward=0.0)
    edit(unknown / "task.json", task_id="xmltodict__000000000000")
    edit(limited / "outcome.json", grading_status=None, agent_exit_status="LimitsExceeded", reward=0.0)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    code, out, err = desk.run("rescore", tmp_path)
    assert code == 1, err
    assert "4 sessions: 1 as before, 1 changed, 1 could not be judged, 1 skipped (never judged)" in out
    (line,) = (line for line in out.splitlines() if line.startswith("│ changed"))
    assert [cell.strip() for cell in line.strip("│").split("│")][2:] == ["0.0", "1.0", "all 60 tests as expected"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    code, out, err = desk.run("rescore", "--config", "data.eval=", kept, limited)
    assert (code, "2 sessions: 1 as before, 0 changed" in out) == (0, True), (out, err)


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_wrong_usage(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("no-such-row\n")
    for words, said in (
        (("validate", "--repeat", "0"), "'0' is not a number above 0"),
        (("validate", "--mode", "train", "--ids", tmp_path / "ids"), "no row has the id no-such-row"),
        (("validate", "--mode", "train", "--ids", tmp_path / "none"), "none cannot be read: No such file or directory"),
        (("rescore", tmp_path), "no session below"),
    ):
        code, out, err = desk.run(*words)
        assert (code, said in err, err.count("Traceback")) == (2, True, 0), (out, err)
