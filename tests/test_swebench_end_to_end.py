"""Whole evaluation sessions on the sample task in SWE-bench form, in both forms of its row."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import REPOSITORY, Server, served

WRITE_PATCH = "git add -A && git diff --cached > /tmp/patch.txt"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat /tmp/patch.txt"

# In the code under test, where no list of protected files reaches it.
SKIP_IN_SOURCE = r"""
sed -i 's/^    def __call__(self, value: str) -> str:$/&\n        import pytest\n\n        pytest.skip("later")/' \
    src/marshmallow/validate.py
git diff --stat && grep -c 'pytest.skip("later")' src/marshmallow/validate.py
"""
SKIP_BY_HOOK = """
printf '%s\\n' 'import pytest' 'def pytest_collection_modifyitems(items):' '    for item in items:' \
    '        item.add_marker(pytest.mark.skip)' > conftest.py
"""
SKIP_IN_TEST = "sed -i '1i import pytest; pytest.skip(allow_module_level=True)' tests/test_validate.py"

# Python itself says whether the bytes have come through.
LATIN_1 = r"""
printf '# coding: latin-1\nassert len("caf\xe9") == 4\n' > src/marshmallow/latin.py
echo 'import marshmallow.latin' >> src/marshmallow/validate.py
"""

SURROUNDINGS = """
command -v python pytest; echo "$CONDA_DEFAULT_ENV"
python -c 'import marshmallow; print(marshmallow.__file__)'
/opt/miniconda3/bin/python -c 'import marshmallow' 2>&1 | tail -n 1
"""
BREAK = "python3 -c 'import resource as r; r.prlimit(1, r.RLIMIT_NOFILE, (64, 64))'"
BREAK_AT_PATCH = f"""
printf '%s\\n' '#!/bin/bash' {shlex.quote(f"[[ $1 != apply ]] || {BREAK}")} 'exec /usr/bin/git "$@"' >/usr/local/bin/git
chmod +x /usr/local/bin/git
"""
HIDDEN = """
ls /run_tests.sh; find / -xdev -name 'run_tests*' -o -xdev -name 'eval.sh'
grep -rlF '%0''G@example' / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev; echo nothing else
"""


@pytest.fixture(scope="module", params=["marshmallow-code__marshmallow-1001", "marshmallow-code__marshmallow-1002"])
def server(request: pytest.FixtureRequest, samples: Path, open_folder: Callable[[], Path]) -> Iterator[Server]:
    """The first row's image bakes its eval script, the second row carries it."""
    yield from served(samples, open_folder(), instance=request.param)


def test_rewards(server: Server, samples: Path, open_folder: Callable[[], Path]) -> None:
    def play(name: str) -> tuple[float, str, list[str]]:
        view = server.play(name, [changes[name], WRITE_PATCH, SUBMIT])
        assert (view["status"], view["exit_code"], view["task_id"]) == ("completed", 0, server.row["instance_id"])
        sessions[name] = view["session_id"]
        outcome = json.loads(server.written(view["session_id"], "outcome.json"))
        return view["reward"], outcome["grading_status"], outcome["withdrawn"]

    sessions: dict[str, str] = {}
    changes = {
        "gold": server.gold,
        "bytes that are no text": f"{server.gold}\n{LATIN_1}",
        "nothing": "true",
        "skip in source": SKIP_IN_SOURCE,
        "skip by hook": SKIP_BY_HOOK,
        "skip in test": SKIP_IN_TEST,
    }
    with ThreadPoolExecutor(2) as threads:
        results = dict(zip(changes, threads.map(play, changes), strict=True))
    assert results == {
        "gold": (1.0, "graded", []),
        "bytes that are no text": (1.0, "graded", []),
        "nothing": (0.0, "no_change", []),
        "skip in source": (0.0, "graded", []),
        "skip by hook": (0.0, "no_change", ["conftest.py"]),
        "skip in test": (0.0, "no_change", ["tests/test_validate.py"]),
    }
    log = server.written(sessions["skip in source"], "test_log.txt")
    assert ": later" in log, log

    latin = sessions["bytes that are no text"]
    assert b'+assert len("caf\xe9") == 4\n' in (server.folder(latin) / "patch.diff").read_bytes()
    assert '+assert len("caf\ufffd") == 4\n' in json.loads(server.written(latin, "outcome.json"))["submission"]
    kept = [sessions[name] for name in ("gold", "bytes that are no text", "nothing")]
    assert "3 sessions: 3 as before" in rescored(server, samples, open_folder(), kept)
    # A sandbox that breaks before the patch is there says nothing of it; one that breaks at it is its doing.
    for broken, told in (
        (BREAK, "0 as before, 0 changed, 1 could not be judged"),
        (BREAK_AT_PATCH, "0 as before, 1 changed, 0 could not be judged"),
    ):
        assert told in rescored(server, samples, open_folder(), kept[:1], "--config", f"setup.script={broken}")


def rescored(server: Server, samples: Path, folder: Path, sessions: Sequence[str], *flags: str) -> str:
    """What `rescore` says about these sessions."""
    settings = {
        "R2E_DATA_PATH": str(server.work.parent / "data"),
        "R2E_SIF_DIR": str(samples / "sifs"),
        "AGENT_SERVER_TMP_DIR": str(folder / "tmp"),
        "AGENT_SERVER_WORK_DIR": str(folder / "work"),
    }
    command = [sys.executable, "agent_server.py", "rescore", *flags, *map(server.folder, sessions)]
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_the_agent_has_the_testbed_and_not_the_tests(server: Server) -> None:
    view = server.play("look", [SURROUNDINGS, HIDDEN, server.gold, WRITE_PATCH, SUBMIT])
    assert view["reward"] == 1.0
    testbed = "/opt/miniconda3/envs/testbed/bin"
    seen = [message["content"] for message in server.endpoint.requests["sk-look"][-1]["messages"][3::2]]
    lines = [f"{testbed}/python", f"{testbed}/pytest", "testbed", "/testbed/src/marshmallow/__init__.py"]
    assert "\n".join([*lines, "ModuleNotFoundError: No module named 'marshmallow'"]) in seen[0]
    assert "<output>\nls: cannot access '/run_tests.sh': No such file or directory\nnothing else\n</output>" in seen[1]

    log = server.written(view["session_id"], "test_log.txt")
    assert ">>>>> Start Test Output" in log
    assert "PASSED tests/test_validate.py::test_url_absolute_valid[http://:pass@example.com]" in log
    tests = json.loads(server.written(view["session_id"], "outcome.json"))["tests"]
    for name in json.loads(server.row["FAIL_TO_PASS"]):
        assert tests[name] == "PASSED"
