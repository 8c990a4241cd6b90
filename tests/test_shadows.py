"""New modules at the top of a tree: which of them a real interpreter would import in the place of others."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from swe_rollout.scoring.shadows import probe_script, shadowing, top_modules


def test_only_files_that_make_a_module_count() -> None:
    added = [
        "pytest.py",
        "_pytest/__init__.py",
        "_pytest/runner.py",
        "json.cpython-39-x86_64-linux-gnu.so",
        "json.abi3.so",
        "xml/__init__.so",
        "site.pyc",
        "py/data.txt",
        "docs/conf.py",
        "src/os/__init__.py",
        "not-a-name.py",
        "README.md",
        "a.b.c.py",
    ]
    assert top_modules(added) == {
        "_pytest": ["_pytest"],
        "json": ["json.abi3.so", "json.cpython-39-x86_64-linux-gnu.so"],
        "pytest": ["pytest.py"],
        "site": ["site.pyc"],
        "xml": ["xml"],
    }


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a `.venv` in it, as images have; installed there: a module, the tree itself, and a noisy start."""
    tree = tmp_path_factory.mktemp("tree")
    venv.create(tree / ".venv", with_pip=False)
    packages = next((tree / ".venv/lib").glob("python*/site-packages"))
    (packages / "pluggy.py").write_text("")
    (packages / "spaced").mkdir()
    (packages / "tree.pth").write_text(f"{tree}\nimport sys; sys.stdout.write('noise')\n")
    (packages / "finder.pth").write_text("import finder; sys.meta_path.append(finder)\n")
    (packages / "finder.py").write_text(
        f"""
from importlib.util import spec_from_file_location
def find_spec(name, path, target=None):
    if name == "editable": return spec_from_file_location(name, {str(tree / "editable.py")!r})
    if name == "fails": raise RuntimeError(name)
"""
    )
    for name in ("own.py", "editable.py"):
        (tree / name).write_text("")
    return tree


def test_the_interpreter_tells_what_it_finds_elsewhere(tree: Path) -> None:
    shadows = ["json.py", "sys.py", "xml", "encodings", "os.py", "pluggy.py", "spaced.py", "finder.py"]
    harmless = ["own.py", "editable.py", "fails.py", "repro.py", "new_package", "pytest.py"]
    added = [name if name.endswith(".py") else f"{name}/__init__.py" for name in shadows + harmless]
    modules = top_modules(added)
    for python in (".venv/bin/python", str(tree / ".venv/bin/python")):
        output = ask(probe_script(modules, str(tree), python), tree)
        assert "noise" in output
        assert sorted(shadowing(output, modules)) == sorted(shadows)
    # The interpreter that runs these tests has a pytest.
    assert "pytest.py" in shadowing(ask(probe_script(modules, str(tree), sys.executable), tree), modules)
    assert shadowing(ask(probe_script([], str(tree), ".venv/bin/python"), tree), {}) == []


def test_a_probe_that_did_not_end_is_no_answer(tree: Path) -> None:
    modules = top_modules(["json.py"])
    with pytest.raises(ValueError, match=r"did not tell its modules: .*none"):
        shadowing(ask(probe_script(modules, str(tree), ".venv/bin/none"), tree), modules)
    with pytest.raises(ValueError, match="no output"):
        shadowing("", modules)


def ask(script: str, tree: Path) -> str:
    done = subprocess.run(
        ["bash", "-c", script], cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout
