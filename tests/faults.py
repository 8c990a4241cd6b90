"""Servers on loopback that fail as a test tells them."""

import re
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Answer:
    """What the proxy says instead of the registry."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""


@dataclass(frozen=True)
class Cut:
    """Half of the registry's answer, then the connection ends."""


@dataclass
class Hold:
    """The registry's answer, when `release` is set; `reached` is set when a request is there."""

    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


Fault = Answer | Cut | Hold


class Faulty:
    """What a server was asked, and what it shall do wrong."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[tuple[str, re.Pattern[str], deque[Fault]]] = []
        self.requests: list[tuple[str, str, Mapping[str, str]]] = []
        """Method, path and headers of all that came."""

    def fail(self, method: str, path: str, *faults: Fault) -> None:
        """The next requests whose path matches the pattern get these, one each."""
        with self._lock:
            self._faults.append((method, re.compile(path), deque(faults)))

    def count(self, method: str, path: str) -> int:
        """Requests so far whose path matches the pattern."""
        return sum(method == used and re.search(path, wanted) is not None for used, wanted, _ in list(self.requests))

    def reset(self) -> None:
        """No faults, no requests."""
        with self._lock:
            self._faults.clear()
            self.requests.clear()

    def _fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for used, pattern, faults in self._faults:
                if used == method and faults and pattern.search(path):
                    return faults.popleft()
        return None
