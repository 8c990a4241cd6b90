"""What travels from a layer to the judge, for both kinds of layer, which are made here as the kernel makes them."""

import os
import stat
from pathlib import Path

import pytest

from swe_rollout.errors import AgentFault, ScoringError
from swe_rollout.sandbox.scratch import remove_tree
from swe_rollout.scoring.change import capture
from swe_rollout.scoring.layer_file import read_layer_file


def write(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_what_travels_and_what_gives_way(tmp_path: Path) -> None:
    tree = tmp_path / "layer" / "upper" / "testbed"
    for name in (
        *("module.py", "pkg/scripts/run_tests.sh", "pkg/data.pyc", "pkg/__pycache__/m.pyc", "pkg/.git/HEAD"),
        *(".git/config", ".venv/bin/python", "r2e_tests/conftest.py", "run_tests.sh", ".pytest_cache/x"),
    ):
        write(tree / name)
    # Removed: as the kernel says it, as fuse-overlayfs says it, and what stays behind anyway.
    os.mknod(tree / "pkg" / "gone.py", stat.S_IFCHR, 0)
    os.mknod(tree / "gone", stat.S_IFCHR, 0)
    write(tree / "pkg" / ".wh.also_gone.py", "")
    write(tree / ".wh.run_tests.sh", "")
    # Made anew: a folder that hides the image's one.
    write(tree / "anew" / "file")
    os.setxattr(tree / "anew", "trusted.overlay.opaque", b"y")
    write(tree / "anew_too" / "sub" / "file")
    write(tree / "anew_too" / ".wh..wh..opq", "")
    # What only looks like a mark: the agent may name and label its own files as it likes.
    write(tree / ".wh.folder" / "file")
    write(tree / "labelled" / "file")
    os.setxattr(tree / "labelled", "user.overlay.redirect", b"/elsewhere")
    # No part of a change, or no longer dangerous.
    os.mkfifo(tree / "fifo")
    (tree / "outside").symlink_to("/etc")
    (tree / "dangling").symlink_to("nowhere")
    write(tree / "setuid").chmod(0o4000)
    (tree / "closed").mkdir()
    write(tree / "closed" / "file")
    (tree / "closed").chmod(0)

    change = capture(tmp_path / "layer", "/testbed", tmp_path / "change")

    travelled = {str(path.relative_to(change.folder / "tree")) for path in (change.folder / "tree").rglob("*")}
    assert travelled == {
        *("module.py", "pkg", "pkg/scripts", "pkg/scripts/run_tests.sh", "anew", "anew/file", "anew_too"),
        *(".wh.folder", ".wh.folder/file", "labelled", "labelled/file"),
        *("anew_too/sub", "anew_too/sub/file", "outside", "dangling", "setuid", "closed", "closed/file"),
    }
    removed = set((change.folder / "removed").read_bytes().decode().rstrip("\0").split("\0"))
    assert removed == {
        *("pkg/gone.py", "gone", "pkg/also_gone.py", "anew", "anew/file", "anew_too", "anew_too/sub/file"),
        *("module.py", "pkg/scripts/run_tests.sh", "outside", "dangling", "setuid", "closed/file"),
        *(".wh.folder/file", "labelled/file"),
    }
    assert stat.S_IMODE((change.folder / "tree" / "setuid").stat().st_mode) == 0o600
    assert (change.folder / "tree" / "outside").readlink() == Path("/etc")
    assert not change.is_empty


def test_what_is_no_tree_is_the_agents_fault(tmp_path: Path) -> None:
    upper = tmp_path / "nothing" / "upper"
    upper.mkdir(parents=True)
    assert capture(upper.parent, "/testbed", tmp_path / "change").is_empty

    for name in ("file", "link", "whiteout"):
        upper = tmp_path / name / "upper"
        upper.mkdir(parents=True)
        if name == "file":
            write(upper / "testbed")
        elif name == "link":
            (upper / "testbed").symlink_to("/etc")
        else:
            os.mknod(upper / "testbed", stat.S_IFCHR, 0)
        with pytest.raises(AgentFault, match="/testbed is no longer a folder"):
            capture(upper.parent, "/testbed", tmp_path / f"change of {name}")

    for name in ("link", "whiteout", "fuse whiteout", "made anew without it"):
        upper = tmp_path / f"{name} above" / "upper"
        upper.mkdir(parents=True)
        host = tmp_path / f"{name} host"
        write(host / "repo" / "file")
        if name == "link":
            (upper / "work").symlink_to(host)
        elif name == "whiteout":
            os.mknod(upper / "work", stat.S_IFCHR, 0)
        elif name == "fuse whiteout":
            write(upper / ".wh.work", "")
        else:
            write(upper / "work" / ".wh..wh..opq", "")
        with pytest.raises(AgentFault, match="/work/repo is no longer a folder"):
            capture(upper.parent, "/work/repo", tmp_path / f"change of {name} above")
        assert (host / "repo" / "file").exists()

    deep = tmp_path / "deep" / "upper" / "testbed"
    deep.mkdir(parents=True)
    here = Path.cwd()
    try:
        os.chdir(deep)
        for _ in range(60):
            Path("d" * 200).mkdir()
            os.chdir("d" * 200)
    finally:
        os.chdir(here)
    with pytest.raises(AgentFault, match="nested too deeply"):
        capture(tmp_path / "deep", "/testbed", tmp_path / "deep change")
    remove_tree(tmp_path / "deep change")
    assert not (tmp_path / "deep change").exists()


def test_a_tree_below_a_folder_that_was_made_anew(tmp_path: Path) -> None:
    work = tmp_path / "layer" / "upper" / "work"
    write(work / "repo" / "file")
    write(work / ".wh..wh..opq", "")
    change = capture(tmp_path / "layer", "/work/repo", tmp_path / "change")
    assert (change.folder / "removed").read_bytes() == b"file\0.\0"


def test_a_layer_that_cannot_be_read_is_no_verdict(tmp_path: Path) -> None:
    tree = tmp_path / "upper" / "testbed"
    (tree / "moved").mkdir(parents=True)
    os.setxattr(tree / "moved", "trusted.overlay.redirect", b"/elsewhere")
    with pytest.raises(ScoringError, match=r"overlayfs trusted\.overlay\.redirect"):
        capture(tmp_path, "/testbed", tmp_path / "change")
    with pytest.raises(ScoringError, match=r"layer cannot be read: .*No such file"):
        capture(tmp_path, "/testbed", tmp_path / "not there" / "change")


def test_a_file_of_the_layer_is_read_without_following_anything(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", "of the host")
    tmp = write(tmp_path / "upper" / "tmp" / "report.xml", "0123456789").parent
    (tmp / "link").symlink_to(secret)
    (tmp / "folder_link").symlink_to(tmp_path)
    (tmp / "folder").mkdir()
    os.mkfifo(tmp / "fifo")
    os.mknod(tmp / "gone", stat.S_IFCHR, 0)
    assert read_layer_file(tmp_path, "/tmp/report.xml", 100) == b"0123456789"
    assert read_layer_file(tmp_path, "/tmp/report.xml", 4) == b"0123"
    for name in ("link", "folder_link/secret", "folder", "fifo", "gone", "missing", "report.xml/more", "fifo/more"):
        assert read_layer_file(tmp_path, f"/tmp/{name}", 100) == b"", name
    with pytest.raises(ScoringError, match=r"layer cannot be read: .*File name too long"):
        read_layer_file(tmp_path, f"/tmp/{'x' * 300}", 100)
