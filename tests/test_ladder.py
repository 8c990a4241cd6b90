"""Time limits that contradict each other keep the server from starting."""

import re
from pathlib import Path
from typing import Any

from swe_rollout.config import load_config
from swe_rollout.errors import StartupError
from swe_rollout.ladder import CLIENT_POLL_SECONDS, check_ladder
from swe_rollout.settings import Settings


def refused(folder: Path, *specs: str, **settings: Any) -> str:
    values = {"r2e_data_path": folder, "r2e_sif_dir": folder, **settings}
    try:
        check_ladder(Settings(**values), load_config(specs))
    except StartupError as error:
        return str(error)
    return ""


def test_limits_out_of_order_are_named_with_their_values(tmp_path: Path) -> None:
    assert refused(tmp_path) == ""
    assert refused(tmp_path, "environment.timeout=3", "agent.wall_time_limit_seconds=3", "scoring.timeout=3") == ""
    assert refused(tmp_path, "agent.wall_time_limit_seconds=59", "scoring.timeout=Infinity") == (
        "time limits are out of order: environment.timeout=60 is more than agent.wall_time_limit_seconds=59: a command "
        "may not outlast its session; scoring.timeout=inf is more than agent.wall_time_limit_seconds=59: the judge may "
        "not take longer than the agent"
    )
    pairs: list[tuple[list[str], dict[str, float], str]] = [
        (["environment.timeout=7201"], {}, "environment.timeout=7201 is more than agent.wall_time_limit_seconds=7200"),
        (
            ["model.connect_timeout=121"],
            {},
            "model.connect_timeout=121 is more than AGENT_SERVER_CLIENT_TTL_SECOND",
        ),
        (
            [],
            {"client_ttl_seconds": 60.0},
            "AGENT_SERVER_CLIENT_TTL_SECONDS=60 is not more than agent_client.sh's PO",
        ),
        (
            [],
            {"client_ttl_seconds": 301.0, "record_ttl_seconds": 300.0},
            "AGENT_SERVER_CLIENT_TTL_SECONDS=301 is more than AGENT_SERVER_RECORD_TTL_SECONDS=300",
        ),
    ]
    for specs, settings, pair in pairs:
        line = refused(tmp_path, *specs, **settings)
        assert line.startswith(f"time limits are out of order: {pair}")
        assert "\n" not in line


def test_the_client_polls_as_often_as_the_server_thinks() -> None:
    script = Path(__file__).parents[1].joinpath("agent_client.sh").read_text()
    found = re.search(r"^readonly POLL_SECONDS=(\d+)$", script, re.MULTILINE)
    assert found
    assert float(found[1]) == CLIENT_POLL_SECONDS
