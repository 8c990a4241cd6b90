"""A sample task as rows of a SWE-bench data set, in two forms.

The form of R2E-Gym's SWE-Bench-Verified names its image, which bakes the eval script as /run_tests.sh. The form of
the data sets for swebench 5 carries the eval script, and the image follows from the instance's id. Both have the
columns of SWE-bench Verified.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data.sources import SWEBenchTask

Row = dict[str, Any]

SCHEMA = pa.schema(
    [
        (name, pa.string())
        for name in (
            "repo",
            "instance_id",
            "base_commit",
            "patch",
            "test_patch",
            "problem_statement",
            "hints_text",
            "created_at",
            "version",
            "FAIL_TO_PASS",
            "PASS_TO_PASS",
            "environment_setup_commit",
            "docker_image",
            "eval_script",
        )
    ]
)
"""SWE-bench Verified's 12 columns of old, and two of which each row has one."""

# As swebench 4.1.0 wrote them, without installing the project again: that would need a network.
_EVAL_SCRIPT = """\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git config --global --add safe.directory /testbed
cd /testbed
git status
git show
git -c core.fileMode=false diff {base}
source /opt/miniconda3/bin/activate
conda activate testbed
git checkout {base} {tests}
git apply -v - <<'EOF_114329324912'
{test_patch}
EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA {tests}
: '>>>>> End Test Output'
git checkout {base} {tests}
"""


def eval_script(task: SWEBenchTask, base: str, test_patch: str) -> str:
    """The script that tests whatever is in /testbed; `base` is the hash of the base commit."""
    return _EVAL_SCRIPT.format(base=base, tests=" ".join(task.tests), test_patch=test_patch)


def baked_row(task: SWEBenchTask, number: int, base: str, patch: str, test_patch: str) -> Row:
    """A row in R2E form: it names its image, which holds the eval script."""
    row = _row(task, number, base, patch, test_patch)
    # R2E-Gym's images are named alike.
    return {**row, "docker_image": f"swe-rollout-samples/swebench-verified:sweb.eval.x86_64.{row['instance_id']}"}


def scripted_row(task: SWEBenchTask, number: int, base: str, patch: str, test_patch: str) -> Row:
    """A row that carries its eval script."""
    return {**_row(task, number, base, patch, test_patch), "eval_script": eval_script(task, base, test_patch)}


def image_of(row: Row) -> str:
    """The image that the row names, or the one that swebench's rule gives to its id."""
    official = f"swebench/sweb.eval.x86_64.{row['instance_id']}:latest".lower().replace("__", "_1776_")
    return row["docker_image"] or official


def write_parquet(rows: list[Row], file: Path) -> None:
    """Write the rows with SWE-bench's columns, all of them texts."""
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file)


def _row(task: SWEBenchTask, number: int, base: str, patch: str, test_patch: str) -> Row:
    """What both forms have; the lists of tests only a run of them can tell."""
    return {
        "repo": task.repo,
        "instance_id": f"{task.repo.replace('/', '__')}-{number}",
        "base_commit": base,
        "patch": patch,
        "test_patch": test_patch,
        "problem_statement": task.problem_statement,
        "hints_text": "",
        "created_at": task.created_at,
        "version": task.version,
        "environment_setup_commit": base,
        "docker_image": None,
        "eval_script": None,
    }
