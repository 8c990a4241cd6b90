"""The sessions a server can tell about, by both of their names."""

import re
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Protocol

from swe_rollout.answers import SessionSummary, SessionView
from swe_rollout.session import REQUEST_ID, REQUEST_ID_LENGTH
from swe_rollout.states import Mode, Status


class Record(Protocol):
    """A session that lives, has ended, or is only remembered."""

    @property
    def id(self) -> str: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def group_id(self) -> str: ...
    @property
    def status(self) -> Status: ...
    @property
    def request_key(self) -> str | None:
        """Stands for the request id; `SessionRequest.key`."""
        ...

    @property
    def request_digest(self) -> str:
        """Stands for the whole request; `SessionRequest.digest`."""
        ...

    def view(self) -> SessionView:
        """All that the session's own client may know."""
        ...

    def summary(self) -> SessionSummary:
        """What anybody may know."""
        ...

    def cancel(self, reason: str) -> bool:
        """Give the session up; False, and nothing changed, if it has ended or was given up before."""
        ...

    def wait(self, seconds: float) -> None:
        """Return at the session's end, or after `seconds`."""
        ...


class EarlyCancels:
    """Cancels that overtook their create calls, the latest `limit` of them. Its owner's lock guards it too."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reasons: OrderedDict[str, str] = OrderedDict()

    def note(self, key: str, reason: str) -> bool:
        """Remember the cancel if `key` can be a request id; whether it can."""
        if len(key) > REQUEST_ID_LENGTH or not re.fullmatch(REQUEST_ID, key):
            return False
        self._reasons[key] = reason
        while len(self._reasons) > self._limit:
            self._reasons.popitem(last=False)
        return True

    def take(self, request_id: str | None) -> str | None:
        """Why the session of this request id was given up before it came, if it was."""
        return self._reasons.pop(request_id or "", None)


class Records:
    """Sessions in the order they came. Not thread-safe: its owner's lock guards it.

    Invariants: an id and a request id name at most one session; one that has ended stays for `keep` seconds.
    """

    def __init__(self, keep: float) -> None:
        self._keep = keep
        self._by_id: dict[str, Record] = {}
        self._by_request: dict[str, Record] = {}
        self._ended: deque[tuple[float, Record]] = deque()

    def add(self, record: Record) -> None:
        """Know `record` from now on; its names must be new."""
        self._by_id[record.id] = record
        if record.request_key:
            self._by_request[record.request_key] = record

    def find(self, session_id: str, request_key: str | None) -> Record | None:
        """The session with this id or, failing that, this request key."""
        return self._by_id.get(session_id) or self._by_request.get(request_key or "")

    def end(self, record: Record, now: float) -> None:
        """`record` ended at `now`; called in the order of ends."""
        self._ended.append((now, record))

    def forget(self, now: float) -> None:
        """Drop what ended too long before `now`."""
        while self._ended and self._ended[0][0] + self._keep <= now:
            _, record = self._ended.popleft()
            del self._by_id[record.id]
            if record.request_key:
                del self._by_request[record.request_key]

    def newest_first(self) -> Iterator[Record]:
        return reversed(self._by_id.values())
