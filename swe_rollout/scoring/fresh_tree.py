"""The image's own tree in a sandbox that no agent was in: what every judgement starts from."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.cancellation import Cancellation
from swe_rollout.config import SetupSection
from swe_rollout.errors import AgentFault, ScoringError, without_agent
from swe_rollout.sandbox.channel import OUTPUT_LIMIT_BYTES, CommandResult
from swe_rollout.sandbox.sandbox import Sandbox, SandboxHost, running
from swe_rollout.sandbox.scratch import remove_tree
from swe_rollout.scoring.verdict import Verdict

LOG_LIMIT_BYTES = 16 << 20
"""Of what hidden tests print. What is left out of a longer log could be the end of the real run, with a forged one
behind it."""
PATCH_LIMIT_BYTES = 16 << 20
"""Of a change as a git patch, which is stored with its session."""
_LOW_BYTES = 1 << 30
_LOW_INODES = 10_000
_LOW_SHARE = 0.05
"""With less left, a step may have failed for it, also if some has become free since."""
_USELESS = "the image cannot be used to judge"

_HERE = Path(__file__).parent
_APPLY = (_HERE / "apply.sh").read_text()
_PATCH = (_HERE / "patch.sh").read_text()


@dataclass(frozen=True)
class FreshTree:
    """Steps in a started sandbox. What fails before anything of the agent's is there is never the agent's fault."""

    sandbox: Sandbox
    setup: SetupSection
    cancellation: Cancellation
    change: Path | None = None
    """The folder that is `/.change` in the sandbox, until the change is laid over the tree."""

    def run(self, script: str, *, output_limit: int = OUTPUT_LIMIT_BYTES) -> CommandResult:
        return self.sandbox.run(
            script, timeout=self.setup.timeout, cancellation=self.cancellation, output_limit=output_limit
        )

    def run_tests(self, command: str, seconds: float) -> CommandResult:
        return self.sandbox.run(command, timeout=seconds, cancellation=self.cancellation, output_limit=LOG_LIMIT_BYTES)

    def must(self, script: str, what: str, *, output_limit: int = OUTPUT_LIMIT_BYTES) -> CommandResult:
        """Run `script`; raises `ScoringError`, with `what` went wrong, if it fails or the sandbox breaks."""
        with without_agent(ScoringError, f"{_USELESS}: {what}"):
            result = self.run(script, output_limit=output_limit)
        if failed(result):
            raise ScoringError(f"{_USELESS}: {what}: {tail(result)}")
        return result

    def prepare(self) -> None:
        self.must(self.setup.script, "the setup script failed")
        with without_agent(ScoringError, f"{_USELESS}: its shell does not answer"):
            self.sandbox.learn_noise(timeout=self.setup.timeout, cancellation=self.cancellation)

    def lay_over(self) -> None:
        """Lay the change at `/.change` over the tree. Raises `AgentFault` when that cannot be done."""
        self._changed_by(_APPLY, "the change cannot be laid over the tree")

    def put_patch(self) -> None:
        """As `lay_over`, for a change that is stored as a git patch: `/.change/patch.diff`."""
        self._changed_by("git apply --whitespace=nowarn /.change/patch.diff", "the patch does not apply")

    def _changed_by(self, script: str, failure: str) -> None:
        self.must(f"set -- base\n{_PATCH}", "git cannot read the tree")
        applied = self.run(script)
        if failed(applied):
            check_space(self, applied)
            raise AgentFault("ChangeUnreadable", f"{failure}: {tail(applied)}")
        # A link in the tree could lead to what is withdrawn from it.
        for entry in self.change.iterdir() if self.change else ():
            remove_tree(entry)

    def patch(self) -> bytes:
        """What the tree differs in from its state before the change, as a git patch, empty when there is nothing.

        Raises as `lay_over`.
        """
        patch = self.run(f"set -- patch\n{_PATCH}", output_limit=PATCH_LIMIT_BYTES)
        if failed(patch):
            check_space(self, patch)
            raise AgentFault("ChangeUnreadable", f"git cannot read the changed tree: {tail(patch)}")
        if patch.elided:
            raise AgentFault(
                "ChangeUnreadable", f"the change is larger than {PATCH_LIMIT_BYTES >> 20} MB as a git patch"
            )
        return patch.raw


@contextlib.contextmanager
def fresh_tree(
    host: SandboxHost,
    setup: SetupSection,
    image: Path,
    cancellation: Cancellation,
    *,
    change: Path | None = None,
    binds: Sequence[tuple[Path, str]] = (),
) -> Iterator[FreshTree]:
    """A started sandbox that is gone after the block; `prepare` is still to be called.

    `change` is the folder of a change, which is used up; it and `binds` are read-only in the sandbox.
    """
    with running(host, image, cancellation, binds=[*binds, *([(change, "/.change")] if change else [])]) as sandbox:
        yield FreshTree(sandbox, setup, cancellation, change)


def cut_short(result: CommandResult, seconds: float) -> Verdict | None:
    """The verdict on a test run that had `seconds` and left no whole log; None for one that did."""
    if result.timed_out:
        reason = f"scoring timed out: the hidden tests did not end within {seconds:g} s"
        return Verdict.zero(reason, status="timed_out")
    if result.elided:
        reason = f"the hidden tests printed more than {LOG_LIMIT_BYTES >> 20} MB"
        return Verdict.zero(reason, status="no_results")
    return None


def failed(result: CommandResult) -> bool:
    return result.returncode != 0 or result.timed_out


def check_space(tree: FreshTree, result: CommandResult) -> None:
    """Raise `ScoringError` if a step failed because the machine has no space left.

    What the step printed is the agent's text too, so the disk is asked.
    """
    disk = os.statvfs(tree.sandbox.layer)
    few_blocks = disk.f_bavail * disk.f_frsize < min(_LOW_BYTES, disk.f_blocks * disk.f_frsize * _LOW_SHARE)
    few_inodes = disk.f_favail < min(_LOW_INODES, disk.f_files * _LOW_SHARE)
    if (few_blocks or few_inodes) and "No space left on device" in result.output:
        raise ScoringError(f"the scratch folder is full: {tail(result)}")


def tail(result: CommandResult) -> str:
    """What a step that failed said last, on one line."""
    said = " / ".join(result.output.strip().splitlines()[-3:])[-500:]
    return said or ("it took too long" if result.timed_out else f"exit code {result.returncode}")
