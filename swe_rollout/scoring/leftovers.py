"""What a change to a task in R2E form leaves in the tree besides a solution, and what must not decide its tests.

Three kinds stay behind:

- files that configure the test runner or the interpreter (`protected.py`): the image's own stand in the tree, also
  where the change removed them. R2E-Gym's solutions consist of `.py` files, so that none but a `conftest.py` could be
  missed; validation finds such a row;
- new files named like tests, outside of the image's packages or in one of tests: some runners collect them, and one
  test more than expected is a failure. Tests that the image has may be changed: only the hidden ones decide;
- new modules at the tree's top that would be imported in the place of others (`shadows.py`).

Not covered: files that git and the change call by another name and that code under test loads itself.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.errors import AgentFault, ScoringError
from swe_rollout.sandbox.channel import CommandResult
from swe_rollout.scoring.fresh_tree import FreshTree, check_space, failed, tail
from swe_rollout.scoring.protected import PROTECTED_NAMES
from swe_rollout.scoring.shadows import probe_script, shadowing, top_modules

_STEPS = (Path(__file__).parent / "leftovers.sh").read_text()
_PYTHON = ".venv/bin/python"
_MOST_MODULES = 5000
"""New modules at the tree's top; the interpreter is asked about each."""


@dataclass(frozen=True)
class Leftovers:
    """What was in the tree before a change, to be compared with what is there after it."""

    tree: FreshTree
    shadows: Sequence[str]
    """New paths of the change that have to go."""

    @classmethod
    def before_change(cls, tree: FreshTree) -> "Leftovers":
        """Look at `tree`, and at the change at `/.change` that is still to be laid over it.

        Raises `ScoringError` when the image cannot be read, and `AgentFault` when the change cannot.
        """
        tree.must(_step("keep", *PROTECTED_NAMES), "the tree cannot be read")
        return cls(tree, _shadows(tree, _added(tree)))

    def withdraw(self) -> list[str]:
        """Take them back out of the changed tree, before anything of it is run.

        Returns their paths as a shell writes them; empty if nothing had to be done. Raises `AgentFault`.
        """
        script = _step("withdraw", *PROTECTED_NAMES, "--", *self.shadows)
        return _must_read(self.tree, script, "what the change leaves in the tree").output.splitlines()


def _added(tree: FreshTree) -> list[str]:
    listed = _must_read(tree, _step("added"), "the change")
    if listed.elided:
        raise AgentFault("ChangeUnreadable", "the change adds more files at the tree's top than can be listed")
    return listed.raw.decode("utf-8", "surrogateescape").split("\0")[:-1]


def _shadows(tree: FreshTree, added: Sequence[str]) -> list[str]:
    # A link at the top may lead to a folder that makes it a package.
    packages = [f"{path}/__init__.py" for path in added if path.isidentifier()]
    modules = top_modules([*added, *packages])
    if not modules:
        return []
    if len(modules) > _MOST_MODULES:
        raise AgentFault("ChangeUnreadable", f"the change adds {len(modules)} modules at the tree's top")
    probe = probe_script(modules, ".", _PYTHON)
    answer = tree.must(probe, "its interpreter does not answer")
    try:
        entries = shadowing(answer.output, modules)
    except ValueError as error:
        raise ScoringError(f"the image cannot be used to judge: {error}") from error
    return [path for entry in entries for path in added if path == entry or path.startswith(f"{entry}/__init__.")]


def _must_read(tree: FreshTree, script: str, what: str) -> CommandResult:
    result = tree.run(script)
    if failed(result):
        check_space(tree, result)
        raise AgentFault("ChangeUnreadable", f"{what} cannot be read: {tail(result)}")
    return result


def _step(*words: str) -> str:
    return f"set -- {shlex.join(words)}\n{_STEPS}"
