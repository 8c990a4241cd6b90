"""What a change leaves in the judge's tree: in a real sandbox, on a tree made for it."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from swe_rollout.cancellation import Cancellation
from swe_rollout.config import SetupSection, load_config
from swe_rollout.errors import AgentFault
from swe_rollout.sandbox.confinement import choose
from swe_rollout.sandbox.probe import open_scratch
from swe_rollout.sandbox.sandbox import SandboxHost
from swe_rollout.scoring.fresh_tree import FreshTree, fresh_tree
from swe_rollout.scoring.judgement import Judgement
from swe_rollout.scoring.leftovers import Leftovers
from swe_rollout.scoring.r2e import R2ETests
from swe_rollout.scoring.r2e_judge import R2EJudge
from swe_rollout.scoring.test_paths import is_test_path

IMAGE = """
mkdir -p pkg/_testing tests docs linked gone app.egg-info suite/test_it
touch pkg/__init__.py tests/__init__.py tests/test_old.py docs/index.txt
echo '# image' | tee pkg/{testing,test_same,_testing/a,_testing/b}.py suite/test_it/util.py >pkg/pytest_plugin.py
ln -s testing.py pkg/test_link.py
touch $'tests/\\xff.txt'
echo 'VALUE = 1' >pkg/value.py
printf '%s\n' 'def assert_equal(a, b):' '    assert a == b' >pkg/_testing/helper.py
rm -rf /r2e_tests/*
printf '%s\n' 'from pkg import value' 'from pkg._testing.helper import assert_equal' \
    'def test_value():' '    assert_equal(value.VALUE, 2)' >/r2e_tests/test_1.py
echo '# image' | tee conftest.py {tests,linked,gone}/conftest.py setup.cfg app.egg-info/entry_points.txt
"""
"""On top of the sample's own tree."""
WORK: Mapping[str, str | Path | None] = {
    "pkg/module.py": "new",
    "pkg/test_utils.py": "a part of the solution that looks like a test",
    "pkg/pytest_plugin.py": "another one, which the image has",
    "docs/__init__.py": "no other module is called docs",
    "link": Path("/etc"),
    "linked": Path("/r2e_tests"),
    "gone": None,
    "own_name/__init__.py": "",
}
SOLUTION = ("pkg/test_utils.py", "pkg/pytest_plugin.py", "pkg/module.py")
LEFT: Mapping[str, str | Path | None] = {
    "conftest.py": "theirs",
    "tests/conftest.py": None,
    "setup.cfg": None,
    "app.egg-info/entry_points.txt": "theirs",
    "app.egg-info/more": "theirs",
    "evil.EGG-INFO/entry_points.txt": "theirs",
    "pkg/sitecustomize/__init__.py": "theirs",
    "pkg/conftest.abi3.so": "theirs",
    "pytest.ini": "[pytest]",
    "-x.pth": "theirs",
    "own_name/pyproject.toml": Path("/etc/passwd"),
    "tests/test_old.py": "changed",
    "tests/data/new.txt": "",
    "tests/test_new.py": "",
    "pkg/testing.py": "def assert_equal(a, b): pass",
    "pkg/testing.cpython-311-x86_64-linux-gnu.so": "",
    "pkg/test_link.py": Path("module.py"),
    "pkg/_testing": Path("/etc"),
    "suite/test_it": None,
    # No UTF-8.
    "tests/\udcff.txt": "changed",
    "tests/\udcfe.py": "",
    "\udcff.egg-info/entry_points.txt": "theirs",
    # A folder in the place of a file.
    "pkg/test_same.py/new": "",
    "own_name/deep_test.py": "",
    "test_a\nb.py": "",
    "json.py": "",
    "_pytest/__init__.py": "",
    "pytest": Path("pkg"),
}


Entries = Mapping[str, str | Path | None]
_LISTED = "find . -path ./.git -prune -o -path ./.venv -prune -o ! -type d -printf '%P %l\\n' | sort; ls /r2e_tests"


class Bench:
    """Fresh trees with changes laid over them."""

    def __init__(self, host: SandboxHost, setup: SetupSection, sif: Path, open_folder: Callable[[], Path]) -> None:
        self._host, self._setup, self._sif, self.open_folder = host, setup, sif, open_folder

    def lay_over(self, entries: Entries) -> tuple[bytes, list[str], str]:
        """The patch that is judged, what stayed behind, and all files of the tree."""
        return self._changed(self._change(entries), FreshTree.lay_over)

    def judge(self, entries: Entries, tests: R2ETests) -> Judgement:
        with fresh_tree(self._host, self._setup, self._sif, Cancellation(), change=self._change(entries)) as tree:
            return R2EJudge(load_config([]).scoring).judge(tree, tests)

    def _change(self, entries: Entries) -> Path:
        folder = self.open_folder()
        (folder / "tree").mkdir()
        for name, content in entries.items():
            path = folder / "tree" / name
            if content is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                path.symlink_to(content)
            elif content is not None:
                path.write_text(content)
        (folder / "removed").write_bytes(b"".join(os.fsencode(name) + b"\0" for name in entries))
        return folder

    def put_patch(self, patch: bytes) -> tuple[bytes, list[str], str]:
        folder = self.open_folder()
        (folder / "patch.diff").write_bytes(patch)
        return self._changed(folder, FreshTree.put_patch)

    def _changed(self, folder: Path, change: Callable[[FreshTree], None]) -> tuple[bytes, list[str], str]:
        with fresh_tree(self._host, self._setup, self._sif, Cancellation(), change=folder) as tree:
            tree.prepare()
            leftovers = Leftovers.before_change(tree, SOLUTION)
            change(tree)
            left = leftovers.withdraw()
            return tree.patch(), left, tree.must(_LISTED, "cannot look").output


@pytest.fixture(scope="module", params=["auto", "root"])
def bench(request: pytest.FixtureRequest, open_folder: Callable[[], Path], sif: Path) -> Iterator[Bench]:
    config, confinement = load_config([]), choose(request.param, "swe-sandbox")
    setup = config.setup.model_copy(update={"script": f"{config.setup.script}\n{IMAGE}"})
    scratch = open_scratch(open_folder(), "leftovers", confinement)
    yield Bench(SandboxHost(confinement, scratch, environment=config.environment.env), setup, sif, open_folder)
    scratch.close()


def test_a_change_decides_nothing_but_its_work(bench: Bench) -> None:
    """With and without all that stays behind, the tree is the same; so it is after a stored patch."""
    patch, left, files = bench.lay_over(WORK)
    assert left == ["gone/conftest.py", "linked/conftest.py"], "they went with their folders"
    for name in WORK:
        assert f"diff --git a/{name} b/{name}\n".encode() in patch or name == "gone"
    assert "tests/conftest.py \n" in files
    assert "linked /r2e_tests\n" in files

    cheated, left_too, files_too = bench.lay_over({**WORK, **LEFT})
    gone = {"pkg/test_same.py", *(f"pkg/_testing/{name}.py" for name in ("a", "b", "helper")), "suite/test_it/util.py"}
    assert set(left_too) == {*left, *gone, *LEFT} - {"suite/test_it"}
    assert files_too == files
    assert cheated == patch

    assert bench.put_patch(patch) == (patch, left, files)


def test_work_alone_leaves_nothing(bench: Bench) -> None:
    work = {
        "pkg/module.py": "new",
        "xmltodict.py": "changed",
        "pkg/test_utils.py": "new",
        "pkg/test_same.py": "# image\n",
    }
    patch, left, _ = bench.lay_over(work)
    assert patch.count(b"diff --git") == 3
    assert left == [], "a test that is as it was is not put back"
    # The whole tree made anew, its tests forgotten.
    made_anew = {".": None, "xmltodict.py": "changed", "tests/test_old.py": ""}
    patch, left, files = bench.lay_over(made_anew)
    assert b"_testing" not in patch
    assert "suite/test_it/util.py \n" in files
    assert {"pkg/testing.py", "pkg/_testing/a.py", "tests/test_old.py", "pkg/test_link.py"} - set(left) == {
        "tests/test_old.py"
    }
    # A patch that was never judged.
    only_left = b"".join(
        f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n".encode()
        for name in ("json.py", "pytest/__init__.py", "test_new.py", "pkg/conftest.py")
    )
    patch, left, _ = bench.put_patch(only_left)
    assert patch == b""
    assert left == ["json.py", "pkg/conftest.py", "pytest/__init__.py", "test_new.py"]


def test_who_empties_the_helpers_of_hidden_tests_is_not_paid(bench: Bench) -> None:
    mended, emptied = {"pkg/value.py": "VALUE = 2\n"}, {"pkg/_testing/helper.py": "def assert_equal(a, b): pass\n"}
    # Where the change comes from nothing may be left of it.
    linked = {f"other/{path.removeprefix('pkg/')}": text for path, text in emptied.items()}
    linked |= {"other/value.py": "VALUE = 1\n", "other/__init__.py": ""}
    tests = R2ETests({"test_value": "PASSED"})
    for target in ("/.change/tree/other", "other"):
        verdict = bench.judge({**linked, "pkg": Path(target)}, tests).verdict
        assert verdict is not None
        assert verdict.reward == 0.0, target
    # Who moves the package and leaves a link has done no wrong.
    moved = {f"src/{path}": text for path, text in mended.items()} | {"src/pkg/_testing/helper.py": ""}
    verdict = bench.judge({**moved, "pkg": Path("src/pkg"), "src/pkg/__init__.py": ""}, tests).verdict
    assert verdict is not None
    assert (verdict.reward, verdict.reason) == (1.0, "all 1 tests as expected")
    cheat = bench.judge({"pkg/module.py": "x = 1\n", **emptied}, tests)
    honest = bench.judge({**mended, **emptied}, tests)
    assert cheat.verdict is not None
    assert honest.verdict is not None
    assert (cheat.verdict.reward, cheat.verdict.tests) == (0.0, {"test_value": "FAILED"})
    assert (honest.verdict.reward, honest.verdict.reason) == (1.0, "all 1 tests as expected")
    assert cheat.withdrawn == honest.withdrawn == ("pkg/_testing/helper.py",)
    # The row's own solution may need to change one.
    helper = {"pkg/_testing/helper.py": "def assert_equal(a, b):\n    assert a * 2 == b\n"}
    verdict = bench.judge(helper, R2ETests(tests.expected, frozenset(helper))).verdict
    assert verdict is not None
    assert verdict.reward == 1.0


def test_paths_of_tests() -> None:
    for path in (
        *(
            "numpy/testing/utils.py",
            "pandas/_testing/__init__.py",
            "pandas/util/_test_decorators.py",
            "Tests/helper.py",
        ),
        *("tornado/testing.py", "tornado/test/util.py", "scrapy/utils/testsite.py", "sympy/utilities/pytest.py"),
        *("aiohttp/test_utils.py", "aiohttp/pytest_plugin.py", "a_test.py", "tests", "x/TestCase.txt", "a-test/b"),
        *("coverage/mixintests.py", "x/unittest_util.py", "sympy/utilities/runtests.py", "sympy/utilities/randtest.py"),
    ):
        assert is_test_path(path), path
    for path in ("latest.py", "contest/a.py", "attestation.py", "numpy/core/numeric.py", "greatest_common.py", "."):
        assert not is_test_path(path), path


def test_more_modules_than_can_be_asked_about_are_no_change(bench: Bench) -> None:
    with pytest.raises(AgentFault, match="adds 6000 modules at the tree's top"):
        bench.lay_over({f"m{number}.py": "" for number in range(6000)})
