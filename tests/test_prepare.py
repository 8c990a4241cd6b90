"""The setup script from the command line to the images: real hf, pip, DuckDB and apptainer, a hub on loopback."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from faults import Answer, Cut, Hold
from hub import BROKEN, HTML, THROTTLED, Hub
from registry import tiny_tree
from setup_script import ROOT, SCRIPT, TOKEN, SetupScript, parquet, r2e_rows, swe_bench_rows
from waiting import until

from swe_rollout.prepare.options import EVAL_DATASET, PINNED, TRAIN_DATASET
from swe_rollout.rows import id_of, image_of
from swe_rollout.sandbox.images import sif_name

PANDAS, NUMPY = r2e_rows("pandas", range(3)), r2e_rows("numpy", range(2))
DJANGO = swe_bench_rows("django/django", [11, 12])
FIRST, SECOND = "data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"
TRAIN = {"README.md": b"# R2E", FIRST: parquet(PANDAS), SECOND: parquet(NUMPY)}
EVAL = {"data/test-00000-of-00001.parquet": parquet(DJANGO), "data/dev-00000-of-00001.parquet": parquet(DJANGO)}
REVISION = PINNED[TRAIN_DATASET]
NO_ROWS = parquet([], pa.schema([(name, pa.string()) for name in PANDAS[0]]))
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234\n".encode()


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    hub.put(TRAIN_DATASET, REVISION, TRAIN)
    hub.put(EVAL_DATASET, "main", EVAL)
    yield hub
    hub.close()


@pytest.fixture
def script(hub: Hub, tmp_path: Path) -> SetupScript:
    """Nothing is there; a registry neither."""
    return SetupScript(tmp_path, hub.url, R2E_REGISTRY_MIRROR="http://127.0.0.1:1", R2E_SETUP_ATTEMPTS="2")


@pytest.fixture(scope="module")
def sif(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest image that is one."""
    folder = tmp_path_factory.mktemp("sif")
    command = ["apptainer", "build", folder / "tiny.sif", tiny_tree(folder / "tree")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "tiny.sif"


@pytest.fixture
def built(script: SetupScript, sif: Path) -> SetupScript:
    """All SIFs are there: a small one under every name."""
    script.sifs.mkdir()
    for row in PANDAS + NUMPY + DJANGO:
        os.link(sif, script.sifs / sif_name(image_of(row)))
    return script


def fetched(script: SetupScript) -> dict[str, bytes]:
    """The train files on disk."""
    folder = script.data / "R2E-Gym-Subset"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("data/*")}


def without_readme(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.startswith("data/")}


def children_of(pid: int) -> list[int]:
    """All below a process, by the kernel's tree."""
    found = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *children_of(int(child))]
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_everything_through_a_day_of_faults_then_a_second_run_that_asks_nothing(hub: Hub, built: SetupScript) -> None:
    api = rf"/api/datasets/{TRAIN_DATASET}/revision/{REVISION}"
    hub.fail("GET", api, BROKEN, THROTTLED, HTML)
    hub.fail("HEAD", SECOND, THROTTLED)
    hub.fail("GET", "/cdn/", THROTTLED, Cut(), Answer(503))

    code, said = built.run(R2E_SETUP_ATTEMPTS="4")

    assert code == 0, said
    assert fetched(built) == without_readme(TRAIN)
    assert "the hub answers 500" in said
    assert "the hub answers 429" in said
    steps = ["1/3 data", "train: 5 rows, 5 images; eval: 2 rows, 2 images", "2/3 wheels", "3/3 images", "7 of 7 rows"]
    assert [step for step in steps if step in said] == steps
    assert f"R2E_DATA_PATH='{built.data}' R2E_SIF_DIR={built.sifs} " in said
    assert said.rstrip().endswith(f"bash {ROOT / 'run_mini_swe_agent.sh'}")
    assert "AGENT_SERVER_CONFIG" not in said
    # The token goes to the hub, and nowhere else.
    hub_headers = [headers for _, path, headers in hub.requests if path.startswith("/api/datasets/")]
    assert all(headers["authorization"] == f"Bearer {TOKEN}" for headers in hub_headers)
    assert not any("authorization" in headers for _, path, headers in hub.requests if path.startswith("/cdn/"))
    written = [path for path in built.data.rglob("*") if path.is_file()]
    assert not [path for path in written if TOKEN.encode() in path.read_bytes() or path.suffix == ".incomplete"]
    assert TOKEN not in said

    # What a node without a network does.
    install = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", built.data / "wheels", "--target"]
    done = subprocess.run([*install, built.folder / "node", "tiny"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    asked = len(hub.requests)
    (built.folder / "index/tiny-1.0-py3-none-any.whl").unlink()
    code, said = built.run()
    assert code == 0, said
    assert len(hub.requests) == asked
    assert said.count("there") >= 3
    assert "fetching" not in said

    # Of a machine on which Apptainer runs nothing no image is the worse.
    (built.sifs / "manifest.jsonl").unlink()
    code, said = built.run(APPTAINER_BIND="/nowhere")
    assert code == 1, said
    assert said.splitlines()[-1].startswith("setup_r2e_data_and_sifs.sh: no image can be verified on ")
    assert len(list(built.sifs.glob("*.sif"))) == 7


def test_damaged_files_are_named_and_fetched_anew(hub: Hub, script: SetupScript) -> None:
    parts = [f"data/train-0000{number}-of-00008.parquet" for number in range(8)]
    whole = {part: parquet(r2e_rows("pandas", [number])) for number, part in enumerate(parts)}
    hub.put(TRAIN_DATASET, REVISION, whole)
    code, said = script.run("--repos", "nobody", R2E_EVAL_DATASET="")
    assert code == 2, said
    folder = script.data / "R2E-Gym-Subset"
    contents = [POINTER, b"", whole[parts[2]][:300], HTML.body.encode(), whole[parts[0]] + b"PAR1"]
    for part, content in zip(parts, contents, strict=False):
        (folder / part).write_bytes(content)
    (folder / parts[5]).unlink()
    # As long as it was, and its footer is whole.
    with (folder / parts[6]).open("r+b") as file:
        file.seek(100)
        file.write(bytes(1000))
    asked = len(hub.requests)

    code, said = script.run("--check", R2E_EVAL_DATASET="")

    assert code == 1
    for part in parts[:7]:
        assert f"{folder / part} " in said
    assert str(folder / parts[7]) not in said
    assert len(hub.requests) == asked

    code, said = script.run("--repos", "nobody", R2E_EVAL_DATASET="")

    assert code == 2, said
    assert fetched(script) == whole
    # All once, and the damaged ones again.
    assert hub.count("GET", "/cdn/") == 8 + 7


@pytest.mark.parametrize("is_large", [True, False])
def test_what_the_hub_itself_has_damaged_is_refused_by_name_and_not_kept(
    hub: Hub, script: SetupScript, is_large: bool
) -> None:
    contents = [TRAIN[FIRST], POINTER, b"", TRAIN[SECOND][:300], parquet([{"text": "x"}]), NO_ROWS]
    files = {f"data/train-0000{number}-of-00006.parquet": content for number, content in enumerate(contents)}
    hub.put(TRAIN_DATASET, REVISION, files, is_large=is_large)

    code, said = script.run(R2E_EVAL_DATASET="")

    assert code == 1
    (line,) = re.findall("(?m)^   train data: (.*)", said)
    good, *bad = files
    assert all(f"R2E-Gym-Subset/{name} " in line for name in bad)
    assert "not begun" in said
    assert list(fetched(script)) == [good]
    # Without a hash, the damage may be one of the way: once more, and no more. hf asks for no empty file.
    assert hub.count("GET", "/cdn/|/resolve/") == (5 if is_large else 5 + 4)


def test_a_page_of_something_in_between_is_not_taken_for_data(hub: Hub, script: SetupScript) -> None:
    hub.fail("GET", "/cdn/", *[HTML] * 100)

    code, said = script.run(R2E_EVAL_DATASET="")

    assert code == 1
    assert re.search("train data: .* could not be fetched: hf ended with 1: .*[Cc]onsistency check failed", said)
    assert "trying again in" in said
    assert said.count("run the same command to go on") == 1
    assert fetched(script) == {}


def test_a_hub_that_stays_broken_is_asked_a_few_times_and_one_that_says_no_once(hub: Hub, script: SetupScript) -> None:
    hub.fail("GET", f"/api/datasets/{TRAIN_DATASET}/", *[BROKEN] * 100)

    code, said = script.run(
        R2E_SETUP_ATTEMPTS="3", R2E_EVAL_REVISION="nowhere", R2E_WHEELS_REQUIREMENTS="/nowhere/wanted.txt"
    )

    assert code == 1
    assert hub.count("GET", f"/api/datasets/{TRAIN_DATASET}/revision") == 3
    assert hub.count("GET", f"/api/datasets/{EVAL_DATASET}/revision") == 1
    # All that failed is told at the end, each in a line.
    assert re.findall(r"(?m)^   (\S.*?): ", said.partition("failed: ")[2]) == ["train data", "eval data", "wheels"]
    assert "has no revision nowhere: check R2E_EVAL_REVISION" in said

    hub.reset()
    hub.fail("GET", f"/api/datasets/{EVAL_DATASET}/", Answer(429, {"Retry-After": "999999999999"}))
    code, said = script.run(R2E_TRAIN_DATASET="")
    assert code == 1, said
    assert "the hub answers 429 when asked for" in said
    assert " and asks to wait 277777777.8 h, longer than the 6.0 h that are left; run the same command" in said
    assert hub.count("GET", f"/api/datasets/{EVAL_DATASET}/revision") == 1

    code, said = script.run(R2E_TRAIN_DATASET="someone/else", R2E_EVAL_DATASET="")
    assert code == 1
    assert "someone/else" in said
    assert hub.count("GET", "/api/datasets/someone/else/revision") == 1
    code, said = script.run(R2E_TRAIN_DATASET="", R2E_EVAL_SPLIT="validation")
    assert code == 1
    assert "no file data/validation-*.parquet: check R2E_EVAL_SPLIT (it has: dev, test)" in said


def test_what_is_wrong_from_the_start_is_told_before_anything_is_fetched(hub: Hub, script: SetupScript) -> None:
    code, said = script.run("--ids", "none.txt")
    assert (code, hub.requests) == (2, [])
    assert said == "setup_r2e_data_and_sifs.sh: --ids none.txt cannot be read: No such file or directory\n"
    (script.folder / "empty.txt").write_bytes(b"\xef\xbb\xbf# none yet\n")
    (script.folder / "binary.txt").write_bytes(b"\xff\xfe")
    for name, words in {"empty.txt": "names no id", "binary.txt": "cannot be read: it is not text in UTF-8"}.items():
        code, said = script.run("--ids", name)
        assert (code, hub.requests) == (2, [])
        assert said == f"setup_r2e_data_and_sifs.sh: --ids {name} {words}\n"
    script.sifs.touch()
    code, said = script.run()
    assert (code, hub.requests) == (1, [])
    assert said.endswith(f"cannot write to {script.sifs}: Not a directory; set R2E_SIF_DIR to another\n")


def test_another_revision_replaces_what_hf_had_fetched_though_hf_takes_the_old_for_good(
    hub: Hub, script: SetupScript
) -> None:
    assert script.run("--repos", "nobody", R2E_EVAL_DATASET="")[0] == 2
    other = hub.put(TRAIN_DATASET, "one-file", {"data/train-00000-of-00001.parquet": parquet(NUMPY)})
    # hf ends with 0 and the old folder if it is refused the list of files.
    hub.fail("GET", f"/tree/{other}", Answer(403))

    code, said = script.run("--repos", "nobody", R2E_EVAL_DATASET="", R2E_TRAIN_REVISION="one-file")

    assert code == 2, said
    assert list(fetched(script)) == ["data/train-00000-of-00001.parquet"]
    assert "hf ended with 0" in said

    mine = script.data / "R2E-Gym-Subset/data/train-mine.parquet"
    mine.write_bytes(parquet(NUMPY))
    code, said = script.run(R2E_EVAL_DATASET="")
    assert code == 1
    assert f"{mine} does not belong to {TRAIN_DATASET} train" in said
    assert mine.exists()


def test_killed_in_the_midst_then_run_again(hub: Hub, built: SetupScript) -> None:
    held = Hold()
    hub.fail("GET", "/cdn/", held)
    process = built.start(R2E_EVAL_DATASET="")
    assert held.reached.wait(200)
    below = children_of(process.pid)
    assert below

    process.kill()
    process.communicate()

    # hf and whatever else was started.
    until(lambda: not any(map(is_alive, below)), "the script's children end with it")
    held.release.set()
    code, said = built.run(R2E_EVAL_DATASET="")
    assert code == 0, said
    assert fetched(built) == without_readme(TRAIN)
    assert not list(built.data.rglob("*.incomplete"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_by_a_signal(hub: Hub, script: SetupScript, number: signal.Signals, code: int) -> None:
    held = Hold()
    hub.fail("GET", "/cdn/", held)
    process = script.start()
    assert held.reached.wait(200)
    below = children_of(process.pid)

    process.send_signal(number)
    said, _ = process.communicate(timeout=200)

    assert process.returncode == code
    assert said.endswith("setup_r2e_data_and_sifs.sh: stopped; run the same command to go on\n")
    until(lambda: not any(map(is_alive, below)), "the script's children end with it")
    assert not list(script.data.rglob("*.incomplete"))
    held.release.set()


def test_stopped_while_the_hub_does_not_answer(hub: Hub, script: SetupScript) -> None:
    held = Hold()
    hub.fail("GET", "/revision/", held)
    process = script.start()
    assert held.reached.wait(200)

    process.terminate()
    said, _ = process.communicate(timeout=200)

    assert process.returncode == 143, said
    held.release.set()


def test_two_runs_share_the_work(hub: Hub, built: SetupScript) -> None:
    held = Hold()
    hub.fail("GET", "/cdn/", held)
    # It must not ask again while the second one takes its time to start.
    first = built.start(R2E_EVAL_DATASET="", HF_HUB_DOWNLOAD_TIMEOUT="200")
    assert held.reached.wait(200)
    second = built.start(R2E_EVAL_DATASET="")
    assert second.stdout is not None
    begun = ""
    while "waiting for it" not in begun:
        begun += (line := second.stdout.readline())
        assert line, begun
    held.release.set()

    ends = [process.communicate(timeout=200)[0] for process in (first, second)]

    assert (first.returncode, second.returncode) == (0, 0), ends
    assert fetched(built) == without_readme(TRAIN)
    assert hub.count("GET", "/cdn/") == 2
    assert "fetching" not in ends[1]


def test_only_what_is_asked_for(built: SetupScript) -> None:
    def images(*flags: str) -> set[str]:
        code, said = built.run("--check", *flags)
        # What is wanted and has no SIF is named.
        assert code == 1, said
        return set(re.findall(r"(?m)^   (\S+/\S+): ", said.partition("failed: ")[2]))

    code, said = built.run("--limit", "1")
    assert code == 0, said
    assert "1 of 7 rows have their image" not in said
    # What is told to be typed next must start, also if a mode has no image.
    for row in DJANGO:
        (built.sifs / sif_name(image_of(row))).unlink()
    code, said = built.run("--repos", "pandas")
    assert code == 0, said
    assert "eval: no row has its image" in said
    assert " AGENT_SERVER_CONFIG=data.eval= " in said
    for path in built.sifs.glob("*.sif"):
        path.unlink()
    ids = built.folder / "ids.txt"
    ids.write_text(f"# mine\r\n{id_of(PANDAS[2])}\r\n\r\n{id_of(DJANGO[1])}\r\n", "utf-8-sig")
    named = {image_of(PANDAS[2]), image_of(DJANGO[1])}

    assert images("--ids", "ids.txt") == named
    assert "swebench/sweb.eval.x86_64.django_1776_django-12:latest" in named
    assert images("--repos", "numpy,django/django") == {image_of(row) for row in NUMPY + DJANGO}
    assert images("--limit", "3") == {image_of(row) for row in (PANDAS[0], DJANGO[0], PANDAS[1])}

    for flags, words in {
        ("--repos", "nump"): "no row is of the repo nump; there are: django/django, numpy, pandas",
        ("--repos", "numpy", "--ids", "ids.txt"): "0 of 7 rows name an image that is wanted",
        ("--repos", " ,"): "--repos names no repo",
        ("--min-free-gb", "inf"): "inf is not a finite number",
        (
            "--registry-mirror",
            "ftp://here",
        ): "registry mirror 'ftp://here' is not written [http://]HOST[:PORT][/PREFIX]",
        ("--check", "--prune"): "--check and --prune are two things",
        ("--prune", "--limit", "3"): "--limit, --repos and --ids do not go with it",
        ("--yes",): "--yes belongs to --prune",
    }.items():
        code, said = built.run(*flags)
        assert code == 2, said
        assert words in said.splitlines()[-1]
    code, said = built.run(R2E_SETUP_JOBS="3")
    assert code == 2
    assert "R2E_SETUP_JOBS is no variable of this program; there are: R2E_SETUP_ATTEMPTS, " in said
    ids.write_text(f"{id_of(PANDAS[2])}\npandas__000000000000\nnobody__1\n")
    code, said = built.run("--ids", "ids.txt")
    assert code == 2
    assert "no row has the id pandas__000000000000, nobody__1 (ids.txt)" in said


def test_damaged_sifs_count_as_none(built: SetupScript, sif: Path) -> None:
    empty, rotten, cut = (built.sifs / sif_name(image_of(row)) for row in (*NUMPY, PANDAS[0]))
    for path in (empty, rotten, cut):
        path.unlink()
        shutil.copy(sif, path)
    os.truncate(empty, 0)
    # Only a program that does not run in it tells.
    with rotten.open("r+b") as file:
        file.seek(40960)
        file.write(bytes(sif.stat().st_size - 40960))
    # Not looked at in this run but for what the server looks at.
    os.truncate(cut, 40960)

    code, said = built.run("--repos", "numpy")

    assert code == 1, said
    assert "building again: " in said
    assert "2 images: 0 there, 2 failed" in said
    assert "4 of 7 rows have their image; the server leaves the others out" in said


def test_prune_looks_at_all_rows_and_removes_only_when_told(hub: Hub, built: SetupScript, sif: Path) -> None:
    code, said = built.run("--prune")
    assert code == 1
    assert "matches no file" in said

    hub.put("R2E-Gym/R2E-Gym-Lite", PINNED["R2E-Gym/R2E-Gym-Lite"], {"data/train-0.parquet": parquet(NUMPY)})
    hub.put(TRAIN_DATASET, REVISION, {FIRST.replace("2.", "1."): parquet(PANDAS)})
    for variables in ({}, {"R2E_TRAIN_DATASET": "R2E-Gym/R2E-Gym-Lite"}):
        code, said = built.run("--limit", "1", **variables)
        assert code == 0, said
    assert "AGENT_SERVER_CONFIG='data.train=R2E-Gym-Lite/data/train-*.parquet'" in said
    old = built.sifs / "tests__old__1.sif"
    os.link(sif, old)
    needed = sorted(path for path in built.sifs.glob("*.sif") if path != old)

    code, said = built.run("--prune")
    assert code == 0
    assert f"unneeded: {old} " in said
    assert "--prune --yes removes" in said
    assert old.exists()

    lite = built.data / "R2E-Gym-Lite/data/train-0.parquet"
    whole = lite.read_bytes()
    lite.write_bytes(whole[:300])
    code, said = built.run("--prune", "--yes")
    assert code == 1
    assert str(lite) in said
    assert old.exists()

    lite.write_bytes(whole)
    assert built.run("--prune", "--yes")[0] == 0
    assert sorted(built.sifs.glob("*.sif")) == needed


def test_help_needs_nothing_and_a_venv_without_packages_is_told(tmp_path: Path) -> None:
    bare = {"PATH": "/usr/bin:/bin"}
    for environment in (bare, {**bare, "MINI_SWE_AGENT_VENV": sys.prefix}):
        done = subprocess.run(["bash", SCRIPT, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert all(word in done.stdout for word in ("--limit", "--check", "R2E_SIF_DIR", "MINI_SWE_AGENT_VENV"))

    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    environment = {**os.environ, "MINI_SWE_AGENT_VENV": "venv", "R2E_DATA_PATH": "d", "R2E_SIF_DIR": "s"}
    environment["PATH"] = f"{sys.prefix}/bin:{os.environ['PATH']}"
    done = subprocess.run(["bash", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"uv pip install --python {venv}/bin/python huggingface_hub oras pip pyarrow rich tenacity typer" in line
