"""Everything at once: launcher, gate, client script, server, sandboxes, judge; nothing in it is scripted by a test."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served import PARQUET, REPOSITORY, Server, served


@pytest.mark.parametrize(("confinement", "n_groups"), [("unprivileged", 4), ("root", 2)])
def test_gated_groups_share_one_slot(
    samples: Path, open_folder: Callable[[], Path], confinement: str, n_groups: int
) -> None:
    """Groups of four wait for their first answers together: a server whose sessions held slots meanwhile
    would never end.
    """
    folder = open_folder()
    for server in served(
        samples,
        folder,
        AGENT_SERVER_TRAIN_CONCURRENCY="1",
        AGENT_SERVER_TRAIN_GROUP_SIZE="4",
        AGENT_SERVER_CONFINEMENT=confinement,
    ):
        report = _train(
            server, folder, f"--groups={n_groups}", f"--concurrency={n_groups}", "--policies=gold,noop,wrong,gold"
        )
        assert [group["ending"] for group in report["groups"]] == ["committed"] * n_groups
        for group in report["groups"]:
            samples_of = [session["samples"] for session in group["sessions"]]
            assert [sample["reward"] for (sample,) in samples_of] == [1.0, 0.0, 0.0, 1.0]
        assert server.http.get("/readyz").json()["counts"]["train"]["completed"] == 4 * n_groups
        assert server.http.get("/readyz").json()["tasks"]["train"]["open_groups"] == 0
        assert f"confinement: {confinement}" in server.said


def _train(server: Server, folder: Path, *options: str) -> dict[str, Any]:
    report = folder / "report.json"
    command = [
        *(sys.executable, "-m", "local_relax", "--expect", "--group-size=4", *options),
        *("--agent-command", f"bash {REPOSITORY}/agent_client.sh", "--agent-cwd", str(folder)),
        *("--agent-env", f"AGENT_SERVER_URL={server.http.base_url}"),
        *("--data", str(folder / "data" / PARQUET), "--report", str(report)),
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    loaded: dict[str, Any] = json.loads(report.read_text())
    return loaded
