"""From a captured change to a verdict, in a fresh sandbox that the agent never touched."""

from dataclasses import dataclass
from pathlib import Path

from swe_rollout.cancellation import Cancellation
from swe_rollout.config import ScoringSection, SetupSection
from swe_rollout.errors import AgentFault, ScoringError
from swe_rollout.sandbox.channel import CommandResult
from swe_rollout.sandbox.sandbox import Sandbox, SandboxHost, running
from swe_rollout.scoring.change import Change
from swe_rollout.scoring.harness import Harness
from swe_rollout.scoring.r2e import R2ETests, grade
from swe_rollout.scoring.verdict import Verdict
from swe_rollout.tasks import Task

HIDDEN_TESTS = "/r2e_tests"
TESTS_LINK = "r2e_tests"
RUNNER = "run_tests.sh"
"""Where an R2E image keeps what the agent must not see; link and runner are below the task's tree."""

LOG_LIMIT_BYTES = 64 << 20

_HERE = Path(__file__).parent
_APPLY = (_HERE / "apply.sh").read_text()
_PATCH = (_HERE / "patch.sh").read_text()
# The link stands only while the tests run, as R2E-Gym's own runtime does it. Compiled files would hide an edit whose
# time stamp was set back.
_BEFORE_TESTS = f"""
rm -rf {TESTS_LINK} && ln -s {HIDDEN_TESTS} {TESTS_LINK}
find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {{}} +
"""


@dataclass(frozen=True)
class Judgement:
    """What was found out about one change."""

    patch: bytes
    """The change as a git patch against the image's tree; empty when there is none."""
    verdict: Verdict | None = None
    """None when only the patch was asked for."""
    log: bytes = b""
    """What the hidden tests printed."""


class Judge:
    """Judges changes to tasks in R2E form. Holds no state between two of them."""

    def __init__(self, host: SandboxHost, setup: SetupSection, scoring: ScoringSection, harness: Harness) -> None:
        self._host = host
        self._setup = setup
        self._scoring = scoring
        self._harness = harness

    def judge(self, task: Task, change: Change, cancellation: Cancellation, *, run_tests: bool) -> Judgement:
        """Lay `change` over the image's tree, make the patch and, with `run_tests`, run the hidden tests.

        Raises `ScoringError` for a fault of the image or the machine, `AgentFault` when the change cannot be laid over
        the tree, `SandboxError`, `ImageError` and `Cancelled`.
        """
        if change.is_empty:
            return Judgement(b"", Verdict.zero("nothing was changed") if run_tests else None)
        binds = [(change.folder, "/.change")]
        with running(self._host, task.sif, cancellation, binds=binds) as sandbox:
            patch = self._apply(sandbox, cancellation)
            if not run_tests:
                return Judgement(patch)
            if not patch:
                return Judgement(patch, Verdict.zero("nothing was changed that git does not ignore"))
            return self._test(sandbox, task, patch, cancellation)

    def _apply(self, sandbox: Sandbox, cancellation: Cancellation) -> bytes:
        def run(script: str) -> CommandResult:
            return sandbox.run(script, timeout=self._setup.timeout, cancellation=cancellation)

        self._sound(run(f"test -f {RUNNER} && test -d {HIDDEN_TESTS}"), "hidden tests or their runner are missing")
        self._sound(run(self._setup.script), "the setup script failed")
        sandbox.learn_noise(timeout=self._setup.timeout, cancellation=cancellation)
        self._sound(run(f"set -- base\n{_PATCH}"), "git cannot read the tree")
        applied = run(_APPLY)
        if applied.returncode != 0 or applied.timed_out:
            if "No space left on device" in applied.output:
                raise ScoringError(f"the scratch folder is full: {_tail(applied)}")
            raise AgentFault("ChangeUnreadable", f"the change cannot be laid over the tree: {_tail(applied)}")
        patch = run(f"set -- patch\n{_PATCH}")
        if patch.returncode != 0 or patch.timed_out:
            raise AgentFault("ChangeUnreadable", f"git cannot read the changed tree: {_tail(patch)}")
        return patch.raw

    def _test(self, sandbox: Sandbox, task: Task, patch: bytes, cancellation: Cancellation) -> Judgement:
        limit = self._scoring.timeout
        try:
            sandbox.run(_BEFORE_TESTS, timeout=self._setup.timeout, cancellation=cancellation)
            result = sandbox.run(
                self._scoring.command, timeout=limit, cancellation=cancellation, output_limit=LOG_LIMIT_BYTES
            )
        except AgentFault as fault:
            return Judgement(patch, Verdict.zero(f"the code under test broke the judge's sandbox: {fault}"))
        if result.timed_out:
            verdict = Verdict.zero(f"scoring timed out: the hidden tests did not end within {limit:g} s")
        elif result.elided:
            # What is left out could be the end of the real run, with a forged one behind it.
            verdict = Verdict.zero(f"the hidden tests printed more than {LOG_LIMIT_BYTES >> 20} MB")
        elif isinstance(task.tests, R2ETests):
            verdict = grade(result.output, result.returncode, task.tests.expected)
        else:
            raise ScoringError(f"{task.id} has no judge")
        return Judgement(patch, verdict, result.raw)

    def _sound(self, result: CommandResult, what: str) -> None:
        """The image is at fault for anything that fails before the change is there."""
        if result.returncode != 0 or result.timed_out:
            raise ScoringError(f"the image cannot be used to judge: {what}: {_tail(result)}")


def _tail(result: CommandResult) -> str:
    said = " / ".join(result.output.strip().splitlines()[-3:])[-500:]
    return said or ("it took too long" if result.timed_out else f"exit code {result.returncode}")
