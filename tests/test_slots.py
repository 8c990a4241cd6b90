"""Slots: served by arrival, cancelled at once, never lost."""

import random
import threading

import pytest
from waiting import PATIENCE, until

from swe_rollout.cancellation import Cancellation
from swe_rollout.errors import Cancelled
from swe_rollout.slots import Slots


class Waiter:
    """A thread that takes a slot, notes its name in `log` and keeps the slot until `leave` is set."""

    def __init__(self, name: int, slots: Slots, log: list[int], switch: Cancellation | None = None) -> None:
        self.cancellation = switch or Cancellation()
        self.leave = threading.Event()
        self.cancelled = False
        self.waited = -1.0
        self._name, self._slots, self._log = name, slots, log
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._slots.hold(self.cancellation) as self.waited:
                self._log.append(self._name)
                assert self.leave.wait(PATIENCE)
        except Cancelled:
            self.cancelled = True

    def join(self) -> None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def queue_up(slots: Slots, count: int, log: list[int]) -> list[Waiter]:
    """`count` waiters in a known order of arrival, behind a full house."""
    waiters = []
    for name in range(count):
        waiters.append(Waiter(name, slots, log))
        until(lambda: slots.waiting == len(waiters))
    return waiters


def test_fifty_waiters_with_random_cancels_are_served_by_arrival() -> None:
    rng = random.Random(11)
    slots, log = Slots(1), list[int]()
    with slots.hold(Cancellation()) as waited:
        assert 0.0 <= waited < PATIENCE
        waiters = queue_up(slots, 50, log)
        gone = set(rng.sample(range(50), 20))
        for name in gone:
            waiters[name].cancellation.cancel("the client left")
            waiters[name].join()  # at once: nobody gives a slot back meanwhile
        assert (slots.in_use, slots.waiting) == (1, 30)
    stay = [name for name in range(50) if name not in gone]
    for position, name in enumerate(stay):
        until(lambda position=position: len(log) == position + 1)  # type: ignore[misc]
        assert (slots.in_use, slots.waiting) == (1, len(stay) - position - 1)
        waiters[name].leave.set()
    for name, waiter in enumerate(waiters):
        waiter.join()
        assert waiter.cancelled == (name in gone)
        assert (waiter.waited >= 0.0) == (name not in gone)
    assert log == stay
    assert (slots.in_use, slots.waiting) == (0, 0)


def test_a_slot_that_reaches_a_cancelled_waiter_goes_on() -> None:
    slots, log = Slots(1), list[int]()
    holder = Waiter(0, slots, log)
    until(lambda: log == [0])

    def hand_over() -> None:
        holder.leave.set()
        holder.join()

    # Callbacks run in the order they were registered: this one gives the slot to the very waiter that is being
    # cancelled, before that waiter hears of it.
    switch = Cancellation()
    with switch.waking(hand_over):
        cancelled = Waiter(1, slots, log, switch)
        until(lambda: slots.waiting == 1)
        next_one = Waiter(2, slots, log)
        until(lambda: slots.waiting == 2)
        switch.cancel("the client left")
    cancelled.join()
    assert cancelled.cancelled
    until(lambda: log == [0, 2])
    assert (slots.in_use, slots.waiting) == (1, 0)
    next_one.leave.set()
    next_one.join()
    assert (slots.in_use, slots.waiting) == (0, 0)


def test_a_turned_switch_enters_nothing_and_errors_in_the_block_free_the_slot() -> None:
    slots = Slots(2)
    turned = Cancellation()
    turned.cancel("server draining")
    with pytest.raises(Cancelled, match="server draining"), slots.hold(turned):
        raise AssertionError("entered")
    with pytest.raises(KeyError, match="in the block"), slots.hold(Cancellation()):
        raise KeyError("in the block")
    later = Cancellation()
    with slots.hold(later):
        later.cancel("too late for the slot")
        assert slots.in_use == 1
    assert (slots.in_use, slots.waiting, slots.capacity) == (0, 0, 2)
    for capacity in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            Slots(capacity)


def test_a_storm_of_arrivals_and_cancels_neither_loses_nor_invents_slots() -> None:
    capacity, rounds = 3, 40
    slots = Slots(capacity)
    lock = threading.Lock()
    inside = entered = left_early = most = 0
    switches: list[Cancellation] = []
    pause = threading.Event()

    def work(seed: int) -> None:
        nonlocal inside, entered, left_early, most
        rng = random.Random(seed)
        for _ in range(rounds):
            switch = Cancellation()
            with lock:
                switches.append(switch)
                victim = rng.choice(switches)
            if rng.random() < 0.5:
                victim.cancel("storm")
            try:
                with slots.hold(switch):
                    with lock:
                        inside += 1
                        entered += 1
                        most = max(most, inside)
                        assert slots.in_use <= capacity
                    pause.wait(rng.random() / 1000)
                    with lock:
                        inside -= 1
            except Cancelled:
                with lock:
                    left_early += 1

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert entered + left_early == 50 * rounds
    assert 1 <= most <= capacity
    assert (slots.in_use, slots.waiting) == (0, 0)
