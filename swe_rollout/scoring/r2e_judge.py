"""Judges changes to tasks in R2E form: on the tree as the agent left it, as R2E-Gym does."""

import dataclasses
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from swe_rollout.config import ScoringSection
from swe_rollout.errors import AgentFault
from swe_rollout.scoring.fresh_tree import FreshTree, cut_short
from swe_rollout.scoring.hidden_run import HiddenRun
from swe_rollout.scoring.judgement import WITHDRAWN_LIMIT, Judgement, printable
from swe_rollout.scoring.leftovers import Leftovers
from swe_rollout.scoring.r2e import R2ETests, grade
from swe_rollout.scoring.verdict import Verdict

_NAMED = 3
"""Paths named in a reason."""


@dataclass(frozen=True)
class R2EJudge:
    scoring: ScoringSection

    def judge(self, tree: FreshTree, tests: R2ETests) -> Judgement:
        """Lay the change at `/.change` over `tree` and run the hidden tests. Raises as `Judge.judge` does.

        The patch is what was judged: without what stays behind.
        """
        tree.prepare()
        return self._judge(tree, tests, tree.lay_over)

    def judge_patch(self, tree: FreshTree, tests: R2ETests) -> Judgement:
        """The same for the patch at `/.change/patch.diff`."""
        tree.prepare()
        return self._judge(tree, tests, tree.put_patch)

    def judge_untouched(self, tree: FreshTree, tests: R2ETests) -> Judgement:
        """Run the hidden tests on the image's own tree."""
        tree.prepare()
        return self._test(tree, tests, HiddenRun.plan(tree, tests.expected), b"")

    def _judge(self, tree: FreshTree, tests: R2ETests, change: Callable[[], None]) -> Judgement:
        run = HiddenRun.plan(tree, tests.expected)
        leftovers = Leftovers.before_change(tree, tests.solution_paths)
        change()
        left = leftovers.withdraw()
        patch = tree.patch()
        if patch:
            judgement = self._test(tree, tests, run, patch)
        else:
            judgement = Judgement(patch, Verdict.zero(_nothing_changed(left), status="no_change"))
        return dataclasses.replace(judgement, withdrawn=tuple(map(printable, left[:WITHDRAWN_LIMIT])))

    def _test(self, tree: FreshTree, tests: R2ETests, run: HiddenRun, patch: bytes) -> Judgement:
        limit = self.scoring.timeout
        try:
            result, report = run.run(tree, self.scoring.command, limit)
        except AgentFault as fault:
            reason = f"the code under test broke the judge's sandbox: {fault}"
            return Judgement(patch, Verdict.zero(reason, status="no_results"))
        verdict = cut_short(result, limit) or grade(
            result.output, result.returncode, tests.expected, canary=run.canary, report=report
        )
        return Judgement(patch, verdict, result.raw)


def _nothing_changed(left: list[str]) -> str:
    if not left:
        return "nothing was changed that git does not ignore"
    named = ", ".join(shlex.quote(printable(path))[:160] for path in left[:_NAMED])
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return f"nothing was changed but what may not decide a test: {named}{more}"
