"""What swebench's own grading says of a row: its lists of tests, and that its patch solves it."""

import json
from pathlib import Path
from typing import Any

from swebench.harness.grading import get_eval_report, get_logs_eval
from swebench.harness.log_parsers.python import MAP_REPO_TO_PARSER_PY
from swebench.harness.utils import make_test_spec

from data.commands import BuildError
from data.image import run_in_image, said_last
from data.swebench_rows import Row, image_of

_PASSING = ("PASSED", "XFAIL")


def measured(row: Row, sif: Path, scratch: Path) -> Row:
    """`row` with the tests it names, by running the eval script in its image without and with its patch.

    Raises BuildError unless the harness then finds the row unsolved without its patch and solved with it.
    """
    before = _run(row, sif, scratch, "")
    after = _run(row, sif, scratch, row["patch"])
    passing_before, passing_after = (_passing(row, log) for log in (before, after))
    complete = {
        **row,
        "FAIL_TO_PASS": json.dumps(sorted(passing_after - passing_before)),
        "PASS_TO_PASS": json.dumps(sorted(passing_after & passing_before)),
    }
    if passing_before < passing_after and passing_before:
        if not _is_resolved(complete, before) and _is_resolved(complete, after):
            return complete
        problem = "the harness does not find it unsolved before the fix and solved after it"
    else:
        problem = f"{len(passing_before)} tests pass before the fix and {len(passing_after)} after it"
    raise BuildError(f"{row['instance_id']}: {problem}; choose other `tests` in data/tasks/swebench")


def _run(row: Row, sif: Path, scratch: Path, patch: str) -> Path:
    """The log of the eval script after `patch`."""
    script = scratch / "eval.sh"
    script.write_text(_spec(row).eval_script, "utf-8")
    inside = "/eval.sh" if row["eval_script"] else "/run_tests.sh"
    # The markers come on stderr, the results on stdout: only in one stream they are in order.
    run = f"{{ {'git apply -' if patch else 'true'}; }} || exit 9; exec bash {inside} </dev/null 2>&1"
    done = run_in_image(sif, run, scratch, binds={script: "/eval.sh"}, stdin=patch)
    if done.returncode != 0:
        raise BuildError(
            f"the eval script of {row['instance_id']} ended with {done.returncode}, saying: {said_last(done)}; "
            "check that `apptainer exec` works here, then the task's file in data/tasks/swebench"
        )
    log = scratch / ("after.log" if patch else "before.log")
    log.write_bytes(done.stdout)
    return log


def _passing(row: Row, log: Path) -> set[str]:
    statuses, _ = get_logs_eval(_spec(row), str(log))
    return {name for name, status in statuses.items() if status in _PASSING}


def _is_resolved(row: Row, log: Path) -> bool:
    prediction = {"instance_id": row["instance_id"], "model_patch": row["patch"]}
    report = get_eval_report(_spec(row), prediction, str(log), True)
    return bool(report[row["instance_id"]]["resolved"])


def _spec(row: Row) -> Any:
    """The row as the harness takes it. Without lists of tests yet they are empty."""
    more = {
        "image": image_of(row),
        "log_parser": MAP_REPO_TO_PARSER_PY[row["repo"]].__name__,
        "eval_type": "pass_and_fail",
        "eval_script": row["eval_script"] or "",
    }
    return make_test_spec({"FAIL_TO_PASS": "[]", "PASS_TO_PASS": "[]", **row, **more})
