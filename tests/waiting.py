"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")
PATIENCE = 120.0
"""Seconds; a machine may be slow."""


def until(condition: Callable[[], _Answer], what: str = "what this waits for") -> _Answer:
    """The first answer of `condition` that is true; fails when there is none for too long."""
    deadline = time.monotonic() + PATIENCE
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {PATIENCE} s: {what}"
        time.sleep(0.01)
    return answer
