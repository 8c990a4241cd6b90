"""What a row in SWE-bench form says about its tests. Grading is the harness' own business (`harness.py`)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from swe_rollout.scoring.paths import paths_of

SWEBENCH_COLUMNS = (
    *("instance_id", "repo", "version", "base_commit", "FAIL_TO_PASS", "PASS_TO_PASS", "docker_image"),
    *("log_parser", "eval_type", "eval_script", "patch", "test_patch"),
)
"""What `parse_tests` looks at. Of the two patches only the paths are kept."""

BAKED_SCRIPT = "/run_tests.sh"
"""Where images of rows in R2E form keep their eval script."""
_OFFICIAL_IMAGE = re.compile(r"(?:docker\.io/)?swebench/sweb\.eval\.")
"""The harness' own images, which bake none: it brings the row's."""
START_MARKER = ">>>>> Start Test Output"
END_MARKER = ">>>>> End Test Output"
"""Printed by every eval script around its test run (swebench.harness.constants)."""
_EXIT_MARKER = ">>>>> Test Exit Code"
_ECHO = re.compile(r"\s*(?:echo|printf)\b")
_SIGNAL = 128
"""Exit codes above are those of shells that a signal ended."""


@dataclass(frozen=True)
class SWEBenchTests:
    """How a submission to one row is judged."""

    hidden: ClassVar[tuple[str, ...]] = (BAKED_SCRIPT, "/eval.sh")
    """What an agent's sandbox must not hold: the script carries the hidden tests."""

    instance_id: str
    repo: str
    """`owner/name`."""
    version: str
    base_commit: str
    """The commit the image's tree is at; empty if the row does not say."""
    fail_to_pass: tuple[str, ...]
    """Tests that have to pass; never empty."""
    pass_to_pass: tuple[str, ...]
    log_parser: str = ""
    """The name of the harness' parser; empty for the one it has for `repo`."""
    eval_type: str = "pass_and_fail"
    eval_script: str | None = field(default=None, repr=False)
    """Runs the hidden tests; None for an image that bakes one."""
    gold_paths: frozenset[str] = frozenset()
    """Paths the row's own solution touches; empty if the row does not say."""
    test_paths: frozenset[str] = frozenset()
    """Paths of the hidden tests."""


def parse_tests(row: Mapping[str, object]) -> SWEBenchTests:
    """Read the columns of one row that concern its tests.

    Raises `ValueError` with one clear line for a row no submission can be judged by: a required text is missing,
    a list of tests cannot be read, no test has to pass (everything would be paid), or there is no eval script.
    """
    script, image = _text(row, "eval_script"), _text(row, "docker_image")
    if script is None and (image is None or _OFFICIAL_IMAGE.match(image)):
        raise ValueError(
            f"the row carries no eval_script and names no image that bakes {BAKED_SCRIPT}: use"
            " R2E-Gym/SWE-Bench-Verified, or a data set with eval_script"
        )
    if script is not None and not has_markers(script):
        raise ValueError(f"eval_script prints no {START_MARKER!r} and {END_MARKER!r}, so its log cannot be graded")
    fail_to_pass = _tests(row, "FAIL_TO_PASS")
    if not fail_to_pass:
        raise ValueError("FAIL_TO_PASS names no test that has to pass")
    return SWEBenchTests(
        instance_id=_required(row, "instance_id"),
        repo=_required(row, "repo"),
        version=_required(row, "version"),
        base_commit=_text(row, "base_commit") or "",
        fail_to_pass=fail_to_pass,
        pass_to_pass=_tests(row, "PASS_TO_PASS"),
        log_parser=_text(row, "log_parser") or "",
        eval_type=_text(row, "eval_type") or "pass_and_fail",
        eval_script=script,
        gold_paths=paths_of(_text(row, "patch") or ""),
        test_paths=paths_of(_text(row, "test_patch") or ""),
    )


def has_markers(script: str) -> bool:
    """Whether the log of `script` will say where its test run begins and ends."""
    return START_MARKER in script and END_MARKER in script


def doubt(log: str, script: str, exit_code: int) -> str | None:
    """Why `log` cannot be the one of a sound run of `script` that ended with `exit_code`; None if it can.

    The harness believes the first block between the markers and the first exit code that the log holds, and the code
    under test writes into the same log: one more end marker would hide what really happened behind it. A script prints
    each marker once, by `set -x` as it runs the no-op command that holds it; one that it echoes stands there twice, in
    the trace and in the output. The exit code stands behind the end marker, so a log without it is of a run whose
    script was ended early, whatever it shows.
    """
    for marker in (START_MARKER, END_MARKER, _EXIT_MARKER):
        lines = [line for line in script.splitlines() if marker in line]
        most = sum(2 if _ECHO.match(line) else 1 for line in lines)
        n = log.count(marker)
        if n > most:
            return f"the log holds {marker!r} {n} times: something else than the eval script printed it"
        if lines and not n:
            return f"the log holds no {marker!r}"
    if exit_code > _SIGNAL:
        return f"the eval script did not end by itself: exit code {exit_code}"
    return None


def _text(row: Mapping[str, object], column: str) -> str | None:
    value = row.get(column)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{column} is not a text")
    return value if value and value.strip() else None


def _required(row: Mapping[str, object], column: str) -> str:
    value = _text(row, column)
    if value is None:
        raise ValueError(f"{column} is missing or empty")
    return value


def _tests(row: Mapping[str, object], column: str) -> tuple[str, ...]:
    value = row.get(column)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{column} is not JSON: {error}") from error
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"{column} is not a list of test names")
    return tuple(value)
