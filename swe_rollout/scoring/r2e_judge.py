"""Judges changes to tasks in R2E form: on the tree as the agent left it, as R2E-Gym does."""

from dataclasses import dataclass

from swe_rollout.config import ScoringSection
from swe_rollout.errors import AgentFault
from swe_rollout.scoring.fresh_tree import LOG_LIMIT_BYTES, FreshTree
from swe_rollout.scoring.judgement import Judgement
from swe_rollout.scoring.r2e import HIDDEN_TESTS, RUNNER, TESTS_LINK, R2ETests, grade
from swe_rollout.scoring.verdict import Verdict

# The link stands only while the tests run, as R2E-Gym's own runtime does it. Compiled files would hide an edit whose
# time stamp was set back.
_BEFORE_TESTS = f"""
rm -rf {TESTS_LINK} && ln -s {HIDDEN_TESTS} {TESTS_LINK}
find . -name .venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {{}} +
"""


@dataclass(frozen=True)
class R2EJudge:
    scoring: ScoringSection

    def judge(self, tree: FreshTree, tests: R2ETests) -> Judgement:
        """Lay the change at `/.change` over `tree` and run the hidden tests. Raises as `Judge.judge` does."""
        _prepare(tree)
        return self._judge(tree, tests, tree.lay_over())

    def judge_patch(self, tree: FreshTree, tests: R2ETests) -> Judgement:
        """The same for the patch at `/.change/patch.diff`."""
        _prepare(tree)
        return self._judge(tree, tests, tree.put_patch())

    def judge_untouched(self, tree: FreshTree, tests: R2ETests) -> Judgement:
        """Run the hidden tests on the image's own tree."""
        _prepare(tree)
        return self._test(tree, tests, b"")

    def _judge(self, tree: FreshTree, tests: R2ETests, patch: bytes) -> Judgement:
        if not patch:
            return Judgement(patch, Verdict.zero("nothing was changed that git does not ignore", status="no_change"))
        return self._test(tree, tests, patch)

    def _test(self, tree: FreshTree, tests: R2ETests, patch: bytes) -> Judgement:
        limit = self.scoring.timeout
        try:
            tree.run(_BEFORE_TESTS)
            result = tree.run_tests(self.scoring.command, limit)
        except AgentFault as fault:
            reason = f"the code under test broke the judge's sandbox: {fault}"
            return Judgement(patch, Verdict.zero(reason, status="no_results"))
        if result.timed_out:
            reason = f"scoring timed out: the hidden tests did not end within {limit:g} s"
            verdict = Verdict.zero(reason, status="timed_out")
        elif result.elided:
            reason = f"the hidden tests printed more than {LOG_LIMIT_BYTES >> 20} MB"
            verdict = Verdict.zero(reason, status="no_results")
        else:
            verdict = grade(result.output, result.returncode, tests.expected)
        return Judgement(patch, verdict, result.raw)


def _prepare(tree: FreshTree) -> None:
    tree.must(f"test -f {RUNNER} && test -d {HIDDEN_TESTS}", "hidden tests or their runner are missing")
    tree.prepare()
