"""Whole evaluation sessions on the sample task in SWE-bench form, in both forms of its row."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from served import Server, served

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

SURROUNDINGS = """
command -v python pytest; echo "$CONDA_DEFAULT_ENV"
python -c 'import marshmallow; print(marshmallow.__file__)'
/opt/miniconda3/bin/python -c 'import marshmallow' 2>&1 | tail -n 1
"""
HIDDEN = """
ls /run_tests.sh; find / -xdev -name 'run_tests*' -o -xdev -name 'eval.sh'
grep -rlF '%0''G@example' / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev; echo nothing else
"""


@pytest.fixture(scope="module", params=["marshmallow-code__marshmallow-1001", "marshmallow-code__marshmallow-1002"])
def server(request: pytest.FixtureRequest, samples: Path, open_folder: Callable[[], Path]) -> Iterator[Server]:
    """The first row's image bakes its eval script, the second row carries it."""
    yield from served(samples, open_folder(), instance=request.param)


def test_rewards(server: Server) -> None:
    def play(name: str) -> tuple[float, str]:
        view = server.play(name, [changes[name], WRITE_PATCH, SUBMIT])
        assert (view["status"], view["exit_code"], view["task_id"]) == ("completed", 0, server.row["instance_id"])
        sessions[name] = view["session_id"]
        outcome = json.loads(server.written(view["session_id"], "outcome.json"))
        return view["reward"], outcome["grading_status"]

    sessions: dict[str, str] = {}
    changes = {
        "gold": server.gold,
        "nothing": "true",
        "skip in source": SKIP_IN_SOURCE,
        "skip by hook": SKIP_BY_HOOK,
        "skip in test": SKIP_IN_TEST,
    }
    with ThreadPoolExecutor(2) as threads:
        results = dict(zip(changes, threads.map(play, changes), strict=True))
    assert results == {
        "gold": (1.0, "graded"),
        "nothing": (0.0, "no_change"),
        "skip in source": (0.0, "graded"),
        "skip by hook": (0.0, "no_change"),
        "skip in test": (0.0, "no_change"),
    }
    log = server.written(sessions["skip in source"], "test_log.txt")
    assert ": later" in log, log


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
