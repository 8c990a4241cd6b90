"""From nothing to rewards: the setup script, killed and run twice at once, against a hub and a registry that fail;
then the server on what it made."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faults import Cut, Hold
from hub import BROKEN, THROTTLED, Hub
from registry import BROKEN as REGISTRY_BROKEN
from registry import THROTTLED as REGISTRY_THROTTLED
from registry import LocalRegistry
from served import EVAL_PARQUET, PARQUET, Server, served
from setup_script import SetupScript

from bench.sifs import unpack
from swe_rollout.prepare.options import EVAL_DATASET, PINNED, TRAIN_DATASET
from swe_rollout.rows import image_of
from swe_rollout.sandbox.images import sif_name

MISSING = "tests/gone_final:0000000000000000000000000000000000000000"
SUBMIT = (
    "git add -A; git diff --cached > /tmp/patch.txt; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat /tmp/patch.txt"
)
PATH_OF_VENV = "/testbed/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Upstream:
    """The hub's data sets, one train row and one eval row whose images the registry has, and a train row whose image
    it has not."""

    def __init__(self, samples: Path, folder: Path) -> None:
        train, self.evaluation = (
            pq.read_table(samples / "data" / PARQUET, filters=[("repo_name", "==", "xmltodict")]),
            pq.read_table(samples / "data" / EVAL_PARQUET).slice(1, 1),
        )
        gone = train.to_pylist()[0] | {
            "repo_name": "gone",
            "docker_image": MISSING,
            "commit_hash": MISSING.partition(":")[2],
        }
        self.train = pa.concat_tables([train, pa.Table.from_pylist([gone], schema=train.schema)])
        self.images = [image_of(row) for row in (train.to_pylist()[0], self.evaluation.to_pylist()[0])]
        self.hub, self.registry = Hub(), LocalRegistry()
        for table, dataset, revision, path in (
            (self.train, TRAIN_DATASET, PINNED[TRAIN_DATASET], PARQUET),
            (self.evaluation, EVAL_DATASET, "main", EVAL_PARQUET),
        ):
            file = folder / "upstream.parquet"
            pq.write_table(table, file)
            self.hub.put(dataset, revision, {path.partition("/")[2]: file.read_bytes()})
        for image in self.images:
            tree = folder / "tree"
            unpack(samples / "sifs" / sif_name(image), tree)
            # What Apptainer adds to an image: the registry has none of it.
            shutil.rmtree(tree / ".singularity.d")
            for name in (".exec", ".run", ".shell", ".test", "environment", "singularity"):
                (tree / name).unlink()
            self.registry.push(image, [tree], [f"PATH={PATH_OF_VENV}"])
            shutil.rmtree(tree)

    def close(self) -> None:
        self.hub.close()
        self.registry.close()


@pytest.fixture
def upstream(samples: Path, tmp_path: Path) -> Iterator[Upstream]:
    upstream = Upstream(samples, tmp_path)
    yield upstream
    upstream.close()


@pytest.mark.timeout(900)
def test_from_nothing_to_rewards(upstream: Upstream, open_folder: Callable[[], Path]) -> None:
    hub, registry = upstream.hub, upstream.registry
    train_image, eval_image = (image.rpartition(":")[0] for image in upstream.images)
    hub.fail("GET", "/cdn/", BROKEN, THROTTLED)
    registry.fail("HEAD", f"/v2/{train_image}/manifests/", REGISTRY_THROTTLED, REGISTRY_BROKEN)
    held = Hold()
    registry.fail("GET", f"/v2/{eval_image}/blobs/", held)
    registry.fail("GET", f"/v2/{train_image}/blobs/", Cut())
    script = SetupScript(open_folder(), hub.url, R2E_REGISTRY_MIRROR=registry.url, R2E_SETUP_START_INTERVAL="0")

    killed = script.start()
    assert held.reached.wait(120), "no image was asked for"
    killed.kill()
    killed.communicate()
    held.release.set()
    runs = [script.start(), script.start()]
    ends = [(run.communicate(timeout=250)[0], run.returncode) for run in runs]

    for said, code in ends:
        assert code == 1, said
        assert f"{MISSING}: " in said.partition("failed: ")[2], said
        assert "manifest unknown" in said
    assert registry.count("HEAD", "/v2/tests/gone_final/") <= len(runs) + 1
    assert {path.name for path in script.sifs.glob("*.sif")} == {sif_name(image) for image in upstream.images}
    # Built once, by one of the two.
    assert sorted(sif_name(entry) for entry in upstream.images) == sorted(_built(script))
    code, said = script.run("--check")
    assert code == 1, said
    assert "3 images: 2 there, 1 failed" in said

    data, sifs = script.data.rename(script.folder / "data"), str(script.sifs)
    assert [path.name for path in data.iterdir()].count("wheels") == 1
    # One server for each mode's row, as its images differ.
    for mode, options in {"train": {}, "eval": {"instance": upstream.evaluation["instance_id"][0].as_py()}}.items():
        for server in served(script.folder, open_folder(), sifs=sifs, **options):
            assert _reward(server, "gold", server.gold) == 1.0, mode
            assert _reward(server, "noop", "true") == 0.0, mode


def _reward(server: Server, key: str, change: str) -> float:
    view = server.play(key, [change, SUBMIT])
    assert view["status"] == "completed", view
    reward: float = view["reward"]
    return reward


def _built(script: SetupScript) -> list[str]:
    lines = (script.sifs / "manifest.jsonl").read_text().splitlines()
    return [sif_name(json.loads(line)["image"]) for line in lines]
