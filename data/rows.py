"""A sample task as a row of an R2E-Gym data set, every claim in it checked by running the tests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data.commands import BuildError
from data.parsed_commit import changed_lines, touched_entities
from data.parsed_diff import Json, rebuild_diff
from data.r2e_image import HiddenTests
from data.results import parse_log
from data.sources import R2ETask

SCHEMA = pa.schema(
    [
        ("repo_name", pa.string()),
        ("docker_image", pa.string()),
        ("commit_hash", pa.string()),
        ("parsed_commit_content", pa.string()),
        ("execution_result_content", pa.string()),
        ("modified_files", pa.list_(pa.string())),
        (
            "modified_entity_summaries",
            pa.list_(
                pa.struct(
                    [
                        ("ast_type_str", pa.string()),
                        ("end_lineno", pa.int64()),
                        ("file_name", pa.string()),
                        ("name", pa.string()),
                        ("start_lineno", pa.int64()),
                        ("type", pa.string()),
                    ]
                )
            ),
        ),
        ("relevant_files", pa.list_(pa.string())),
        ("num_non_test_files", pa.int64()),
        ("num_non_test_func_methods", pa.int64()),
        ("num_non_test_lines", pa.int64()),
        ("prompt", pa.string()),
        ("problem_statement", pa.string()),
        ("expected_output_json", pa.string()),
    ]
)
"""R2E-Gym's 14 columns."""

_PROMPT = "(none: the problem statement was written by hand from the difference between the two releases)"


@dataclass(frozen=True)
class Runs:
    """What the hidden tests said before and after the fix, and which files of the fix they need."""

    before: "CompletedProcess[bytes]"
    after: "CompletedProcess[bytes]"
    relevant_files: list[str]

    @property
    def expected(self) -> dict[str, str]:
        return parse_log(self.after.stdout.decode())

    @property
    def mended(self) -> list[str]:
        """Keys of the tests that the fix makes pass."""
        before = parse_log(self.before.stdout.decode())
        return [key for key, status in self.expected.items() if status == "PASSED" and before[key] != "PASSED"]


def run_tests(task: R2ETask, tests: HiddenTests, parsed: Json) -> Runs:
    """Run the hidden tests on the buggy sources, on the fixed ones, and on parts of the gold diff.

    Raises BuildError unless the results make a valid task: a fix that changes only failures to passes,
    and a gold diff that has exactly the fix's effect.
    """
    before = tests.run()
    after = tests.run("git fetch -q /fixed main && git checkout -q --detach FETCH_HEAD")
    paths = [diff["header"]["file"]["path"] for diff in parsed["file_diffs"]]
    check_fix(task.project, parse_log(before.stdout.decode()), parse_log(after.stdout.decode()))
    runs = Runs(before, after, [path for path in paths if not _is_mended_without(path, tests, parsed, after)])
    gold = tests.run("git apply -", rebuild_diff(parsed))
    if parse_log(gold.stdout.decode()) != runs.expected:
        raise BuildError(
            f"{task.project}: the tests answer otherwise to the gold diff than to the fixed sources; "
            "check `sources` in the task's file in data/tasks"
        )
    return runs


def check_fix(project: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise BuildError unless the fix breaks no test, mends one or more, and all pass in the end."""
    passed_before = {key for key, status in before.items() if status == "PASSED"}
    passed_after = {key for key, status in after.items() if status == "PASSED"}
    if not after or before.keys() != after.keys():
        problem = f"the tests before ({len(before)}) and after the fix ({len(after)}) are not the same"
    elif not passed_before <= passed_after:
        problem = "the fix breaks a test"
    elif passed_before == passed_after:
        problem = "the fix mends no test"
    elif passed_after != after.keys():
        problem = f"{', '.join(sorted(after.keys() - passed_after))} fails even with the fix"
    else:
        return
    raise BuildError(f"{project}: {problem}; choose other `tests` in the task's file in data/tasks")


def make_row(task: R2ETask, image: str, parsed: Json, tests: Path, runs: Runs) -> dict[str, Any]:
    """The row of a task; `tests` is the folder of its hidden tests."""
    entities = touched_entities(parsed)
    paths = [diff["header"]["file"]["path"] for diff in parsed["file_diffs"]]
    names = [f"test_{number}.py" for number in range(1, len(task.tests) + 1)]
    execution = {
        "repo_name": task.project,
        "new_commit_hash": parsed["new_commit_hash"],
        "test_file_codes": [(tests / name).read_text("utf-8") for name in names],
        "test_file_names": names,
        # Nothing is set up before the tests.
        "setup_res_code": 0,
        "setup_res_stdout": "",
        "setup_res_stderr": "",
        **_result("new_commit", runs.after),
        **_result("old_commit", runs.before),
    }
    return {
        "repo_name": task.project,
        "docker_image": image,
        "commit_hash": parsed["new_commit_hash"],
        "parsed_commit_content": json.dumps(parsed, indent=4),
        "execution_result_content": json.dumps(execution, indent=4),
        "modified_files": paths,
        "modified_entity_summaries": entities,
        "relevant_files": runs.relevant_files,
        "num_non_test_files": len(paths),
        "num_non_test_func_methods": sum(entity["type"] == "function" for entity in entities),
        "num_non_test_lines": changed_lines(parsed),
        "prompt": _PROMPT,
        "problem_statement": task.problem_statement,
        "expected_output_json": json.dumps(runs.expected, indent=4),
    }


def write_parquet(rows: list[dict[str, Any]], file: Path) -> None:
    """Write the rows with R2E-Gym's columns and types."""
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file)


def _is_mended_without(path: str, tests: HiddenTests, parsed: Json, after: "CompletedProcess[bytes]") -> bool:
    others = [diff for diff in parsed["file_diffs"] if diff["header"]["file"]["path"] != path]
    if not others:
        return False
    done = tests.run("git apply -", rebuild_diff({**parsed, "file_diffs": others}))
    return parse_log(done.stdout.decode()) == parse_log(after.stdout.decode())


def _result(prefix: str, done: "CompletedProcess[bytes]") -> dict[str, Any]:
    return {
        f"{prefix}_res_code": done.returncode,
        f"{prefix}_res_stdout": done.stdout.decode(),
        f"{prefix}_res_stderr": done.stderr.decode(),
    }
