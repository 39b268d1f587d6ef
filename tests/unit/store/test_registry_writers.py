"""Many writers at once, on one registry or on several of one database: each change happens once, or is refused."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from itertools import takewhile

import pytest

from onebert_store.errors import (
    AliasConflict,
    TaskNotFound,
    VersionInUse,
    VersionNotFound,
)
from onebert_store.file.format import loads
from onebert_store.registry.records import Alias
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
from onebert_store.registry.target import Shadow, Target, alone
from onebert_store.upkeep import gc
from stores import all_at_once
from tiny_delta import make_delta

WRITERS = 8


@pytest.fixture(params=["threads of one registry", "registries of one database"])
def writers(request, place):
    """Eight registries to write through: the same one, or each with connections of its own, as processes have."""
    with ExitStack() as opened:
        first = opened.enter_context(Registry.open(place))
        if request.param.startswith("threads"):
            yield [first] * WRITERS
        else:
            yield [Registry(opened.enter_context(join_store(place))) for _ in range(WRITERS)]


def test_different_contents_get_numbers_without_a_gap_and_one_becomes_live(writers):
    results = all_at_once(
        WRITERS, lambda n: [writers[n].add("spam", make_delta(n * 10 + i))[0].version for i in range(5)]
    )
    assert sorted(n for numbers in results for n in numbers) == list(range(1, 41))
    assert all(numbers == sorted(numbers) for numbers in results)
    task = writers[0].task("spam")
    assert task.versions == tuple(range(1, 41))
    assert task.aliases == {"live": Alias(alone(1))}


def test_of_those_who_move_an_alias_one_wins(writers):
    for seed in range(WRITERS + 1):
        writers[0].add("spam", make_delta(seed))
    were_live = [1]
    for turn in range(5):
        live = writers[0].task("spam").aliases["live"].version
        targets = [n for n in range(1, WRITERS + 2) if n != live]

        def move(n, live=live, targets=targets):
            return writers[n].move_alias("spam", "live", targets[n], live)[0]

        (won,) = filter(None, all_at_once(WRITERS, move, AliasConflict))
        assert writers[0].task("spam").aliases == {"live": won}, turn
        # A move to a version that was live goes back to it, past those that were live since.
        were_live = [*takewhile(lambda version, won=won: version != won.version, were_live), won.version]
        assert [*(target.version for target in won.earlier), won.version] == were_live


def test_an_alias_never_points_at_a_version_that_is_deleted_meanwhile(writers):
    """Half of them move an alias to a version, half delete that version: one side or the other, never both."""
    for _ in range(5):
        writers[0].add("spam", make_delta(0))
        n = writers[0].add("spam", make_delta(1))[0].version

        def move_or_delete(number, n=n):
            if number % 2:
                writers[number].move_alias("spam", "next", n, None)
                return "moved"
            writers[number].delete_version("spam", n)
            return "deleted"

        refusals = AliasConflict, VersionNotFound, VersionInUse
        (outcome,) = filter(None, all_at_once(WRITERS, move_or_delete, *refusals))
        task = writers[0].task("spam")
        assert ("next" in task.aliases, n in task.versions) == ((True, True) if outcome == "moved" else (False, False))
        if outcome == "moved":
            writers[0].delete_alias("spam", "next", n)
            writers[0].delete_version("spam", n)


def test_a_sweep_waits_for_those_who_add_and_keeps_others_out(writers):
    first, other, sweeper = (registry._store.database for registry in writers[:3])
    events = []

    def sweep():
        with sweeper.sweeping() as lock:
            lock.check()
            events.append("sweep")

    with ThreadPoolExecutor(1) as pool:
        with first.adding(), other.adding():
            swept = pool.submit(sweep)
            events.append("both add")
        swept.result()
    assert events == ["both add", "sweep"]


def test_a_sweep_takes_nothing_that_is_added_meanwhile(writers, place):
    """The same few contents are added and deleted while others sweep with no grace: every version keeps its blob."""

    def work(number):
        if number % 2:
            with join_store(place) as store:
                for _ in range(10):
                    gc.sweep(store, timedelta(0))
            return []
        records = []
        for i in range(5):
            delta = make_delta(i % 3)
            task = f"task-{number}"
            other = writers[number].add(task, make_delta(100 + number))[0]
            record, _ = writers[number].add(task, delta)
            if record.version != other.version and i < 3:
                writers[number].delete_version(task, record.version)
            else:
                records.append(record)
        return records

    written = [record for records in all_at_once(WRITERS, work) for record in records]
    assert written
    for record in written:
        assert loads(writers[0].read(record)).digest == record.digest


def test_moves_beside_a_deletion_of_the_task_wait_for_one_another(writers):
    """Split moves lock their versions; whoever comes second finds the task gone or moved, and nobody a deadlock."""
    for turn in range(5):
        name = f"task-{turn}"
        for seed in range(3):
            writers[0].add(name, make_delta(seed))
        split = Target(((1, 50), (2, 50)), "principal", (Shadow(3, 100),))

        def work(n, name=name, split=split):
            if n == 0:
                return writers[n].delete_task(name)
            return writers[n].move_alias(name, "live", split if n % 2 else 2, 1)

        all_at_once(WRITERS, work, AliasConflict, TaskNotFound, VersionNotFound, VersionInUse)
