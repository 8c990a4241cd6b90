"""Judges submissions to tasks in SWE-bench form: the patch the agent printed, as the official harness does."""

import dataclasses
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.cancellation import Cancellation
from swe_rollout.config import ScoringSection, SetupSection
from swe_rollout.errors import AgentFault, SandboxError, ScoringError
from swe_rollout.sandbox.sandbox import SandboxHost
from swe_rollout.scoring.fresh_tree import FreshTree, check_space, cut_short, failed, fresh_tree, tail
from swe_rollout.scoring.harness import Harness
from swe_rollout.scoring.judgement import WITHDRAWN_LIMIT, Judgement
from swe_rollout.scoring.paths import paths_of
from swe_rollout.scoring.protected import PROTECTED_NAMES
from swe_rollout.scoring.swebench import BAKED_SCRIPT, SWEBenchTests, doubt, has_markers
from swe_rollout.scoring.verdict import Verdict

_STEPS = (Path(__file__).parent / "submission.sh").read_text()
_NOTHING_LEFT = 4
"""Exit code of the last step."""


@dataclass(frozen=True)
class SWEBenchJudge:
    host: SandboxHost
    setup: SetupSection
    scoring: ScoringSection
    harness: Harness

    def judge(self, image: Path, tests: SWEBenchTests, submission: bytes, cancellation: Cancellation) -> Judgement:
        """Apply `submission` in a fresh sandbox of `image`, run the eval script and grade its log.

        Raises as `Judge.judge` does. A submission that is no patch is not given a sandbox.
        """
        if not submission.strip():
            return Judgement(b"", Verdict.zero("nothing was submitted", status="no_change"))
        # Without the newline, git calls the last hunk corrupt.
        patch = submission if submission.endswith(b"\n") else submission + b"\n"
        if not paths_of(patch.decode("utf-8", "replace")):
            return Judgement(patch, Verdict.zero("the submission is no patch", status="patch_refused"))
        return self._judge(image, tests, patch, cancellation)

    def judge_untouched(self, image: Path, tests: SWEBenchTests, cancellation: Cancellation) -> Judgement:
        """Run the eval script on the image's own tree and grade its log."""
        return self._judge(image, tests, b"", cancellation)

    def _judge(self, image: Path, tests: SWEBenchTests, patch: bytes, cancellation: Cancellation) -> Judgement:
        try:
            folder = self.host.scratch.new_folder("submission")
        except OSError as error:
            raise SandboxError(f"the scratch folder takes no more submissions: {error}") from error
        try:
            folder.chmod(0o755)
            with fresh_tree(self.host, self.setup, image, cancellation, binds=[(folder, "/.judge")]) as tree:
                script = self._script(tree, tests)
                _write(folder, tests, patch, script)
                verdict, withdrawn = _apply(tree) if patch else (None, ())
                judgement = Judgement(patch, verdict) if verdict else self._test(tree, tests, patch, script)
                return dataclasses.replace(judgement, withdrawn=withdrawn)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _script(self, tree: FreshTree, tests: SWEBenchTests) -> str:
        """Prepare the tree; returns what runs the hidden tests, the row's own or what the image bakes."""
        tree.must("git rev-parse --verify HEAD", "git cannot read the tree")
        if tests.base_commit:
            tree.must(f"git cat-file -e {shlex.quote(tests.base_commit)}", f"it has no commit {tests.base_commit}")
        tree.prepare()
        text = tests.eval_script
        if text is None:
            baked = tree.must(f"cat {BAKED_SCRIPT}", f"it bakes no {BAKED_SCRIPT}")
            text = baked.raw.decode("utf-8", "surrogateescape")
            if not has_markers(text):
                raise ScoringError(f"the image cannot be used to judge: its {BAKED_SCRIPT} does not mark its test run")
        return self.harness.script(tests, text, tree.cancellation)

    def _test(self, tree: FreshTree, tests: SWEBenchTests, patch: bytes, script: str) -> Judgement:
        limit = self.scoring.swebench_timeout
        try:
            result = tree.run_tests("bash /.judge/eval.sh", limit)
        except AgentFault as fault:
            reason = f"the code under test broke the judge's sandbox: {fault}"
            return Judgement(patch, Verdict.zero(reason, status="no_results"))
        verdict = cut_short(result, limit)
        if verdict is None and (doubted := doubt(result.output, script, result.returncode)):
            verdict = Verdict.zero(doubted, status="no_results")
        if verdict is None:
            # The harness gives an empty patch 0.0 unseen; beyond that it does not look at it.
            shown = patch.decode("utf-8", "replace") or "untouched"
            verdict = self.harness.grade(tests, shown, result.raw, tree.cancellation)
        return Judgement(patch, verdict, result.raw)


def _write(folder: Path, tests: SWEBenchTests, patch: bytes, script: str) -> None:
    """What `submission.sh` reads. The script carries the hidden tests' own patch if an image bakes it."""
    test_paths = tests.test_paths | paths_of(script)
    solution_paths = tests.gold_paths - test_paths
    try:
        (folder / "patch.diff").write_bytes(patch)
        (folder / "eval.sh").write_bytes(_bytes(script))
        (folder / "protected_names").write_text("".join(f"{name}\n" for name in PROTECTED_NAMES))
        (folder / "test_paths").write_bytes(b"".join(_bytes(path) + b"\0" for path in sorted(test_paths)))
        (folder / "solution_paths").write_bytes(b"".join(_bytes(path) + b"\n" for path in sorted(solution_paths)))
    except OSError as error:
        raise SandboxError(f"the scratch folder takes no more submissions: {error}") from error


def _apply(tree: FreshTree) -> tuple[Verdict | None, tuple[str, ...]]:
    """Put the submission on the tree; the verdict if that is the end of it, and what was withdrawn."""
    tree.must(_step("keep"), "the tree cannot be read")
    applied = tree.run(_step("apply"))
    if failed(applied):
        check_space(tree, applied)
        return Verdict.zero(f"the submission does not apply: {tail(applied)}", status="patch_refused"), ()
    restored = tree.run(_step("restore"))
    # Complaints of the tools may stand before the list.
    paths = restored.raw.split(b"\0")[1:-1]
    withdrawn = tuple(path.decode("utf-8", "replace") for path in paths[:WITHDRAWN_LIMIT])
    if restored.returncode == _NOTHING_LEFT and not restored.timed_out:
        return Verdict.zero("nothing was changed but tests and what configures them", status="no_change"), withdrawn
    if failed(restored):
        check_space(tree, restored)
        reason = f"the submission leaves no tree that can be tested: {tail(restored)}"
        return Verdict.zero(reason, status="patch_refused"), withdrawn
    return None, withdrawn


def _step(name: str) -> str:
    return f"set -- {name}\n{_STEPS}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
