"""What a change to a task in R2E form leaves in the tree besides a solution, and what must not decide its tests.

Three kinds stay behind:

- files that configure the test runner or the interpreter (`protected.py`): the image's own stand in the tree, also
  where the change removed them. R2E-Gym's solutions consist of `.py` files, so that none but a `conftest.py` could be
  missed; validation finds such a row;
- tests and what helps them (`test_paths.py`), new, changed or removed, unless the row's own solution touches the same
  path: hidden tests import helpers from the tree, and some runners collect what looks like a test;
- new modules at the tree's top that would be imported in the place of others (`shadows.py`).

Not covered: files that git and the change call by another name and that code under test loads itself.
"""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from swe_rollout.errors import AgentFault, ScoringError
from swe_rollout.sandbox.channel import CommandResult
from swe_rollout.scoring.fresh_tree import FreshTree, check_space, failed, tail
from swe_rollout.scoring.protected import PROTECTED_NAMES
from swe_rollout.scoring.shadows import probe_script, shadowing, top_modules
from swe_rollout.scoring.test_paths import folders_of, is_test_path

_STEPS = (Path(__file__).parent / "leftovers.sh").read_text()
_PYTHON = ".venv/bin/python"
_MOST_MODULES = 5000
"""New modules at the tree's top; the interpreter is asked about each."""
_LIST_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True)
class Leftovers:
    """What was in the tree before a change, to be compared with what is there after it."""

    tree: FreshTree
    kept: Sequence[str]
    """Paths of the image that the change touches and does not decide."""
    surplus: Sequence[str]
    """New paths of the change that have to go."""

    @classmethod
    def before_change(cls, tree: FreshTree, solution_paths: Collection[str]) -> "Leftovers":
        """Look at `tree`, and at the change at `/.change` that is still to be laid over it.

        Raises `ScoringError` when the image cannot be read, and `AgentFault` when the change cannot.
        """
        touched = set(_paths_of_change(tree, "touched")) - set(solution_paths)
        tests = _tests_of_image(tree) - set(solution_paths)
        folders = {folder for path in touched for folder in folders_of(path)}
        kept = sorted(path for path in tests if path in folders or not touched.isdisjoint([path, *folders_of(path)]))
        surplus = sorted(path for path in touched if is_test_path(path) and path not in tests)
        tree.must(_step("keep", *PROTECTED_NAMES, "--", *kept), "the tree cannot be read")
        return cls(tree, kept, [*surplus, *_shadows(tree, _paths_of_change(tree, "added"))])

    def withdraw(self) -> list[str]:
        """Take them back out of the changed tree, before anything of it is run.

        Returns their paths, sorted; empty if nothing had to be done. Raises `AgentFault`.
        """
        script = _step("withdraw", *PROTECTED_NAMES, "--", *self.kept, "--", *self.surplus)
        return sorted(set(_split(_must_read(self.tree, script, "what the change leaves"))))


def _paths_of_change(tree: FreshTree, step: str) -> list[str]:
    listed = _must_read(tree, _step(step), "the change")
    if listed.elided:
        raise AgentFault("ChangeUnreadable", "the change touches more files than can be listed")
    return _split(listed)


def _tests_of_image(tree: FreshTree) -> set[str]:
    listed = tree.must(_step("tests"), "the tree cannot be listed", output_limit=_LIST_LIMIT_BYTES)
    if listed.elided:
        raise ScoringError("the image cannot be used to judge: its tree holds more tests than can be listed")
    return set(filter(is_test_path, _split(listed)))


def _split(listed: CommandResult) -> list[str]:
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
    result = tree.run(script, output_limit=_LIST_LIMIT_BYTES)
    if failed(result):
        check_space(tree, result)
        raise AgentFault("ChangeUnreadable", f"{what} cannot be read: {tail(result)}")
    return result


def _step(*words: str) -> str:
    return f"set -- {' '.join(map(_quoted, words))}\n{_STEPS}"


def _quoted(word: str) -> str:
    """For bash, also with bytes that are no UTF-8, which stand in it as surrogates."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogateescape")) + "'"
