"""Rows from real parquet files."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swe_rollout.errors import StartupError
from swe_rollout.tasks import find_files, load_tasks

ENTITY = pa.struct(
    [
        ("ast_type_str", pa.string()),
        ("end_lineno", pa.int64()),
        ("file_name", pa.string()),
        ("name", pa.string()),
        ("start_lineno", pa.int64()),
        ("type", pa.string()),
    ]
)
SCHEMA = pa.schema(
    [
        ("repo_name", pa.string()),
        ("docker_image", pa.string()),
        ("commit_hash", pa.string()),
        ("parsed_commit_content", pa.string()),
        ("execution_result_content", pa.string()),
        ("modified_files", pa.list_(pa.string())),
        ("modified_entity_summaries", pa.list_(ENTITY)),
        ("relevant_files", pa.list_(pa.string())),
        ("num_non_test_files", pa.int64()),
        ("num_non_test_func_methods", pa.int64()),
        ("num_non_test_lines", pa.int64()),
        ("prompt", pa.string()),
        ("problem_statement", pa.string()),
        ("expected_output_json", pa.string()),
    ]
)
GOOD_MAP = json.dumps({"TestRun.test_a": "PASSED", "\x1b[1mtest_b\x1b[0m": "FAILED", "": "ERROR"})


def row(number: int, **changes: object) -> dict[str, object]:
    commit = f"{number:040x}"[::-1]
    return {
        "repo_name": "pandas",
        "docker_image": f"r2e-images/pandas_final:{commit}",
        "commit_hash": commit,
        "parsed_commit_content": "{}" * 1000,
        "execution_result_content": "{}",
        "modified_files": ["m.py"],
        "modified_entity_summaries": [dict.fromkeys(ENTITY.names)],
        "relevant_files": ["m.py"],
        "num_non_test_files": 1,
        "num_non_test_func_methods": 1,
        "num_non_test_lines": 1,
        "prompt": "the solution",
        "problem_statement": f"[ISSUE]\n**Bug {number}**\n\nIt breaks.\n[/ISSUE]",
        "expected_output_json": GOOD_MAP,
        **changes,
    }


class Data:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.sifs = root / "sifs"
        self.sifs.mkdir()

    def write(self, name: str, rows: list[dict[str, object]], *, sif: bool = True, drop: tuple[str, ...] = ()) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA).drop_columns(list(drop)), path, row_group_size=100)
        for one in rows if sif else []:
            image = str(one["docker_image"]).replace("/", "__").replace(":", "__")
            (self.sifs / f"{image}.sif").touch()
        return path


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path)


def loading_error(data: Data, *files: Path) -> str:
    with pytest.raises(StartupError) as caught:
        load_tasks(files, data.sifs)
    message = str(caught.value)
    assert "\n" not in message
    assert all(str(file) in message for file in files[-1:])
    return message


def test_rows_become_tasks_in_order_and_every_row_is_accounted_for(data: Data) -> None:
    first = [row(n) for n in range(300)]  # more than a batch and than a row group
    second = [
        row(1000, problem_statement="No tags at all.\n"),
        row(1001, problem_statement="See [ISSUE] a [ISSUE] b [/ISSUE] c [/ISSUE] d"),
        row(1002, docker_image="ghcr.io:5000/some/aiohttp_final:1.0", repo_name="aiohttp"),
        row(7),
        row(1003, expected_output_json="{}"),
        row(1004, expected_output_json='{"a": "MAYBE"}'),
        row(1005, expected_output_json=None),
        row(1006, commit_hash=None),
        row(1007, problem_statement="[ISSUE] \n [/ISSUE]"),
        row(1008, docker_image=" "),
    ]
    files = [
        data.write("R2E/data/train-00000-of-00002.parquet", first),
        data.write("R2E/data/train-00001-of-00002.parquet", second),
    ]
    unbuilt = [row(2000), row(2001, docker_image="a/b:1"), row(2002, docker_image="a/b:1")]
    files.append(data.write("R2E/data/train-00002-of-00002.parquet", unbuilt, sif=False))
    assert find_files(data.root, "R2E/data/train-*.parquet") == files

    loaded = load_tasks(files, data.sifs)
    assert [task.id for task in loaded.tasks[:300]] == [f"pandas__{str(one['commit_hash'])[:12]}" for one in first]
    task = loaded.tasks[7]
    assert task.problem_statement == "**Bug 7**\n\nIt breaks."
    assert task.expected == {"TestRun.test_a": "PASSED", "test_b": "FAILED"}
    assert task.sif == data.sifs / f"r2e-images__pandas_final__{first[7]['commit_hash']}.sif"
    assert task.sif.is_file()
    assert (task.repo, task.docker_image) == ("pandas", first[7]["docker_image"])
    assert [task.problem_statement for task in loaded.tasks[300:302]] == [
        "No tags at all.",
        "a [ISSUE] b [/ISSUE] c",
    ]
    assert loaded.tasks[302].sif.name == "ghcr.io__5000__some__aiohttp_final__1.0.sif"

    reasons = {bad.id: bad.reason for bad in loaded.bad_rows}
    assert len(reasons) == len(loaded.bad_rows) == 7
    assert reasons[loaded.tasks[7].id] == "repeats the id of an earlier row"
    assert "names no test" in reasons[f"pandas__{str(second[4]['commit_hash'])[:12]}"]
    assert "unknown status 'MAYBE'" in reasons[f"pandas__{str(second[5]['commit_hash'])[:12]}"]
    named_by_place = {name: reason for name, reason in reasons.items() if "row" in name}
    assert named_by_place == {
        "train-00001-of-00002.parquet row 6": "expected_output_json is empty or not a text",
        "train-00001-of-00002.parquet row 7": "commit_hash is empty or not a text",
        "train-00001-of-00002.parquet row 9": "docker_image is empty or not a text",
    }
    assert loaded.missing_images == ["a/b:1", unbuilt[0]["docker_image"]]
    assert loaded.n_without_image == 3
    assert loaded.n_rows == 313 == len(loaded.tasks) + len(loaded.bad_rows) + loaded.n_without_image
    assert len({task.id for task in loaded.tasks}) == len(loaded.tasks) == 303


def test_files_that_are_not_whole_keep_the_server_from_starting(data: Data) -> None:
    good = data.write("good.parquet", [row(n) for n in range(250)])
    content = good.read_bytes()
    damaged = {
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 99\n",
        "empty": b"",
        "cut": content[:300],
        "half": content[: len(content) // 2],
        "page": b"<html>429 Too Many Requests</html>",
        "hole": content[:2000] + bytes(len(content) - 4000) + content[-2000:],
    }
    for name, damage in damaged.items():
        path = data.root / f"{name}.parquet"
        path.write_bytes(damage)
        message = loading_error(data, good, path)
        assert ("Git LFS pointer" if name == "pointer" else "cannot be read as parquet") in message
        assert "setup_r2e_data_and_sifs.sh" in message
    assert "cannot be read" in loading_error(data, data.root / "absent.parquet")
    assert "cannot be read" in loading_error(data, data.sifs)
    assert "has no rows" in loading_error(data, data.write("zero.parquet", []))
    # A file whose text is not UTF-8.
    table = pq.read_table(good)
    raw = table.set_column(12, "problem_statement", pa.array([b"\xff\xfe"] * 250, pa.binary()).view(pa.string()))
    pq.write_table(raw, data.root / "latin.parquet")
    assert "cannot be read" in loading_error(data, data.root / "latin.parquet")


def test_data_that_cannot_be_used_keeps_the_server_from_starting(data: Data) -> None:
    message = loading_error(data, data.write("short.parquet", [row(1)], drop=("commit_hash", "repo_name")))
    assert "lacks the columns repo_name, commit_hash" in message
    swebench = data.root / "test.parquet"
    pq.write_table(pa.table({"instance_id": ["a__b-1"], "repo": ["a/b"], "FAIL_TO_PASS": ['["t"]']}), swebench)
    assert "scores R2E-form rows only" in loading_error(data, swebench)

    bad = [row(n, expected_output_json="[]") for n in range(3)]
    message = loading_error(data, data.write("bad.parquet", bad))
    assert "none of the 3 rows" in message
    assert "3 cannot be judged (the first is pandas__000000000000: expected_output_json is not a JSON" in message
    message = loading_error(data, data.write("unbuilt.parquet", [row(90), bad[0]], sif=False))
    assert "1 have no SIF in" in message
    assert "set R2E_SIF_DIR" in message
    assert "1 cannot be judged" in message

    with pytest.raises(StartupError, match=r"no file matches data/train-\*.parquet below .*: set R2E_DATA_PATH"):
        find_files(data.root, "data/train-*.parquet")
    for pattern in ("", "/abs/*.parquet"):
        with pytest.raises(StartupError, match="must be relative to R2E_DATA_PATH"):
            find_files(data.root, pattern)
    with pytest.raises(StartupError, match="no parquet file is configured"):
        load_tasks([], data.sifs)
    with pytest.raises(StartupError, match="does not exist: set R2E_SIF_DIR"):
        load_tasks([data.root / "bad.parquet"], data.root / "nowhere")


def test_pyarrow_is_imported_only_by_loading() -> None:
    code = "import sys, swe_rollout.tasks; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
