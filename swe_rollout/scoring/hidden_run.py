"""One run of the hidden tests of a task in R2E form, with what shows whether it tells the truth.

Canaries are put among the tests, and where the runner is pytest its JUnit report is wanted besides the text. The
report is read when the sandbox has ended, so that nothing left in it can rewrite it meanwhile.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from swe_rollout.errors import AgentFault
from swe_rollout.sandbox.channel import CommandResult
from swe_rollout.scoring.canary import Canary
from swe_rollout.scoring.fresh_tree import FreshTree, check_space, failed, tail
from swe_rollout.scoring.junit import LIMIT_BYTES
from swe_rollout.scoring.layer_file import read_layer_file
from swe_rollout.scoring.r2e import HIDDEN_TESTS, RUNNER, TESTS_LINK

_PYTEST = re.compile(rb"\bpy\.?test\b")
_NUMBERED = re.compile(rb"^test_([0-9]{1,6})\.py$", re.MULTILINE)
_MARK = b"\0run by:\n"


@dataclass(frozen=True)
class HiddenRun:
    canary: Canary
    canary_file: str
    report: str | None
    """Where pytest has to write; None for another runner."""

    @classmethod
    def plan(cls, tree: FreshTree, expected: Mapping[str, str]) -> "HiddenRun":
        """Look at how the image runs its tests. Raises `ScoringError` if it has none."""
        said = tree.must(
            f"ls -A {HIDDEN_TESTS} && printf '\\0run by:\\n' && cat {RUNNER}",
            "hidden tests or their runner are missing",
        )
        files, _, runner = said.raw.partition(_MARK)
        # Behind all others: where a runner ends at the first failure it has run them.
        number = max((int(found) for found in _NUMBERED.findall(files)), default=0) + 1
        file = f"{HIDDEN_TESTS}/test_{number}.py"
        if _PYTEST.search(runner):
            return cls(Canary.for_pytest(expected), file, f"/tmp/{secrets.token_hex(8)}.xml")
        return cls(Canary.for_unittest(expected), file, None)

    def run(self, tree: FreshTree, command: str, seconds: float) -> tuple[CommandResult, bytes | None]:
        """Run `command` in the changed tree for at most `seconds`, and end the sandbox.

        Returns also what `grade` wants to know of pytest's report. Raises `AgentFault` and as `Sandbox.run` does.
        """
        ready = tree.run(self._before())
        if failed(ready):
            check_space(tree, ready)
            raise AgentFault("TreeUnreadable", f"the hidden tests cannot be put in the tree: {tail(ready)}")
        result = tree.run_tests(self._setting() + command, seconds)
        tree.sandbox.close()
        if self.report is None or result.timed_out:
            return result, None
        return result, read_layer_file(tree.sandbox.layer, self.report, LIMIT_BYTES + 1)

    def _before(self) -> str:
        # The link stands only while the tests run, as R2E-Gym's own runtime does it. Compiled files would hide an edit
        # whose time stamp was set back.
        return f"""
set -e
rm -rf {TESTS_LINK}
ln -s {HIDDEN_TESTS} {TESTS_LINK}
cat >{self.canary_file} <<'CANARY'
{self.canary.file_text}CANARY
find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {{}} + || true
"""

    def _setting(self) -> str:
        if self.report is None:
            return ""
        # Later options win, so that the image's own cannot end the run at a canary.
        options = f"--junitxml={self.report} --maxfail=0"
        return f'export PYTEST_ADDOPTS="${{PYTEST_ADDOPTS:+$PYTEST_ADDOPTS }}{options}"\n'
