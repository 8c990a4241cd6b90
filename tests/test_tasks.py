"""Rows from real parquet files."""

import contextlib
import json
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swe_rollout.errors import StartupError
from swe_rollout.rows import RowForm, check_parquet, id_of, image_of, read_rows
from swe_rollout.sandbox.images import SifFolder, sif_name
from swe_rollout.scoring.r2e import R2ETests
from swe_rollout.scoring.swebench import SWEBenchTests
from swe_rollout.tasks import LoadedTasks, find_files, load_tasks

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


SCRIPT = ": '>>>>> Start Test Output'\npytest -rA tests/test_a.py\n: '>>>>> End Test Output'\n"


def swebench_row(number: int, **changes: object) -> dict[str, object]:
    """As SWE-bench 5.x writes them; `changes` to None drop a column."""
    row = {
        "instance_id": f"Pallets__flask-{number}",
        "repo": "pallets/flask",
        "version": "2.3",
        "base_commit": f"{number:040x}",
        "problem_statement": "See [ISSUE] as it is [/ISSUE]\n",
        "patch": "diff --git a/src/a.py b/src/a.py\n",
        "test_patch": "diff --git a/tests/test_a.py b/tests/test_a.py\n",
        "hints_text": "never read",
        "FAIL_TO_PASS": ["tests/test_a.py::test_a"],
        "PASS_TO_PASS": [],
        "image": f"docker.io/swebench/sweb.eval.x86_64.pallets_1776_flask-{number}:latest",
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "eval_script": SCRIPT,
        **changes,
    }
    return {column: value for column, value in row.items() if value is not None}


def text_form(number: int, **changes: object) -> dict[str, object]:
    """As in R2E-Gym/SWE-Bench-Verified: lists are JSON texts, the image bakes the tests' command."""
    lists = {"FAIL_TO_PASS": json.dumps(["tests/test_a.py::test_a"]), "PASS_TO_PASS": "[]"}
    image = f"r2e-images/swebench-verified:sweb.eval.x86_64.pallets__flask-{number}"
    new_columns = dict.fromkeys(("image", "log_parser", "eval_type", "eval_script"))
    return swebench_row(number, **{**new_columns, **lists, "docker_image": image, **changes})


class Data:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.sifs = root / "sifs"
        self.sifs.mkdir()

    def write(
        self,
        name: str,
        rows: list[dict[str, object]],
        *,
        sif: bool = True,
        drop: tuple[str, ...] = (),
        schema: pa.Schema | None = SCHEMA,
    ) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema).drop_columns(list(drop)), path, row_group_size=100)
        for one in rows if sif else []:
            with contextlib.suppress(ValueError):
                self.build(image_of(one))
        return path

    def build(self, image: str) -> Path:
        """A file that is as long as the header says, as far as a look at it can tell."""
        path = self.sifs / sif_name(image)
        path.write_bytes(SIF)
        return path

    def load(self, *files: Path) -> LoadedTasks:
        return load_tasks(files, SifFolder(self.sifs))


SIF = struct.pack("<32s10s3s3s16s8q", b"", b"SIF_MAGIC\0", b"01", b"02", b"", *[0] * 6, 128, 72) + bytes(72)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(tmp_path)


def loading_error(data: Data, *files: Path) -> str:
    with pytest.raises(StartupError) as caught:
        data.load(*files)
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

    loaded = data.load(*files)
    assert [task.id for task in loaded.tasks[:300]] == [f"pandas__{str(one['commit_hash'])[:12]}" for one in first]
    task = loaded.tasks[7]
    assert task.problem_statement == "**Bug 7**\n\nIt breaks."
    assert task.tests == R2ETests({"TestRun.test_a": "PASSED", "test_b": "FAILED"}, frozenset({"m.py"}))
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
    assert named_by_place == {"train-00001-of-00002.parquet row 7": "has no id: commit_hash is empty or not a text"}
    assert reasons[f"pandas__{str(second[6]['commit_hash'])[:12]}"] == "expected_output_json is empty or not a text"
    assert reasons[f"pandas__{str(second[9]['commit_hash'])[:12]}"] == (
        "names no image: docker_image is empty or not a text"
    )
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
    assert "holds rows in R2E form, but lacks repo_name, commit_hash: fetch the data with `bash setup_" in message
    old = swebench_row(1, version=None, PASS_TO_PASS=None)
    message = loading_error(data, data.write("old.parquet", [old], schema=None))
    assert "holds rows in SWE-bench form, but lacks PASS_TO_PASS, version: fetch" in message
    message = loading_error(data, data.write("other.parquet", [{"docker_image": "a:1"}], schema=None))
    assert "neither the column expected_output_json (R2E form) nor FAIL_TO_PASS (SWE-bench form): fetch" in message

    bad = [row(n, expected_output_json="[]") for n in range(3)]
    message = loading_error(data, data.write("bad.parquet", bad))
    assert "none of the 3 rows" in message
    assert (
        "rows that cannot be judged: 3, the first is pandas__000000000000: expected_output_json is not a JSON"
        in message
    )
    unbuilt = data.write("unbuilt.parquet", [row(90), row(91), bad[0]], sif=False)
    damaged = data.build(str(row(91)["docker_image"]))
    damaged.write_bytes(SIF[:150])
    message = loading_error(data, unbuilt)
    assert f"images without a SIF: 1, the first is {row(90)['docker_image']}; " in message
    assert f"damaged SIFs: 1, the first: image {damaged} is cut short: 150 bytes of 200; build it again; " in message
    assert "set R2E_SIF_DIR, or `bash setup_r2e_data_and_sifs.sh` builds what is missing or damaged; " in message
    assert "rows that cannot be judged: 1" in message

    assert find_files(data.root, "data/train-*.parquet") == []
    with pytest.raises(StartupError, match="must be relative to R2E_DATA_PATH"):
        find_files(data.root, "/abs/*.parquet")
    for folder, cause in ((data.root / "nowhere", "No such file or directory"), (unbuilt, "Not a directory")):
        with pytest.raises(StartupError, match=f"SIF folder {folder} cannot be read: {cause}; set R2E_SIF_DIR, or "):
            SifFolder(folder)


def test_rows_in_swebench_form_become_tasks(data: Data) -> None:
    """Lists or JSON texts; with a script of their own or an image that has one."""
    official = swebench_row(3, image=None)
    new = data.write("new.parquet", [swebench_row(1), swebench_row(2, FAIL_TO_PASS=[]), official], schema=None)
    baked = data.write("baked.parquet", [text_form(4), text_form(5, FAIL_TO_PASS="[]"), text_form(1)], schema=None)
    classic = data.write("classic.parquet", [text_form(n, docker_image=None) for n in (6, 7)], schema=None)
    assert [check_parquet(file) for file in (new, baked, classic)] == [RowForm.SWE_BENCH] * 3

    loaded = data.load(new, baked, classic)
    assert [task.id for task in loaded.tasks] == [f"Pallets__flask-{n}" for n in (1, 3, 4)]
    assert [task.docker_image for task in loaded.tasks] == [
        "swebench/sweb.eval.x86_64.pallets_1776_flask-1:latest",
        "swebench/sweb.eval.x86_64.pallets_1776_flask-3:latest",
        "r2e-images/swebench-verified:sweb.eval.x86_64.pallets__flask-4",
    ]
    task = loaded.tasks[2]
    assert task.sif == data.sifs / "r2e-images__swebench-verified__sweb.eval.x86_64.pallets__flask-4.sif"
    assert (task.repo, task.problem_statement) == ("pallets/flask", "See [ISSUE] as it is [/ISSUE]\n")
    for task in loaded.tasks:
        assert isinstance(task.tests, SWEBenchTests)
        assert (task.tests.instance_id, task.tests.fail_to_pass) == (task.id, ("tests/test_a.py::test_a",))
    assert [task.tests.eval_script for task in loaded.tasks if isinstance(task.tests, SWEBenchTests)] == [
        *(SCRIPT, SCRIPT, None),
    ]
    reasons = {bad.id: bad.reason for bad in loaded.bad_rows}
    assert list(reasons) == [f"Pallets__flask-{n}" for n in (2, 5, 1, 6, 7)]
    assert "FAIL_TO_PASS" in reasons["Pallets__flask-2"]
    assert "FAIL_TO_PASS" in reasons["Pallets__flask-5"]
    assert reasons["Pallets__flask-1"] == "repeats the id of an earlier row"
    assert "carries no eval_script" in reasons["Pallets__flask-7"]
    message = loading_error(data, classic)
    assert "rows that cannot be judged: 2, the first is Pallets__flask-6: " in message
    assert "R2E-Gym/SWE-Bench-Verified" in message

    # What the harness refuses is known later.
    left = loaded.without({"Pallets__flask-3": "no such parser"})
    assert [task.id for task in left.tasks] == ["Pallets__flask-1", "Pallets__flask-4"]
    assert left.bad_rows[-1].reason == "no such parser"
    assert left.n_rows == loaded.n_rows == 8
    assert left.n_without_image == loaded.n_without_image == 0
    with pytest.raises(StartupError, match=r"none of the 8 rows .* can be used: rows that cannot be judged: 8"):
        loaded.without({task.id: "no such parser" for task in loaded.tasks})


def test_ids_images_and_what_is_read(data: Data) -> None:
    django = {"instance_id": "django__django-11790"}
    assert image_of(django) == "swebench/sweb.eval.x86_64.django_1776_django-11790:latest"
    assert image_of({**django, "image": "docker.io/ns/x:1", "docker_image": ""}) == "ns/x:1"
    assert image_of({**django, "image": "docker.io/ns/x:1", "docker_image": "docker.io/y:2"}) == "docker.io/y:2"
    assert id_of(django) == "django__django-11790"
    assert id_of({"repo_name": "numpy", "commit_hash": "0123456789abcdef"}) == "numpy__0123456789ab"
    for wrong in ({}, {"instance_id": " "}, {"repo_name": "numpy", "commit_hash": None}):
        with pytest.raises(ValueError, match="has no id: "):
            id_of(wrong)
    with pytest.raises(ValueError, match="names no image: docker_image, image, instance_id is empty"):
        image_of({"repo_name": "numpy"})
    # Large columns stay on disk.
    (read,) = read_rows(data.write("new.parquet", [swebench_row(1)], schema=None))
    assert "hints_text" not in read
    (read,) = read_rows(data.write("r2e.parquet", [row(1)]))
    needed = {"repo_name", "docker_image", "commit_hash", "problem_statement", "expected_output_json"}
    assert set(read) == needed | {"modified_files"}


def test_what_is_slow_is_imported_only_when_it_is_used() -> None:
    code = "import sys, swe_rollout.tasks; sys.exit(not {'pyarrow', 'swebench'}.isdisjoint(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
