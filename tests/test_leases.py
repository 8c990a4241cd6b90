"""Which row a group gets: epochs, groups that share, and groups that were given up."""

import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from swe_rollout.leases import Place, TaskPool
from swe_rollout.scoring.r2e import R2ETests
from swe_rollout.tasks import Task

TESTS = R2ETests({"test": "PASSED"})


def tasks(count: int) -> list[Task]:
    return [Task(f"t{n}", "image", Path("image.sif"), "repo", "fix it", TESTS) for n in range(count)]


def test_groups_share_a_row_and_every_epoch_gives_each_row_once() -> None:
    rows, size = tasks(13), 4
    pool = TaskPool(rows, group_size=size, shuffle=True, seed=42)
    rng = random.Random(3)
    epochs: list[list[str]] = []
    for epoch in range(3):
        # Sessions of several groups arrive interleaved.
        arrivals = [f"train:prepare_group_{n}" for n in range(13) for _ in range(size)]
        rng.shuffle(arrivals)
        given: dict[str, list[str]] = {}
        for group in arrivals:
            given.setdefault(group, []).append(pool.lease(group).task.id)
        assert all(len(set(ids)) == 1 for ids in given.values())
        assert Counter(ids[0] for ids in given.values()) == dict.fromkeys((task.id for task in rows), 1)
        assert pool.counts() == {
            "rows": 13, "group_size": 4, "leased": 52 * (epoch + 1), "epoch": epoch, "position": 13, "open_groups": 0
        }  # fmt: skip
        epochs.append([ids[0] for ids in given.values()])
    assert len({tuple(order) for order in epochs}) == 3

    def order(seed: int, shuffle: bool, count: int) -> list[str]:
        other = TaskPool(rows, group_size=1, shuffle=shuffle, seed=seed)
        return [other.lease("0").task.id for _ in range(count)]

    assert order(42, True, 39) == [name for epoch in epochs for name in epoch]
    assert order(43, True, 39) != order(42, True, 39)
    assert order(42, False, 26) == [task.id for task in rows] * 2
    for wrong_rows, wrong_size in (([], 1), (rows, 0)):
        with pytest.raises(ValueError, match="at least"):
            TaskPool(wrong_rows, group_size=wrong_size, shuffle=True, seed=0)


def test_an_id_that_comes_again_gets_a_fresh_row() -> None:
    now = [0.0]
    pool = TaskPool(tasks(9), group_size=3, shuffle=False, seed=0, group_ttl_seconds=100.0, clock=lambda: now[0])
    assert [pool.lease("g").task.id for _ in range(7)] == ["t0", "t0", "t0", "t1", "t1", "t1", "t2"]
    # Siblings of the seventh come late or never; other groups go on meanwhile.
    now[0] = 60.0
    assert [pool.lease(group).task.id for group in ("h", "i", "h", "h")] == ["t3", "t4", "t3", "t3"]
    assert pool.counts()["open_groups"] == 2
    now[0] = 99.0
    assert pool.lease("g").task.id == "t2"
    now[0] = 160.0
    assert pool.lease("i").task.id == "t5"  # 100 seconds after its only lease
    assert pool.counts()["open_groups"] == 2
    now[0] = 198.0
    assert pool.lease("g").task.id == "t2"  # 99 seconds after its second lease
    now[0] = 260.0
    assert pool.counts()["open_groups"] == 0


def test_leases_from_many_threads_keep_the_invariants() -> None:
    pool = TaskPool(tasks(50), group_size=8, shuffle=True, seed=1)
    given: dict[str, list[str]] = {f"g{n}": [] for n in range(100)}
    arrivals = [group for group in given for _ in range(8)]
    random.Random(2).shuffle(arrivals)

    def client(share: list[str]) -> None:
        for group in share:
            given[group].append(pool.lease(group).task.id)

    threads = [threading.Thread(target=client, args=(arrivals[n::40],)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(ids) == 8 and len(set(ids)) == 1 for ids in given.values())
    assert set(Counter(ids[0] for ids in given.values()).values()) == {2}
    assert pool.counts() == {"rows": 50, "group_size": 8, "leased": 800, "epoch": 1, "position": 50, "open_groups": 0}


def test_a_group_that_was_given_up_leaves_nothing_for_its_id() -> None:
    pool = TaskPool(tasks(9), group_size=3, shuffle=False, seed=0)
    first, second = pool.lease("g"), pool.lease("g")
    pool.end(first, given_up=True)
    # A sibling lives on: the third belongs to the same group.
    third = pool.lease("g")
    assert [lease.task.id for lease in (second, third)] == ["t0", "t0"]
    again = pool.lease("g")
    assert again.task.id == "t1"
    # What ends late in the old group says nothing about the new one of the same name.
    pool.end(second, given_up=True)
    pool.end(third, given_up=True)
    assert pool.lease("g").task.id == "t1"
    # A trainer that starts anew meets a fresh row; the place does not go back.
    other = pool.lease("h")
    pool.end(other, given_up=True)
    assert pool.counts()["open_groups"] == 1
    assert pool.lease("h").task.id == "t3"
    # Completed sessions alone leave the row to their siblings.
    done = pool.lease("i")
    pool.end(done, given_up=False)
    assert pool.lease("i").task.id == done.task.id


def test_a_pool_goes_on_where_another_stopped() -> None:
    def order(pool: TaskPool, count: int) -> list[str]:
        return [pool.lease(str(number)).task.id for number in range(count)]

    whole = TaskPool(tasks(5), group_size=1, shuffle=True, seed=7)
    ids = order(whole, 12)
    for stop in range(12):
        pool = TaskPool(tasks(5), group_size=1, shuffle=True, seed=7)
        leases = [pool.lease(str(number)) for number in range(stop)]
        rest = TaskPool(tasks(5), group_size=1, shuffle=True, seed=7)
        rest.resume(leases[-1].place if leases else Place(0, 0))
        assert order(rest, 12 - stop) == ids[stop:]
    orders = [
        TaskPool(tasks(count), group_size=1, shuffle=shuffle, seed=seed).order
        for count, shuffle, seed in [(5, True, 7), (5, True, 8), (5, False, 7), (4, True, 7)]
    ]
    assert len({*orders, whole.order}) == 4
