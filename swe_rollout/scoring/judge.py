"""From what an agent leaves behind to a verdict, in a fresh sandbox that the agent never touched."""

import shutil
from collections.abc import Callable

from swe_rollout.cancellation import Cancellation
from swe_rollout.config import ScoringSection, SetupSection
from swe_rollout.errors import AgentFault, SandboxError
from swe_rollout.sandbox.sandbox import SandboxHost
from swe_rollout.scoring.change import Change
from swe_rollout.scoring.fresh_tree import fresh_tree
from swe_rollout.scoring.harness import Harness
from swe_rollout.scoring.judgement import Judgement
from swe_rollout.scoring.r2e_judge import R2EJudge
from swe_rollout.scoring.swebench import SWEBenchTests
from swe_rollout.scoring.swebench_judge import SWEBenchJudge
from swe_rollout.scoring.verdict import Verdict
from swe_rollout.tasks import Task


class Judge:
    """Judges work on tasks of every kind. Holds no state between two of them."""

    def __init__(self, host: SandboxHost, setup: SetupSection, scoring: ScoringSection, harness: Harness) -> None:
        self._host = host
        self._setup = setup
        self._r2e = R2EJudge(scoring)
        self._swebench = SWEBenchJudge(host, setup, scoring, harness)

    def judge(
        self,
        task: Task,
        change: Callable[[], Change],
        submission: bytes,
        cancellation: Cancellation,
        *,
        run_tests: bool,
    ) -> Judgement:
        """Judge the tree that an agent left (R2E) or the patch it printed (SWE-bench).

        `change` captures what the agent changed; it is called at most once, and not if the submission decides.
        Without `run_tests` only the patch of the change is made.

        Raises `ScoringError` for a fault of the image or the machine, `AgentFault` when the change cannot be laid over
        the tree, `SandboxError`, `ImageError` and `Cancelled`.
        """
        if run_tests and isinstance(task.tests, SWEBenchTests):
            return self._swebench.judge(task.sif, task.tests, submission, cancellation)
        captured = change()
        if captured.is_empty:
            return Judgement(b"", Verdict.zero("nothing was changed", status="no_change") if run_tests else None)
        with fresh_tree(self._host, self._setup, task.sif, cancellation, change=captured.folder) as tree:
            if run_tests and not isinstance(task.tests, SWEBenchTests):
                return self._r2e.judge(tree, task.tests)
            tree.prepare()
            tree.lay_over()
            return Judgement(tree.patch())

    def judge_patch(self, task: Task, patch: bytes, cancellation: Cancellation) -> Judgement:
        """Judge a change that is known as a git patch only: a stored one, or the row's own solution.

        What git ignores is in no patch. A patch that does not apply gets 0.0. Raises as `judge` does.
        """
        if isinstance(task.tests, SWEBenchTests):
            return self._swebench.judge(task.sif, task.tests, patch, cancellation)
        if not patch.strip():
            return Judgement(b"", Verdict.zero("nothing was changed", status="no_change"))
        try:
            folder = self._host.scratch.new_folder("patch")
            folder.chmod(0o755)
            (folder / "patch.diff").write_bytes(patch)
        except OSError as error:
            raise SandboxError(f"the scratch folder takes no more patches: {error}") from error
        try:
            with fresh_tree(self._host, self._setup, task.sif, cancellation, change=folder) as tree:
                return self._r2e.judge_patch(tree, task.tests)
        except AgentFault as fault:
            return Judgement(patch, Verdict.zero(str(fault), status="patch_refused"))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def judge_untouched(self, task: Task, cancellation: Cancellation) -> Judgement:
        """Run the hidden tests on the image's own tree, where they must not all be as expected. Raises as `judge`."""
        if isinstance(task.tests, SWEBenchTests):
            return self._swebench.judge_untouched(task.sif, task.tests, cancellation)
        with fresh_tree(self._host, self._setup, task.sif, cancellation) as tree:
            return self._r2e.judge_untouched(tree, task.tests)
