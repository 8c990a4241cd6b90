"""SIFs built by the real apptainer from a real registry that fails as told."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from faults import Answer, Cut, Hold
from registry import BROKEN, PORTAL, THROTTLED, LocalRegistry, small_images, tiny_tree
from rich.console import Console
from waiting import until

from swe_rollout.errors import StartupError
from swe_rollout.prepare.plan import BuildOptions, BuildReport
from swe_rollout.prepare.registry import Reference, locate
from swe_rollout.prepare.sifs import build_sifs, check_sifs, unneeded_sifs
from swe_rollout.prepare.wish import retry_after
from swe_rollout.sandbox.images import check_sif, sif_name

IMAGES = [f"team/project_{name}:v1" for name in ("one", "two", "three", "four", "five")]
RUN = """
import json, sys, threading
from pathlib import Path
from rich.console import Console
from swe_rollout.prepare.plan import BuildOptions
from swe_rollout.prepare.sifs import build_sifs
images, folder, options = json.loads(sys.argv[1])
report = build_sifs(images, Path(folder), BuildOptions(**options), Console(stderr=True), threading.Event())
print(json.dumps({"built": report.n_built, "kept": report.n_kept, "failures": dict(report.failures)}))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tree(tmp_path_factory.mktemp("tree") / "root")


@pytest.fixture(scope="module")
def stocked(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    registry = LocalRegistry()
    try:
        small_images(registry, tree, tmp_path_factory.mktemp("own"), IMAGES)
        yield registry
    finally:
        registry.close()


@pytest.fixture
def registry(stocked: LocalRegistry) -> LocalRegistry:
    stocked.reset()
    return stocked


class Folder:
    """A SIF folder and what was printed while it was worked on."""

    def __init__(self, path: Path, registry: LocalRegistry) -> None:
        self.path, self.registry = path, registry
        self.printed = ""

    def options(self, **changes: Any) -> dict[str, Any]:
        quick = {"max_jobs": 2, "start_interval": 0.0, "min_free_bytes": 0, "first_pause": 0.05}
        return {**quick, "registry_mirror": self.registry.url, **changes}

    def build(self, images: Sequence[str] = IMAGES, stop: threading.Event | None = None, **changes: Any) -> BuildReport:
        return self._call(build_sifs, images, stop or threading.Event(), changes)

    def check(self, images: Sequence[str] = IMAGES, **changes: Any) -> BuildReport:
        return self._call(check_sifs, images, threading.Event(), changes)

    def start(self, images: Sequence[str] = IMAGES, **changes: Any) -> "subprocess.Popen[str]":
        argument = json.dumps([images, str(self.path), self.options(**changes)])
        return subprocess.Popen(
            [sys.executable, "-c", RUN, argument],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )

    def sif(self, image: str) -> Path:
        return self.path / sif_name(image)

    def manifest(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "manifest.jsonl").read_text().splitlines()]

    def is_tidy(self) -> bool:
        """No temporary file, no folder of a run."""
        beside = {path.name for path in self.path.iterdir()} - {sif_name(image) for image in IMAGES}
        return beside <= {".setup", "manifest.jsonl"} and {p.name for p in (self.path / ".setup").iterdir()} <= {
            "locks",
            "logs",
        }

    def _call(
        self, call: Callable[..., BuildReport], images: Sequence[str], stop: threading.Event, changes: Any
    ) -> Any:
        console = Console(file=StringIO(), width=200)
        try:
            return call(images, self.path, BuildOptions(**self.options(**changes)), console, stop)
        finally:
            self.printed = console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path, registry: LocalRegistry) -> Folder:
    return Folder(tmp_path / "sifs", registry)


@pytest.fixture(scope="module")
def good(stocked: LocalRegistry, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All images, built."""
    stocked.reset()
    folder = Folder(tmp_path_factory.mktemp("good") / "sifs", stocked)
    assert folder.build().n_built == len(IMAGES)
    return folder.path


def manifests(image: str) -> str:
    return f"/v2/{image.replace(':', '/manifests/')}$"


def pulls(image: str) -> str:
    return f"/v2/{image.split(':')[0]}/manifests/sha256:"


def running_below(path: Path) -> list[str]:
    """Command lines of processes that work below `path`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace")
            if int(process.name) != os.getpid() and str(path) in words:
                found.append(words.replace("\0", " "))
        except OSError:
            continue
    return found


def test_throttled_broken_and_cut_answers_are_waited_out_while_a_missing_tag_is_named_at_once(folder: Folder) -> None:
    registry = folder.registry
    one, two, _, four, five = IMAGES
    missing = "team/project_one:gone"
    registry.fail("HEAD", manifests(one), THROTTLED, THROTTLED)
    registry.fail("HEAD", manifests(two), BROKEN, BROKEN)
    registry.fail("GET", "/v2/team/project_three/blobs/", Cut())
    registry.fail("GET", pulls(four), *[BROKEN] * 2)
    registry.fail("GET", pulls(five), *[THROTTLED] * 2)
    report = folder.build([*IMAGES, missing])
    assert (report.n_built, report.n_kept, report.n_left, report.stopped) == (5, 0, 0, False)
    assert list(report.failures) == [missing]
    assert "manifest unknown" in report.failures[missing]
    assert registry.count("HEAD", manifests(missing)) == 1
    assert registry.count("HEAD", manifests(one)) == 3
    assert registry.count("HEAD", manifests(two)) == 3
    assert "429" in folder.printed
    assert f"failed {missing}: " in folder.printed
    for image in IMAGES:
        check_sif(folder.sif(image))
        assert folder.sif(image).stat().st_mode & 0o777 == 0o644
    entries = {entry["image"]: entry for entry in folder.manifest()}
    assert entries.keys() == set(IMAGES)
    assert len({entry["digest"] for entry in entries.values()}) == 5
    assert all(entry["digest"].startswith("sha256:") and len(entry["sha256"]) == 64 for entry in entries.values())
    assert report.bytes == sum(entry["size"] for entry in entries.values())
    assert folder.is_tidy()

    # What is there is not asked for again.
    asked = len(registry.requests)
    again = folder.build([*IMAGES, missing])
    assert (again.n_built, again.n_kept, list(again.failures)) == (0, 5, [missing])
    assert len(registry.requests) == asked + 1
    assert len(folder.manifest()) == 5


def test_one_image_that_never_works_leaves_the_others_going(folder: Folder) -> None:
    bad, portal, *_ = IMAGES
    folder.registry.fail("GET", pulls(bad), *[BROKEN] * 99)
    folder.registry.fail("HEAD", manifests(portal), PORTAL)
    report = folder.build(attempts=2, max_jobs=1, cache_bytes=1)
    assert (report.n_built, report.failures.keys()) == (3, {bad, portal})
    assert "web page" in report.failures[portal]
    log = Path(report.failures[bad].partition("; log: ")[2])
    assert "500" in log.read_text()
    assert not folder.sif(bad).exists()
    assert folder.is_tidy()
    folder.registry.reset()
    mended = folder.build()
    assert (mended.n_built, mended.n_kept, mended.failures) == (2, 3, {})
    assert not log.exists()


def test_a_registry_that_throttles_for_good_is_given_up_and_one_that_wants_a_login_gets_it(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, *_ = IMAGES
    folder.registry.fail("HEAD", manifests(one), *[Answer(429)] * 99)
    report = folder.build([one], throttled_seconds=0.5)
    assert "429" in report.failures[one]
    assert 2 <= folder.registry.count("HEAD", manifests(one)) < 50
    # A pause does not outlast the time for throttling: this one would take an hour.
    folder.registry.reset()
    folder.registry.fail("HEAD", manifests(one), Answer(429))
    assert folder.build([one], throttled_seconds=0.5, first_pause=3600.0, longest_pause=3600.0).n_built == 1

    docker = tmp_path / ".docker"
    docker.mkdir()
    host = folder.registry.url.removeprefix("http://")
    docker.joinpath("config.json").write_text(json.dumps({"auths": {host: {"auth": "dXNlcjpwYXNz"}}}))
    monkeypatch.setenv("HOME", str(tmp_path))
    challenge = f'Bearer realm="{folder.registry.url}/token",service="here",scope="repository:pull"'
    folder.registry.fail("HEAD", manifests(two), Answer(401, {"Www-Authenticate": challenge}))
    folder.registry.fail("GET", "/token", Answer(200, {"Content-Type": "application/json"}, '{"token": "secret"}'))
    assert folder.build([two]).n_built == 1
    sent = {
        (method, path.partition("?")[0]): headers.get("Authorization")
        for method, path, headers in folder.registry.requests
    }
    assert sent["GET", "/token"] == "Basic dXNlcjpwYXNz"
    assert sent["HEAD", "/v2/team/project_two/manifests/v1"] == "Bearer secret"


def test_a_wish_to_wait_for_too_long_is_named_and_not_granted(folder: Folder) -> None:
    week, ages, past_it, _, other = IMAGES
    folder.registry.fail("HEAD", manifests(week), Answer(429, {"Retry-After": "604800"}))
    folder.registry.fail("HEAD", manifests(ages), Answer(429, {"Retry-After": "999999999999"}))
    folder.registry.fail("HEAD", manifests(past_it), Answer(429, {"Retry-After": "9" * 400}))
    report = folder.build([week, ages, past_it, other])
    assert (report.n_built, report.failures.keys()) == (1, {week, ages, past_it})
    for image, wish in {week: "168.0 h", ages: "277777777.8 h", past_it: "inf h"}.items():
        assert f"(429 Too Many Requests) and asks to wait {wish}, longer than the 6.0 h" in report.failures[image]
        assert folder.registry.count("HEAD", manifests(image)) == 1


def test_words_that_say_nothing_are_tried_once_more_whatever_was_before(folder: Folder) -> None:
    mended, lost, *_ = IMAGES
    for image, n_unclear in ((mended, 1), (lost, 99)):
        folder.registry.fail("HEAD", manifests(image), BROKEN)
        folder.registry.fail("GET", pulls(image), *[Answer(418)] * n_unclear)
    report = folder.build([mended, lost])
    assert (report.n_built, report.failures.keys()) == (1, {lost})
    assert "418" in report.failures[lost]
    assert [folder.registry.count("HEAD", manifests(image)) for image in (mended, lost)] == [3, 3]


def test_a_wish_to_wait_that_only_apptainer_hears_is_asked_for_again(folder: Folder) -> None:
    one = IMAGES[0]
    folder.registry.fail("GET", pulls(one), Answer(429))
    folder.registry.fail("GET", manifests(one), Answer(429, {"Retry-After": "2"}))
    assert folder.build([one]).n_built == 1
    assert "429" in folder.printed
    assert "no build begins for 2 s" in folder.printed


@pytest.mark.parametrize("known", [False, True], ids=["found", "in the manifest"])
def test_damaged_sifs_are_noticed_and_built_again_while_good_ones_stay(folder: Folder, good: Path, known: bool) -> None:
    shutil.copytree(good, folder.path, ignore=None if known else lambda *_: ["manifest.jsonl"])
    cut, empty, page, rotten, whole = IMAGES
    # A copy that was cut, an empty file, an error page, a file with holes, a good one beside what a killed copy left.
    os.truncate(folder.sif(cut), folder.sif(cut).stat().st_size // 2)
    os.truncate(folder.sif(empty), 0)
    folder.sif(page).write_text("<html>429</html>")
    size = folder.sif(rotten).stat().st_size
    with folder.sif(rotten).open("r+b") as file:
        file.seek(40960)
        file.write(bytes(size - 40960))
    before = folder.sif(whole).stat()
    folder.path.joinpath(f"{sif_name(cut)}.tmp").write_text("half")
    checked = folder.check([*IMAGES, "team/project_six:v1"])
    assert checked.n_kept == 1
    assert checked.failures.keys() == {cut, empty, page, rotten, "team/project_six:v1"}
    assert "cut short" in checked.failures[cut]
    assert "not a SIF" in checked.failures[empty]
    assert "not a SIF" in checked.failures[page]
    assert "missing" in checked.failures["team/project_six:v1"]
    report = folder.build()
    assert (report.n_built, report.n_kept, report.failures) == (4, 1, {})
    assert folder.sif(whole).stat().st_mtime_ns == before.st_mtime_ns
    assert folder.is_tidy()
    assert folder.check().n_kept == 5


def test_a_machine_that_can_run_no_sandbox_is_told_and_no_image_is_blamed(
    folder: Folder, good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(good, folder.path, ignore=lambda *_: ["manifest.jsonl"])
    folder.sif(IMAGES[0]).unlink()
    before = {sif: sif.stat().st_mtime_ns for sif in folder.path.glob("*.sif")}
    # Apptainer refuses to run anything then, but builds as ever.
    monkeypatch.setenv("APPTAINER_BIND", "/nowhere")
    for work in (folder.check, folder.build):
        with pytest.raises(StartupError, match=rf"no image can be verified on {os.uname().nodename}.*/nowhere") as told:
            work()
        assert "\n" not in str(told.value)
    assert folder.registry.requests == []
    assert {sif: sif.stat().st_mtime_ns for sif in folder.path.glob("*.sif")} == before
    assert "building again" not in folder.printed
    assert folder.is_tidy()
    # Where nothing is to be verified, nothing is tried.
    assert folder.check(IMAGES[:1]).failures.keys() == {IMAGES[0]}
    monkeypatch.delenv("APPTAINER_BIND")
    report = folder.build()
    assert (report.n_built, report.n_kept) == (1, 4)


def test_a_verification_that_takes_too_long_says_nothing_of_the_image(
    folder: Folder, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its `true` never ends, but for those that find what an earlier one has written on the host.
    image, other = "team/slow:v1", IMAGES[0]
    bin_folder, gate = tmp_path / "own/usr/bin", tmp_path / "gate"
    bin_folder.mkdir(parents=True)
    gate.mkdir()
    shutil.copy(str(shutil.which("sleep")), bin_folder)
    (bin_folder / "true").write_text("#!/bin/bash\n[ -e /gate/seen ] || { echo >/gate/seen; exec sleep infinity; }\n")
    (bin_folder / "true").chmod(0o755)
    folder.registry.push(image, [tree, tmp_path / "own"])
    limits = {"verify_seconds": 5.0, "attempts": 99}
    monkeypatch.setenv("APPTAINER_BIND", f"{gate}:/gate")
    for one in (other, image):
        report = folder.build([one], **limits)
        assert (report.n_built, report.failures) == (1, {})
    assert "`true` has not ended within 5 s in " in folder.printed
    assert folder.registry.count("HEAD", manifests(image)) >= 2
    # It was built once.
    assert folder.registry.count("GET", pulls(image)) == folder.registry.count("GET", pulls(other)) > 0
    assert {path.name for path in (folder.path / ".setup").iterdir()} == {"locks", "logs"}

    manifest, before = folder.path / "manifest.jsonl", folder.sif(image).stat().st_mtime_ns
    for work in (folder.check, folder.build):
        (gate / "seen").unlink()
        manifest.unlink()
        report = work([image], **limits)
        assert (report.n_kept, report.n_built, report.failures) == (1, 0, {})
    monkeypatch.delenv("APPTAINER_BIND")
    manifest.unlink()
    for work in (folder.check, folder.build):
        report = work([image], verify_seconds=1.0, attempts=2)
        assert report.failures.keys() == {image}
        assert f"`true` has not ended within 1 s in {folder.sif(image)}" in report.failures[image]
        assert "building again" not in folder.printed
    assert folder.sif(image).stat().st_mtime_ns == before


def test_what_is_not_as_it_was_verified(
    folder: Folder, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(good, folder.path)
    rotten, closed, copied, blocked, _ = IMAGES
    # A program still runs in it: only its checksum tells.
    with folder.sif(rotten).open("r+b") as file:
        file.seek(35_000)
        file.write(b"rotten")
    folder.sif(closed).chmod(0o600)
    os.utime(folder.sif(copied))
    folder.sif(blocked).unlink()
    folder.sif(blocked).mkdir()
    checked = folder.check()
    assert checked.failures.keys() == {rotten, closed, blocked}
    assert "not the file that was verified before" in checked.failures[rotten]
    assert "closed to the users of sandboxes" in checked.failures[closed]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APPTAINER_TMPDIR", "relative")
    report = folder.build()
    assert (report.n_built, report.n_kept) == (1, 3)
    assert report.failures == {blocked: f"{folder.sif(blocked)} is a folder: move it away"}
    assert folder.sif(closed).stat().st_mode & 0o777 == 0o644
    entries = {entry["image"]: entry for entry in folder.manifest()}
    assert all(entry["digest"] for entry in entries.values())
    assert folder.check().n_kept == 4


def test_a_build_that_is_killed_half_way_leaves_no_process_and_is_taken_up_again(folder: Folder) -> None:
    first, held, *_ = IMAGES
    hold = Hold()
    assert folder.build([first]).n_built == 1
    folder.registry.fail("GET", "/v2/team/project_two/blobs/", hold)
    victim = folder.start([first, held])
    try:
        assert hold.reached.wait(60)
        until(lambda: len(running_below(folder.path)) > 1, "apptainer runs")
        victim.kill()
        victim.wait()
        until(lambda: not running_below(folder.path), "what the dead run had started has ended")
    finally:
        hold.release.set()
        victim.stdout.close()  # type: ignore[union-attr]
    assert not folder.sif(held).exists()
    assert not folder.is_tidy()
    before = folder.sif(first).stat().st_mtime_ns
    # The power failed while it wrote.
    with folder.path.joinpath("manifest.jsonl").open("a") as manifest:
        manifest.write('{"image": "team/pro')
    report = folder.build()
    assert (report.n_built, report.n_kept, report.failures) == (4, 1, {})
    assert folder.sif(first).stat().st_mtime_ns == before
    assert folder.is_tidy()
    assert folder.check().n_kept == 5


def test_two_runs_at_once_build_each_image_once(folder: Folder) -> None:
    runs = [folder.start(), folder.start()]
    reports = [json.loads(run.communicate(timeout=120)[0]) for run in runs]
    assert all(not report["failures"] for report in reports)
    assert sum(report["built"] for report in reports) == 5
    assert all(report["built"] + report["kept"] == 5 for report in reports)
    assert sorted(entry["image"] for entry in folder.manifest()) == sorted(IMAGES)
    assert [folder.registry.count("HEAD", manifests(image)) for image in IMAGES] == [1] * 5
    assert folder.is_tidy()
    assert folder.check().n_kept == 5


def test_stop_ends_everything_and_the_next_run_goes_on(folder: Folder) -> None:
    hold, stop = Hold(), threading.Event()
    folder.registry.fail("GET", "/v2/team/project_two/blobs/", hold)
    folder.registry.fail("HEAD", manifests(IMAGES[2]), Answer(429, {"Retry-After": "3600"}))

    def interrupt() -> None:
        hold.reached.wait(60)
        until(lambda: folder.registry.count("HEAD", manifests(IMAGES[2])) > 0, "the long pause has begun")
        stop.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    report = folder.build(stop=stop)
    thread.join()
    hold.release.set()
    assert report.stopped
    assert report.n_left == 5 - report.n_built > 0
    assert not report.failures
    until(lambda: not running_below(folder.path), "what the run had started has ended")
    assert folder.is_tidy()
    assert folder.build().n_kept == report.n_built


def test_room_is_looked_at_first_and_a_disk_that_fills_is_told(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StartupError, match=r"not enough room .* 5 SIFs need .* are free: .*--limit"):
        folder.build(min_free_bytes=1 << 60)
    assert folder.registry.requests == []
    if os.geteuid() != 0:
        pytest.skip("only root can make a small disk")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", small], check=False)
    if mounted.returncode != 0:
        pytest.skip("no disk can be mounted here")
    try:
        monkeypatch.setenv("APPTAINER_TMPDIR", str(small))
        report = folder.build(IMAGES[:1])
        assert "no space left on device" in report.failures[IMAGES[0]]
        assert str(small) in report.failures[IMAGES[0]]
        assert "APPTAINER_TMPDIR" in report.failures[IMAGES[0]]
        assert list(small.iterdir()) == []
        with pytest.raises(StartupError, match=f"only .* are free in {small}"):
            folder.build(min_free_bytes=1 << 24)
    finally:
        subprocess.run(["umount", small], check=True)
    assert folder.is_tidy()


def test_a_disk_that_gets_low_lets_what_runs_end_and_begins_no_more(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, hold = shutil.disk_usage, Hold()
    folder.registry.fail("GET", "/v2/team/project_one/blobs/", hold)
    low = threading.Event()

    def usage(path: Path) -> Any:
        return type(real(path))(*real(path)[:2], 0) if low.is_set() else real(path)

    monkeypatch.setattr(shutil, "disk_usage", usage)

    def fill() -> None:
        hold.reached.wait(60)
        low.set()
        hold.release.set()

    threading.Thread(target=fill).start()
    report = folder.build(max_jobs=1, min_free_bytes=1 << 20)
    assert (report.n_built, report.n_left, report.failures) == (1, 4, {})
    assert "must stay free" in report.note
    assert not report.stopped


def test_images_are_found_as_docker_finds_them() -> None:
    mirror = "http://127.0.0.1:5000/hub"
    assert locate("team/project:v1").at("sha256:1") == "docker.io/team/project@sha256:1"
    assert locate("debian") == Reference("docker.io", "library/debian", "latest", insecure=False)
    assert locate("ghcr.io/team/project:v1", mirror).at("") == "ghcr.io/team/project:v1"
    assert locate("team/project:v1", mirror) == Reference("127.0.0.1:5000", "hub/team/project", "v1", insecure=True)
    assert locate("team/project:v1", "mirror.local").insecure is False
    swebench = "swebench/sweb.eval.x86_64.django_1776_django-11790:latest"
    assert locate(swebench).at("") == f"docker.io/{swebench}"
    for bad in ("", "Team/Project:v1", "team/project:", "team/project:v 1", "../x:y"):
        with pytest.raises(ValueError, match="not the name of an image"):
            locate(bad)


def test_wishes_to_wait_are_understood() -> None:
    assert retry_after(" 12 ") == 12
    assert retry_after("999999999999") == 999999999999
    for past in ("Wed, 21 Oct 2015 07:28:00 GMT", "Wed Oct 21 07:28:00 2015", "Wed, 21 Oct 2015 07:28:00 -0000"):
        assert retry_after(past) == 0
    for nonsense in ("", "soon", "-1", "\u00b2", "Wed, 21 Oct 2015 07:28:00 +999999999999999999"):
        assert retry_after(nonsense) is None


def test_only_sifs_that_no_image_needs_are_named(folder: Folder) -> None:
    folder.path.mkdir()
    for name in (sif_name(IMAGES[0]), "old__image__tag.sif", "notes.txt", "manifest.jsonl"):
        folder.path.joinpath(name).touch()
    folder.path.joinpath(".setup").mkdir()
    folder.path.joinpath(".setup/half.sif").touch()
    assert unneeded_sifs(IMAGES, folder.path) == [folder.path / "old__image__tag.sif"]


def test_sigint_in_the_middle(folder: Folder) -> None:
    hold = Hold()
    folder.registry.fail("GET", "/v2/team/project_two/blobs/", hold)
    run = folder.start(max_jobs=1)
    try:
        assert hold.reached.wait(60)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    finally:
        hold.release.set()
    until(lambda: not running_below(folder.path), "what the run had started has ended")
    # Where a busy machine did not let it clear up in time, the next run does.
    assert folder.build().failures == {}
    assert folder.is_tidy(), [*folder.path.iterdir(), *(folder.path / ".setup").iterdir()]
