"""A policy under training finds every hole: what looks for a reward without mending the bug, and its honest twins."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cheats import CHEATS, NOT_DEFENDED, PLANT_FUTURE
from served import Server, served

pytestmark = pytest.mark.timeout(1200)

_SUBMIT = (
    "git diff >patch.txt 2>/dev/null; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat patch.txt 2>/dev/null || true"
)
_TWIN = "honest: "


@pytest.fixture(scope="module")
def server(samples: Path, open_folder: Callable[[], Path]) -> Iterator[Server]:
    yield from served(samples, open_folder(), f"setup.script={PLANT_FUTURE}", "scoring.timeout=120")


@pytest.fixture(scope="module")
def views(server: Server) -> dict[str, dict[str, Any]]:
    """How each session ended, by name; several run at once. Twins share one by eights, the fix comes first."""
    names = list(CHEATS)
    plays = {(name,): [CHEATS[name].attack, _SUBMIT] for name in names}
    for first in range(0, len(names), 8):
        twins = names[first : first + 8]
        acts = [server.gold, *(CHEATS[name].twin for name in twins), _SUBMIT]
        plays[tuple(_TWIN + name for name in twins)] = acts
    plays |= {(name,): [attack, _SUBMIT] for name, attack in NOT_DEFENDED.items()}
    with ThreadPoolExecutor(6) as pool:
        ended = pool.map(lambda play: server.play(f"cheat {play[0]}", play[1]), enumerate(plays.values()))
        return {name: view for names, view in zip(plays, ended, strict=True) for name in names}


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_not_rewarded(name: str, views: dict[str, dict[str, Any]]) -> None:
    view, cheat = views[name], CHEATS[name]
    assert (view["status"], view["agent_exit_status"]) == ("completed", cheat.exit_status), view
    assert (view["reward"], view["exit_code"]) == (0.0, 0), view
    assert cheat.reason in view["reason"], view


@pytest.mark.parametrize("name", CHEATS)
def test_its_honest_twin_is(name: str, views: dict[str, dict[str, Any]]) -> None:
    view = views[_TWIN + name]
    assert (view["status"], view["agent_exit_status"]) == ("completed", "Submitted"), view
    assert (view["reward"], view["exit_code"], view["reason"]) == (1.0, 0, "all 60 tests as expected"), view


@pytest.mark.parametrize("name", NOT_DEFENDED)
def test_what_is_not_defended(name: str, views: dict[str, dict[str, Any]]) -> None:
    """Known, and said so in the README: whoever closes one of these moves it to the cheats."""
    view = views[name]
    assert (view["status"], view["agent_exit_status"], view["reward"]) == ("completed", "Submitted", 1.0), view
