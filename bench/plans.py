"""What may happen to one session under chaos, and which endings are right then."""

import random
from dataclasses import dataclass
from typing import Literal

from bench.endpoint import TEXT, Refusal, Turn, call

Script = Literal["gold", "wrong", "noop", "mute", "endless", "hang"]
"""gold solves the task, wrong edits and does not, noop submits no change, mute never calls a tool, endless runs one
command after the other that ends only at its limit, hang gets no answer."""

Fault = Literal["none", "refused", "discarded", "error", "reset", "term", "kill", "cancel", "sandbox"]
"""The first four after none are the endpoint's; then SIGTERM and SIGKILL to the client, a cancel call that the client
knows nothing of, and the end of all processes of the sandbox."""

Ending = tuple[str, float | None]
"""Status and reward."""

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
MARK = "chaos-key"
"""A file that says which session a sandbox belongs to: in /tmp for the agent's, in the tree for the judge's too."""

DISCARDED = Refusal(404, "session_discarded", "gone")
_REFUSALS: dict[Fault, Turn] = {
    "refused": Refusal(400, "invalid_request_error", "bad field"),
    "discarded": DISCARDED,
    "error": Refusal(500, "internal_error", "oh no"),
    "reset": None,
}
_REFUSED: dict[Fault, Ending] = {
    "refused": ("failed", None),
    "discarded": ("cancelled", None),
    "error": ("failed", None),
    "reset": ("failed", None),
}
_EARNED: dict[Script, set[Ending]] = {
    "gold": {("completed", 1.0)},
    "wrong": {("completed", 0.0)},
    "noop": {("completed", 0.0)},
    "mute": {("completed", 0.0)},
    "endless": {("completed", 0.0)},
    "hang": set(),
}
# Most are cheap: they end before a sandbox starts.
_MIX: list[tuple[int, Script, Fault]] = [
    *((10, "mute", "none"), (6, "noop", "none"), (3, "gold", "none"), (1, "wrong", "none")),
    *((5, "mute", "refused"), (7, "mute", "discarded"), (6, "mute", "error"), (5, "mute", "reset")),
    *((1, "gold", "refused"), (2, "gold", "discarded"), (2, "gold", "error"), (1, "gold", "reset")),
    *((7, "hang", "term"), (7, "hang", "cancel"), (2, "hang", "kill")),
    *((3, "mute", "term"), (3, "mute", "cancel"), (3, "mute", "kill")),
    *((3, "endless", "term"), (3, "endless", "cancel"), (3, "endless", "sandbox")),
    *((2, "gold", "term"), (2, "gold", "cancel"), (1, "gold", "kill"), (3, "gold", "sandbox")),
]


@dataclass(frozen=True)
class Plan:
    """One session: what its model does and what goes wrong."""

    number: int
    script: Script
    fault: Fault
    turn: int
    """The fault comes after this turn was asked for, counted from 0; -1 after the client's start."""
    delay: float
    """Seconds from then to the fault."""

    def __str__(self) -> str:
        when = "" if self.fault == "none" else f" at turn {self.turn} + {self.delay:.2f} s"
        return f"session {self.number} ({self.script}, {self.fault}{when})"

    @property
    def key(self) -> str:
        """Its name with the trainer, and its API key."""
        return f"sk-chaos-{self.number}"

    @property
    def group(self) -> str:
        """A group of its own: how the server's sessions are told apart, also after a restart."""
        return f"chaos:{self.number}"

    @property
    def endpoint_fault(self) -> bool:
        """Whether the fault is an answer of the endpoint."""
        return self.fault in _REFUSALS

    def answer(self, number: int, gold: str) -> Turn | Literal["hold"]:
        """What the model does when it is asked for turn `number`; `gold` is the patch that solves the task."""
        if self.endpoint_fault and number >= self.turn:
            return _REFUSALS[self.fault]
        mark = f"echo {self.number} > /tmp/{MARK}"
        if self.script == "hang":
            return "hold"
        if self.script == "mute":
            return TEXT
        if self.script == "endless":
            return call(f"{mark}; sleep 600", number)
        if self.script == "noop" or number > 0:
            return call(SUBMIT, number)
        change = f"git apply <<'EOF_GOLD'\n{gold}EOF_GOLD" if self.script == "gold" else "echo '# hm' >> setup.py"
        return call(f"{mark}; echo {self.number} > {MARK}\n{change}", number)

    def allowed(self, *, hit: bool, restarted: bool) -> set[Ending]:
        """The endings that are right. `hit`: the fault met something that lived; `restarted`: the server was killed
        while the session was open.

        A fault that comes while a session ends may come too late; then the ending is the one that was earned.
        A script that can only be ended by its fault is never too late.
        """
        if restarted:
            return {("failed", None)}
        earned = _EARNED[self.script]
        if self.fault == "none" or not hit:
            # A client that could not be stopped any more, or whose cancel was lost, was given up for its silence.
            return earned if earned else {("cancelled", None)}
        if self.endpoint_fault:
            return {_REFUSED[self.fault]}
        end: Ending = ("failed" if self.fault == "sandbox" else "cancelled", None)
        late = set() if self.script in ("hang", "endless") else earned
        return {end, *late}


def make_plan(chance: random.Random, number: int) -> Plan:
    """The next plan."""
    _, script, fault = chance.choices(_MIX, [weight for weight, _, _ in _MIX])[0]
    cheap = script in ("mute", "hang")
    turn, delay = 0, 0.0
    if fault in _REFUSALS:
        turn = chance.choice((0, 0, 1, 2) if cheap else (0, 1))
    elif fault == "sandbox":
        # From its start to the middle of the hidden tests.
        turn = chance.choice((0, 1)) if script == "gold" else 0
        delay = chance.uniform(0.0, 3.0)
    elif fault != "none":
        turn = chance.choice((-1, 0, 0) if cheap else (0, 0, 1))
        delay = chance.uniform(0.0, 0.5 if cheap else 3.0)
    return Plan(number, script, fault, turn, delay)
