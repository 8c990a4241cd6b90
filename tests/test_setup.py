"""What a person meets first: `make setup`, the scripts at the top of the checkout, their messages."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def _run(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    # Flags of a `make test` around this would be taken over by the make in here.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        command, cwd=ROOT, env=environment | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with nothing but what the scripts need to say that everything else is missing."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("bash", "dirname"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return str(folder)


def test_a_second_setup_does_nothing() -> None:
    assert _run("make", "setup").returncode == 0
    environment = ROOT / ".venv"
    installed = "lib/python*/site-packages/*.dist-info"
    before = {path: path.stat().st_mtime_ns for path in environment.glob(installed)}

    again = _run("make", "setup")

    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    (line,) = again.stdout.splitlines()
    assert line.startswith("setup: ready: ")
    assert before == {
        path: path.stat().st_mtime_ns for path in environment.glob("lib/python*/site-packages/*.dist-info")
    }


def test_setup_names_a_python_that_cannot_be_used() -> None:
    result = _run("make", "setup", "PYTHON=/nowhere/python3")

    assert result.returncode != 0
    assert "/nowhere/python3 is not a Python 3.10 or newer" in result.stderr


@pytest.mark.parametrize(
    ("script", "variables", "commands", "then"),
    [
        (
            "run_mini_swe_agent.sh",
            ["MINI_SWE_AGENT_VENV", "MODEL_DIR", "SAVE_DIR", "R2E_DATA_PATH", "R2E_SIF_DIR"],
            ["apptainer", "curl", "jq", "ray"],
            " is not a Relax checkout: it has no scripts/entrypoint/local.sh",
        ),
        (
            "setup_r2e_data_and_sifs.sh",
            ["MINI_SWE_AGENT_VENV", "R2E_DATA_PATH", "R2E_SIF_DIR"],
            ["hf", "duckdb", "jq", "apptainer"],
            " is not a virtual environment: it has no bin/python",
        ),
    ],
)
def test_all_that_a_script_misses_is_told_at_once(
    script: str, variables: list[str], commands: list[str], then: str, bare_path: str, tmp_path: Path
) -> None:
    nothing = _run("bash", script, PATH=bare_path, **dict.fromkeys(variables, ""))

    assert nothing.returncode == 1
    missing = [f"the variable {name}" for name in variables] + [f"the command {name}" for name in commands]
    first, *advice = nothing.stderr.splitlines()
    assert first == f"{script}: missing: {', '.join(missing)}"
    # How to get each, from the one script that is run before anything is there.
    told = [line.strip().partition(": ")[0] for line in advice]
    assert told == (variables + commands if script.startswith("setup") else [])

    for name in commands:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    everything = f"{tmp_path}:{os.environ['PATH']}"
    complete = _run("bash", script, PATH=everything, RELAX_DIR="", **dict.fromkeys(variables, "/somewhere"))

    assert complete.returncode == 1
    (line,) = complete.stderr.splitlines()
    assert line.startswith(f"{script}: ")
    assert then in line


def test_what_is_no_venv_is_told_before_what_it_would_bring(bare_path: str) -> None:
    script = "setup_r2e_data_and_sifs.sh"
    folders = {"R2E_DATA_PATH": "/nowhere", "R2E_SIF_DIR": "/nowhere"}
    result = _run("bash", script, PATH=bare_path, MINI_SWE_AGENT_VENV="/somewhere", **folders)
    assert result.returncode == 1
    told = "MINI_SWE_AGENT_VENV=/somewhere is not a virtual environment: it has no bin/python"
    assert result.stderr == f"{script}: {told}\n"


def test_every_script_is_clean() -> None:
    scripts = _run("find", ".", "-name", "*.sh", "-not", "-path", "./.*").stdout.split()

    result = _run("shellcheck", ".ci/run", *scripts)

    assert result.returncode == 0, result.stdout
