"""The sample tasks, as the real command builds them: rows, images, and what an unfinished build leaves."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.parsed_commit import parse_commit
from data.parsed_diff import rebuild_diff
from data.repository import git
from data.results import parse_log
from data.swebench_rows import image_of

REPOSITORY = Path(__file__).parents[1]
BUILD = [sys.executable, "-m", "data.build"]
# The first build downloads and packs; on a busy machine it takes its time.
pytestmark = pytest.mark.timeout(1200)

COLUMNS = {
    "repo_name": "string",
    "docker_image": "string",
    "commit_hash": "string",
    "parsed_commit_content": "string",
    "execution_result_content": "string",
    "modified_files": "list<element: string>",
    "modified_entity_summaries": "list<element: struct<ast_type_str: string, end_lineno: int64, file_name: string, "
    "name: string, start_lineno: int64, type: string>>",
    "relevant_files": "list<element: string>",
    "num_non_test_files": "int64",
    "num_non_test_func_methods": "int64",
    "num_non_test_lines": "int64",
    "prompt": "string",
    "problem_statement": "string",
    "expected_output_json": "string",
}


SWEBENCH_COLUMNS = (
    *("repo", "instance_id", "base_commit", "patch", "test_patch", "problem_statement", "hints_text", "created_at"),
    *("version", "FAIL_TO_PASS", "PASS_TO_PASS", "environment_setup_commit", "docker_image", "eval_script"),
)


SWEBENCH_COLUMNS = [
    *("repo", "instance_id", "base_commit", "patch", "test_patch", "problem_statement", "hints_text", "created_at"),
    *("version", "FAIL_TO_PASS", "PASS_TO_PASS", "environment_setup_commit", "docker_image", "eval_script"),
]


@pytest.fixture(scope="session")
def table(samples: Path) -> pa.Table:
    return pq.read_table(samples / "data/R2E-Gym-Subset/data/train-00000-of-00001.parquet")


@pytest.fixture(params=["sqlparse", "tomlkit", "xmltodict"])
def row(request: pytest.FixtureRequest, table: pa.Table) -> dict[str, Any]:
    return next(row for row in table.to_pylist() if row["repo_name"] == request.param)


@pytest.fixture(params=["baked", "scripted"])
def swebench_row(request: pytest.FixtureRequest, samples: Path) -> dict[str, Any]:
    """Of the same task: the row whose image bakes the eval script, the row that carries it."""
    table = pq.read_table(samples / "data/SWE-Bench-Verified/data/test-00000-of-00001.parquet")
    assert {field.name: str(field.type) for field in table.schema} == dict.fromkeys(SWEBENCH_COLUMNS, "string")
    rows = dict(zip(("baked", "scripted"), table.to_pylist(), strict=True))
    return rows[request.param]


def in_image(samples: Path, row: dict[str, Any], script: str, overlay: Path, stdin: str = "") -> str:
    image = image_of(row) if "instance_id" in row else row["docker_image"]
    sif = samples / "sifs" / (image.replace("/", "__").replace(":", "__") + ".sif")
    argv = ["apptainer", "--silent", "exec", "--contain", "--cleanenv", "--no-home", "--no-mount", "tmp", "--no-privs"]
    argv += ["--overlay", str(overlay), "--pwd", "/testbed", str(sif), "bash", "-c", script]
    done = subprocess.run(argv, input=stdin.encode(), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_rows_are_in_r2e_form_and_true_to_their_own_logs(table: pa.Table, row: dict[str, Any]) -> None:
    assert {field.name: str(field.type) for field in table.schema} == COLUMNS
    assert table.column_names == list(COLUMNS)

    runs = json.loads(row["execution_result_content"])
    expected = json.loads(row["expected_output_json"])
    before = parse_log(runs["old_commit_res_stdout"])
    assert parse_log(runs["new_commit_res_stdout"]) == expected
    assert set(expected.values()) == {"PASSED"}
    assert before.keys() == expected.keys()
    assert set(before.values()) == {"PASSED", "FAILED"}
    assert (runs["old_commit_res_code"], runs["new_commit_res_code"]) == (1, 0)

    assert row["docker_image"].endswith(f"/{row['repo_name']}_final:{row['commit_hash']}")
    assert json.loads(row["parsed_commit_content"])["new_commit_hash"] == row["commit_hash"]
    assert row["relevant_files"]
    assert set(row["relevant_files"]) <= set(row["modified_files"])
    assert row["problem_statement"].startswith("[ISSUE]")
    assert row["problem_statement"].endswith("[/ISSUE]")
    if row["repo_name"] == "sqlparse":
        assert before["test_parse_order[ASC NULLS FIRST]"] == "FAILED"
        assert any(" - " in key for key in expected)


def test_image_knows_the_buggy_release_and_nothing_of_the_fix(
    samples: Path, row: dict[str, Any], tmp_path: Path
) -> None:
    parsed = json.loads(row["parsed_commit_content"])
    fixed_blobs = " ".join(diff["index_line"]["new_commit_hash"] for diff in parsed["file_diffs"])
    script = f"""
        git rev-parse HEAD
        git status --porcelain
        git rev-list --all --reflog --count
        git for-each-ref --format='%(refname)'
        git fsck --unreachable --no-progress
        for object in {row["commit_hash"]} {fixed_blobs}; do
            if git cat-file -e "$object" 2>/dev/null; then echo "has $object"; fi
        done
    """
    known = in_image(samples, row, script, tmp_path)
    assert known.split("\n") == [parsed["old_commit_hash"], "1", "refs/heads/main", ""]

    layout = in_image(
        samples,
        row,
        f"""
        echo $VIRTUAL_ENV $(command -v python)
        cat run_tests.sh; echo
        cd /; python -c 'import {row["repo_name"]} as project; print(project.__file__)'
        """,
        tmp_path,
    )
    environment, run_tests, module = layout.splitlines()
    assert environment == "/testbed/.venv /testbed/.venv/bin/python"
    assert run_tests == (
        "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' .venv/bin/python -W ignore -m pytest -rA r2e_tests"
    )
    assert module.startswith(f"/testbed/{row['repo_name']}")


def test_gold_diff_turns_the_image_into_the_fixed_release(samples: Path, row: dict[str, Any], tmp_path: Path) -> None:
    parsed = json.loads(row["parsed_commit_content"])
    in_image(samples, row, "git apply -", tmp_path, rebuild_diff(parsed))
    for diff in parsed["file_diffs"]:
        path = diff["header"]["file"]["path"]
        assert in_image(samples, row, f"git show HEAD:{path}", tmp_path) == diff["old_file_content"]
        assert in_image(samples, row, f"cat {path}", tmp_path) == diff["new_file_content"]
    log = in_image(samples, row, "ln -s /r2e_tests r2e_tests && bash run_tests.sh", tmp_path)
    assert parse_log(log) == json.loads(row["expected_output_json"])


def test_swebench_row_and_its_image_have_the_official_form(
    samples: Path, swebench_row: dict[str, Any], tmp_path: Path
) -> None:
    row = swebench_row
    number = 1001 if row["docker_image"] else 1002
    assert (row["repo"], row["instance_id"]) == (
        "marshmallow-code/marshmallow",
        f"marshmallow-code__marshmallow-{number}",
    )
    assert (row["docker_image"] is None) != (row["eval_script"] is None)
    assert (
        image_of(row)
        == {
            1001: "swe-rollout-samples/swebench-verified:sweb.eval.x86_64.marshmallow-code__marshmallow-1001",
            1002: "swebench/sweb.eval.x86_64.marshmallow-code_1776_marshmallow-1002:latest",
        }[number]
    )
    baked = in_image(samples, row, "cat /run_tests.sh 2>/dev/null || true", tmp_path)
    assert (baked or row["eval_script"]).startswith(
        "#!/bin/bash\nset -uxo pipefail\nsource /opt/miniconda3/bin/activate\n"
    )
    assert bool(baked) == (number == 1001)
    assert row["test_patch"] in (baked or row["eval_script"])

    blobs = re.findall(r"(?m)^index .*[.][.](\S+)", row["patch"] + row["test_patch"])
    script = f"""
        command -v python
        git rev-parse HEAD^
        git log -1 --format=%s
        git diff --stat HEAD^
        git status --porcelain
        git rev-list --all --reflog --count
        git fsck --unreachable --no-progress
        for blob in {" ".join(blobs)}; do
            if git cat-file -e $blob 2>/dev/null; then echo "has $blob"; fi
        done
        ls -d .venv 2>/dev/null
        cat /root/.bashrc
        source /opt/miniconda3/bin/activate && conda activate testbed
        cd / && python -c 'import sys, marshmallow; print(sys.prefix, marshmallow.__file__)'
    """
    assert in_image(samples, row, script, tmp_path).splitlines() == [
        "/opt/miniconda3/bin/python",
        row["base_commit"],
        "SWE-bench",
        "2",
        "source /opt/miniconda3/etc/profile.d/conda.sh && conda activate testbed",
        "/opt/miniconda3/envs/testbed /testbed/src/marshmallow/__init__.py",
    ]


def test_swebench_gold_patch_makes_the_named_tests_pass(
    samples: Path, swebench_row: dict[str, Any], tmp_path: Path
) -> None:
    row = swebench_row
    fail_to_pass, pass_to_pass = (json.loads(row[name]) for name in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    assert len(fail_to_pass) == 5
    assert re.findall(r"(?m)^diff --git a/(\S+)", row["patch"]) == ["src/marshmallow/validate.py"]
    assert re.findall(r"(?m)^diff --git a/(\S+)", row["test_patch"]) == ["tests/test_validate.py"]
    # As in the real data: the harness' parser ends a name at its first blank.
    assert any(name.count("[") > name.count("]") for name in pass_to_pass)

    script = f"""
        source /root/.bashrc
        git apply -
        pytest -rA tests/test_validate.py
        echo AFTER
        git apply <<'END'\n{row["patch"]}END
        pytest -rA tests/test_validate.py
    """
    log = in_image(samples, row, script, tmp_path, row["test_patch"])
    before, after = (
        dict(reversed(line.split()[:2]) for line in part.splitlines() if line.startswith(("PASSED", "FAILED")))
        for part in log.split("AFTER\n")
    )
    assert before == {**dict.fromkeys(fail_to_pass, "FAILED"), **dict.fromkeys(pass_to_pass, "PASSED")}
    assert after == dict.fromkeys(before, "PASSED")


def test_second_build_does_nothing_and_a_missing_file_is_noticed(samples: Path, tmp_path: Path) -> None:
    copy = tmp_path / "samples"
    shutil.copytree(samples, copy, ignore=shutil.ignore_patterns(".staging-*"))
    # Without programs on PATH a build cannot even start, so this shows whether one was wanted.
    environment = {**os.environ, "PATH": "/nowhere"}
    build = [sys.executable, "-X", "importtime", "-m", "data.build", "--cache", str(tmp_path)]
    done = subprocess.run(build, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"samples are up to date in {copy}\n")
    assert not {"pyarrow", "yaml", "data.samples"} & {line.split("|")[-1].strip() for line in done.stderr.splitlines()}

    next((copy / "sifs").glob("*tomlkit*.sif")).unlink()
    done = subprocess.run(
        build[:1] + build[3:], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "samples: the sample images need `git`, which is not on PATH: install git\n"


def test_an_interrupted_build_leaves_nothing_to_be_taken_as_done(tmp_path: Path) -> None:
    build = subprocess.Popen([*BUILD, "--cache", str(tmp_path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert build.stdout
    for line in build.stdout:
        if "building the Debian root" in line:
            build.send_signal(signal.SIGTERM)
            break
    assert build.wait(60) == 130
    build.stdout.close()
    assert [path.name for path in (tmp_path / "samples").iterdir()] == [".lock"]


def test_rebuilt_diff_is_the_one_git_makes(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "changed.py").write_text("import os\n\n\ndef f():\n    return 1\n" + "\n" * 9 + "x = 1\n")
    (tmp_path / "gone.py").write_text("class Gone:\n    pass\n")
    (tmp_path / "tool.py").write_text("print()")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "old")
    (tmp_path / "changed.py").write_text("import os\n\n\ndef f():\n    return '@@ -1 +1 @@'\n" + "\n" * 9 + "x = 2\r\n")
    (tmp_path / "gone.py").unlink()
    (tmp_path / "tool.py").chmod(0o755)
    (tmp_path / "tool.py").write_text("print(1)\n-- 2")
    (tmp_path / "new.py").write_text("class New:\n    def g(self):\n        pass\n")
    (tmp_path / "empty.py").touch()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "new")

    parsed = parse_commit(tmp_path, "HEAD~1", "HEAD")

    assert rebuild_diff(parsed) == git(tmp_path, "diff", "--no-renames", "HEAD~1", "HEAD")
    by_path = {diff["header"]["file"]["path"]: diff["hunks"] for diff in parsed["file_diffs"]}
    assert [entity["name"] for entity in by_path["changed.py"][0]["modified_entities"]] == ["f"]
    assert [entity["name"] for entity in by_path["new.py"][0]["added_entities"]] == ["New", "New.g"]
    assert [entity["name"] for entity in by_path["gone.py"][0]["deleted_entities"]] == ["Gone"]


def test_log_keys_keep_whole_ids_and_lose_reasons() -> None:
    log = """\
=========================== short test summary info ============================
PASSED r2e_tests/test_1.py::test_printed_by_a_test
=========================== short test summary info ============================
PASSED r2e_tests/test_1.py::TestA::test_op[a - b]
\x1b[31mFAILED\x1b[0m r2e_tests/test_1.py::test_op[c - d::int] - assert [1] == [2 - 1]\r
FAILED r2e_tests/test_2.py::test_PASSED_flag - got ERROR
ERROR r2e_tests/test_2.py::test_setup - fixture missing
SKIPPED [1] r2e_tests/test_1.py:3: PASSED elsewhere
XFAIL r2e_tests/test_1.py::test_known - ERROR
==================== 2 failed, 1 passed in 0.10s =====================
"""
    assert parse_log(log) == {
        "TestA.test_op[a - b]": "PASSED",
        "test_op[c - d.int]": "FAILED",
        "test_PASSED_flag": "FAILED",
        "test_setup": "ERROR",
    }
    assert parse_log("ImportError while loading conftest") == {}
