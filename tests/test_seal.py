"""The repository that the agent sees holds nothing of its future, whatever form the image has it in."""

from collections.abc import Callable
from pathlib import Path

import pytest

from swe_rollout.cancellation import Cancellation
from swe_rollout.config import SetupSection
from swe_rollout.sandbox.channel import CommandResult
from swe_rollout.sandbox.confinement import choose
from swe_rollout.sandbox.sandbox import Sandbox, SandboxHost, running
from swe_rollout.sandbox.scratch import Scratch
from swe_rollout.workspace import AgentWorkspace

_SETUP = SetupSection(timeout=60, script="")
_IDENTITY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "t"), ("EMAIL", "t@example.org"))
} | {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.file.allow", "GIT_CONFIG_VALUE_0": "always"}

# Prints the name of each object that has to go, and leaves the tree as it found it, but for what `_BASE` sees.
_FUTURE = r"""
set -e
hide() { echo "hidden $(git rev-parse "$1")"; }
base=$(git rev-parse HEAD)
branch=$(git symbolic-ref --short HEAD)

echo staged >staged && git add staged
git commit -q -m "past, with a submodule"
git init -q /srv/lib && git -C /srv/lib commit -q --allow-empty -m "the library's past"
git submodule --quiet add /srv/lib lib && git commit -q -m "a submodule"
git -C /srv/lib commit -q --allow-empty -m "the library's future"
git -C lib fetch -q
echo "module $(git -C /srv/lib rev-parse HEAD)"
rm -rf /srv/lib

git checkout -q -b future
echo fix >fix.py && git add fix.py && git commit -q -m "the fix"
hide HEAD && hide HEAD^{tree} && hide HEAD:fix.py
git checkout -q "$branch"
git tag -a v9 -m "a release" future && hide v9
git remote add origin https://example.org/x.git
commit() { git commit-tree -p HEAD -m "$1" "future^{tree}"; }
git update-ref refs/remotes/origin/main "$(commit remote)" && hide origin/main
git update-ref refs/pull/1/head "$(commit pull)" && hide refs/pull/1/head
git notes add -m "see the fix" HEAD && hide refs/notes/commits
git replace "$base" "$(commit replacement)" && hide "refs/replace/$base"
git repack -a -d -q
touch "$(ls .git/objects/pack/*.pack | sed 's/pack$/keep/')"
git checkout -q -b merged && git commit -q --allow-empty -m "only in a reflog" && hide HEAD
git checkout -q "$branch" && git branch -q -D merged
echo stashed >README.md && git stash -q && hide stash
git worktree add -q --detach /elsewhere future
git -C /elsewhere commit -q --allow-empty -m "in a worktree" && hide "$(git -C /elsewhere rev-parse HEAD)"
echo "hidden $(commit dangling)"
echo "hidden $(echo 'a dangling file' | git hash-object -w --stdin)"
git commit-graph write --reachable && git multi-pack-index write
git bundle create -q .git/future.bundle future
git init -q --bare /store.git && git -C /store.git fetch -q /testbed future
echo "hidden $(git -C /store.git commit-tree -p FETCH_HEAD -m 'in an alternate' "FETCH_HEAD^{tree}")"
echo /store.git/objects >.git/objects/info/alternates
echo "$base" >.git/ORIG_HEAD
git update-ref CHERRY_PICK_HEAD future
rm -rf /elsewhere
echo changed >>staged && echo staged2 >staged2 && git add staged2 && echo untracked >untracked
"""
_STATE = """
git status --porcelain=v2 --branch; git diff; git diff --cached; git ls-files --stage; cat .git/HEAD
GIT_NO_REPLACE_OBJECTS=1 git log --no-notes --no-decorate; git config --local --list | grep -v ^remote
"""


def _run(sandbox: Sandbox, command: str) -> CommandResult:
    return sandbox.run(command, timeout=60, cancellation=Cancellation())


@pytest.mark.parametrize(
    ("confinement", "state"), [("auto", "on a branch"), ("root", "detached, without refs")], ids=["auto", "root"]
)
def test_nothing_of_the_future_is_left(
    confinement: str, state: str, sif: Path, open_folder: Callable[[], Path]
) -> None:
    chosen = choose(confinement, "swe-sandbox")
    scratch = Scratch(open_folder(), "test", chosen)
    host = SandboxHost(chosen, scratch, environment=_IDENTITY)
    with running(host, sif, Cancellation()) as sandbox:
        said = _run(sandbox, _FUTURE)
        assert said.returncode == 0, said.output
        hidden = [line.split()[1] for line in said.output.splitlines() if line.startswith("hidden ")]
        in_module = [line.split()[1] for line in said.output.splitlines() if line.startswith("module ")]
        assert len(hidden) >= 13
        if state != "on a branch":
            # Nothing names the future here: that it is in the packs has to be found out.
            _run(sandbox, "git checkout -q --detach; rm -rf .git/refs/* .git/packed-refs .git/logs .git/*_HEAD")
            _run(sandbox, "rm .git/objects/info/alternates .git/objects/pack/*.keep")
        cat = f"for hash in {' '.join(hidden)}; do git cat-file -e $hash && echo $hash; done 2>/dev/null"
        assert len(_run(sandbox, cat).output.split()) >= len(hidden) - 1
        before = _run(sandbox, _STATE).output

        workspace = AgentWorkspace(sandbox, _SETUP, (), Cancellation())

        def git(command: str) -> str:
            return workspace.run(f"git {command}", 60).output

        assert workspace.run(cat, 60).output == ""
        assert workspace.run(f"git -C lib cat-file -e {in_module[0]}", 60).returncode != 0
        for search in ("log --all --oneline", "fsck --full --unreachable", "stash list", "reflog", "notes list"):
            found = git(search)
            assert not [line for line in found.splitlines() if any(name[:7] in line for name in hidden)], search
            assert "error" not in found, search
        assert git("tag") == "base\n"
        assert git("remote") == git("reflog") == ""
        assert workspace.run("grep -rls 'the fix' .git /store.git; find .git -name '*.bundle'", 60).output == ""

        assert workspace.run(_STATE, 60).output == before
        work = (
            "git stash -q && git stash pop -q --index && git commit -qam work && git -C lib log --oneline && git gc -q"
        )
        done = workspace.run(work, 60)
        assert done.returncode == 0, done.output
        assert git("fsck --full --no-dangling") == ""
    scratch.close()
