"""Runs of the real setup script, and the small data that they fetch."""

import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "setup_r2e_data_and_sifs.sh"
TOKEN = "hf_aTokenThatNobodyMayRead"


def r2e_rows(repo: str, numbers: Sequence[int]) -> list[dict[str, object]]:
    """Rows in R2E form; each has an image of its own."""
    commits = [hashlib.sha1(f"{repo}{number}".encode()).hexdigest() for number in numbers]
    return [
        {
            "repo_name": repo,
            "docker_image": f"tests/{repo}_final:{commit}",
            "commit_hash": commit,
            "problem_statement": "[ISSUE]It is broken.[/ISSUE]",
            "expected_output_json": json.dumps({"test_it": "PASSED"}),
            # As a real row, whose other columns nobody reads: too large and too varied to be packed.
            "prompt": os.urandom(20_000).hex(),
        }
        for commit in commits
    ]


def swe_bench_rows(repo: str, numbers: Sequence[int]) -> list[dict[str, object]]:
    """Rows in SWE-bench form, whose images go by the official rule."""
    return [
        {
            "instance_id": f"{repo.replace('/', '__')}-{number}",
            "repo": repo,
            "version": "1.0",
            "base_commit": "0" * 40,
            "problem_statement": "It is broken.",
            "FAIL_TO_PASS": '["test_it"]',
            "PASS_TO_PASS": "[]",
        }
        for number in numbers
    ]


def parquet(rows: Sequence[dict[str, object]], schema: pa.Schema | None = None) -> bytes:
    """The rows as a file."""
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows), schema), buffer)
    return buffer.getvalue()


def tiny_wheel(folder: Path) -> Path:
    """A wheel of a package named tiny, in the new `folder`."""
    folder.mkdir()
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", "VALUE = 1\n")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr("tiny-1.0.dist-info/WHEEL", tags)
        wheel.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    return path


class SetupScript:
    """The script as a user runs it, below `folder` and with the data and SIF folders given relative to it.

    Wheels come from a folder on this machine, so that only the hub and the registry are asked for anything.
    """

    def __init__(self, folder: Path, endpoint: str, **variables: str) -> None:
        self.folder = folder
        self.data, self.sifs = folder / "my data", folder / "sifs"
        wheel = tiny_wheel(folder / "index")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        (folder / "wanted.txt").write_text(f"tiny==1.0 --hash=sha256:{digest}\n")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("R2E_", "PIP_", "HF_"))},
            "MINI_SWE_AGENT_VENV": sys.prefix,
            "R2E_DATA_PATH": self.data.name,
            "R2E_SIF_DIR": self.sifs.name,
            "R2E_WHEELS_REQUIREMENTS": "wanted.txt",
            "R2E_SETUP_FIRST_PAUSE": "0.2",
            "R2E_SETUP_MIN_FREE_GB": "0",
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(wheel.parent),
            "PIP_CONFIG_FILE": "/dev/null",
            "HF_ENDPOINT": endpoint,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(folder / "hf-home"),
            "no_proxy": "127.0.0.1,localhost",
            **variables,
        }

    def start(self, *flags: str, **variables: str) -> "subprocess.Popen[str]":
        """Both streams come as one."""
        return subprocess.Popen(
            # Ends with the tests, however they end.
            ["setpriv", "--pdeathsig=TERM", "bash", SCRIPT, *flags],
            cwd=self.folder,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *flags: str, **variables: str) -> tuple[int, str]:
        """Exit code, and what people read."""
        process = self.start(*flags, **variables)
        said, _ = process.communicate(timeout=200)
        return process.returncode, said
