"""What happened to each session under chaos, and whether that was right."""

import asyncio
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.plans import Plan
from bench.server import Usage

ENDED = ("completed", "failed", "cancelled")


@dataclass
class Attempt:
    """A plan and what came of it."""

    plan: Plan
    hit: bool = False
    """Whether the fault met something that lived."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """The model was asked for the turn that the fault comes after."""
    exit_code: int | None = None
    """The client's."""
    output: Mapping[str, Any] | None = None
    """What the client wrote for the trainer."""
    said: str = ""
    """By the client."""


class Books:
    """The server's own words on all sessions, and every way in which something was not right."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.records: dict[str, dict[str, Any]] = {}
        """The last word on each session, by the server's id."""
        self.killed_epochs: set[str] = set()
        """Starts of the server that ended by SIGKILL."""
        self.failures: list[str] = []

    def read(self, listed: Sequence[dict[str, Any]]) -> None:
        """Take over the server's list. An end that was told once must stay as it was told."""
        for session in listed:
            id_ = session["session_id"]
            known = self.records.get(id_)
            if known and known["status"] in ENDED:
                self.failures += [
                    f"{session['group_id']}: {id_} had ended with {name} {known[name]}, now it is {session[name]}"
                    for name in ("status", "reward", "exit_code")
                    if known[name] != session[name]
                ]
            self.records[id_] = session
        if lost := self.records.keys() - {session["session_id"] for session in listed}:
            self.failures.append(f"sessions that the server no longer tells of: {sorted(lost)[:5]}")

    def all_ended(self) -> bool:
        """Whether every session had ended when the list was read."""
        return all(record["status"] in ENDED for record in self.records.values())

    def ended_in(self, epoch: str) -> Counter[str]:
        """How many sessions of one start of the server ended which way."""
        return Counter(record["status"] for record in self.records.values() if _epoch(record) == epoch)

    def check_counts(self, ready: Mapping[str, Any]) -> None:
        """The counters of the server that runs, /readyz, against the sessions it opened."""
        counts, tasks = ready["counts"]["train"], ready["tasks"]["train"]
        ended = self.ended_in(ready["service_epoch"])
        if counts != {"queued": 0, "running": 0, "scoring": 0, **{status: ended[status] for status in ENDED}}:
            self.failures.append(f"the server counts {counts}, its list has {dict(ended)}")
        if tasks["leased"] != ended.total() or tasks["open_groups"]:
            self.failures.append(f"{ended.total()} sessions have ended, and the leases are {tasks}")

    def check_sessions(self) -> None:
        """Each session against its plan, and its client against the session."""
        by_group: dict[str, list[dict[str, Any]]] = {}
        for record in self.records.values():
            by_group.setdefault(record["group_id"], []).append(record)
        for attempt in self.attempts:
            records = by_group.pop(attempt.plan.group, [])
            wrong = [*self._wrong_ending(attempt, records), *_wrong_answer(attempt, records)]
            if wrong:
                said = attempt.said.strip() or "nothing"
                self.failures.append(f"{attempt.plan}: {'; '.join(wrong)}. The client said: {said}")
        if by_group:
            self.failures.append(f"sessions that nobody asked for: {sorted(by_group)[:5]}")

    def _wrong_ending(self, attempt: Attempt, records: Sequence[Mapping[str, Any]]) -> list[str]:
        if len(records) != 1:
            may_be_absent = not records and attempt.hit and attempt.plan.fault in ("term", "kill")
            return [] if may_be_absent else [f"the server has {len(records)} sessions for it"]
        (record,) = records
        wrong = []
        restarted = "was restarted" in (record["error"] or "")
        if restarted and _epoch(record) not in self.killed_epochs:
            wrong.append("it is told to have died with a server that was not killed")
        allowed = attempt.plan.allowed(hit=attempt.hit, restarted=restarted)
        if (record["status"], record["reward"]) not in allowed:
            cause = record["error"] or record["reason"]
            wrong.append(
                f"{record['status']} with reward {record['reward']}, right is {sorted(allowed, key=str)}: {cause}"
            )
        return wrong


def _wrong_answer(attempt: Attempt, records: Sequence[Mapping[str, Any]]) -> list[str]:
    wrong = []
    code, output = attempt.exit_code, attempt.output
    if attempt.hit and attempt.plan.fault == "kill":
        right: set[int | None] = {-signal.SIGKILL}
    elif attempt.hit and attempt.plan.fault == "term":
        # SIGTERM itself when it comes before the trap; 0 or 1 when the session had ended by itself.
        right = {143, -signal.SIGTERM, 0, 1}
    else:
        right = {record["exit_code"] for record in records}
    if code not in right:
        wrong.append(f"the client ended with {code}, right is {right}")
    if (code == 0) != (output is not None) and code != -signal.SIGKILL:
        wrong.append(f"the client ended with {code} and wrote {output}")
    if output is not None and [output["reward"]] != [record["reward"] for record in records]:
        wrong.append(f"the client wrote the reward {output['reward']}")
    return wrong


@dataclass
class Report:
    """What a run did."""

    seed: int
    books: Books
    starts: int
    """Of the server."""
    before: Usage
    after: Usage
    """Of the last server, when it was ready and when all sessions had ended."""

    def show(self, console: Console) -> None:
        """The books as a table, and what was not right."""
        columns = ["clients", "hit", *ENDED, "never opened", "reward 1", "reward 0", "server killed"]
        rows = self._rows()
        total = sum(rows.values(), Counter[str]())
        table = Table("script", "fault", title=f"seed {self.seed}, {self.starts} server starts", show_footer=True)
        for column in columns:
            table.add_column(column, footer=str(total[column]), justify="right")
        for (script, fault), counts in sorted(rows.items()):
            table.add_row(script, fault, *(str(counts[column] or "") for column in columns))
        console.print(table)
        before, after = self.before, self.after
        console.print(
            f"last server, ready -> idle again: {before.rss >> 20} -> {after.rss >> 20} MB resident, "
            f"{before.files} -> {after.files} descriptors, {before.threads} -> {after.threads} threads"
        )
        for failure in self.books.failures:
            console.print(f"seed {self.seed}: {failure}", style="red", markup=False)

    def _rows(self) -> dict[tuple[str, str], Counter[str]]:
        by_group = {record["group_id"]: record for record in self.books.records.values()}
        rows: dict[tuple[str, str], Counter[str]] = {}
        for attempt in self.books.attempts:
            counts = rows.setdefault((attempt.plan.script, attempt.plan.fault), Counter())
            record = by_group.get(attempt.plan.group)
            counts.update(("clients", "hit" if attempt.hit else "", record["status"] if record else "never opened"))
            if record and record["reward"] is not None:
                counts[f"reward {record['reward']:g}"] += 1
            if record and _epoch(record) in self.books.killed_epochs and "restarted" in (record["error"] or ""):
                counts["server killed"] += 1
        return rows


def _epoch(record: Mapping[str, Any]) -> str:
    return str(record["session_id"]).split("_")[1]
