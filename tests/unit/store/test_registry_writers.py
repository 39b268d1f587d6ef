"""Many writers at once, on one registry or on several of one database: each change happens once, or is refused."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta

import pytest

from onebert_store.errors import (
    AliasConflict,
    AliasNotFound,
    TaskExists,
    TaskNotFound,
    VersionInUse,
    VersionNotFound,
)
from onebert_store.file.format import loads
from onebert_store.registry import gc
from onebert_store.registry.records import Alias
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
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


def all_at_once(writers, work):
    """Runs `work(registry, number)` of every writer at the same time; their results in order."""
    start = threading.Barrier(len(writers))

    def begin(number):
        start.wait()
        return work(writers[number], number)

    with ThreadPoolExecutor(len(writers)) as pool:
        return list(pool.map(begin, range(len(writers))))


def test_the_same_contents_are_added_once_each(writers):
    deltas = [make_delta(seed) for seed in range(10)]
    results = all_at_once(writers, lambda registry, _: [registry.add("spam", delta) for delta in deltas])
    results = [result for one in results for result in one]
    assert sum(created for _, created in results) == 10
    assert writers[0].task("spam").versions == tuple(range(1, 11))
    assert len({(record.version, record.digest) for record, _ in results}) == 10


def test_different_contents_get_numbers_without_a_gap_and_one_becomes_live(writers):
    results = all_at_once(
        writers, lambda registry, n: [registry.add("spam", make_delta(n * 10 + i))[0].version for i in range(5)]
    )
    assert sorted(n for numbers in results for n in numbers) == list(range(1, 41))
    assert all(numbers == sorted(numbers) for numbers in results)
    task = writers[0].task("spam")
    assert task.versions == tuple(range(1, 41))
    assert task.aliases == {"live": Alias(1)}


def test_of_those_who_move_an_alias_one_wins(writers):
    for seed in range(WRITERS + 1):
        writers[0].add("spam", make_delta(seed))
    for turn in range(10):
        live = writers[0].task("spam").aliases["live"].version
        targets = [n for n in range(1, WRITERS + 2) if n != live]

        def move(registry, number, live=live, targets=targets):
            try:
                return registry.move_alias("spam", "live", targets[number], live)[0]
            except AliasConflict:
                return None

        (won,) = filter(None, all_at_once(writers, move))
        assert writers[0].task("spam").aliases == {"live": won}, turn
        assert won.previous == live


def test_of_those_who_make_an_alias_one_wins(writers):
    for seed in range(WRITERS):
        writers[0].add("spam", make_delta(seed))

    def make(registry, number):
        try:
            return registry.move_alias("spam", "canary", number + 1, None)[0]
        except AliasConflict:
            return None

    (won,) = filter(None, all_at_once(writers, make))
    assert writers[0].task("spam").aliases["canary"] == won


def test_of_those_who_delete_one_wins(writers):
    for seed in range(2):
        writers[0].add("spam", make_delta(seed))
    writers[0].move_alias("spam", "canary", 1, None)

    def delete_both(registry, _):
        done = []
        for call, error in (
            (lambda: registry.delete_alias("spam", "canary", 1), AliasNotFound),
            (lambda: registry.delete_version("spam", 2), VersionNotFound),
        ):
            try:
                call()
                done.append(True)
            except error:
                done.append(False)
        return done

    for done in zip(*all_at_once(writers, delete_both), strict=True):
        assert sum(done) == 1
    assert writers[0].task("spam").versions == (1,)


def test_of_those_who_delete_and_rename_a_task_one_wins(writers):
    for turn in range(10):
        writers[0].add("spam", make_delta(0))
        free = f"ham-{turn}"

        def delete_or_rename(registry, number, free=free):
            try:
                if number % 2:
                    return registry.delete_task("spam")
                return registry.rename_task("spam", free)
            except (TaskNotFound, TaskExists):
                return None

        done = all_at_once(writers, delete_or_rename)
        assert sum(seq is not None for seq in done) == 1
        renamed = any(done[::2])
        assert [task.name for task in writers[0].tasks()] == ([free] if renamed else [])
        if renamed:
            writers[0].delete_task(free)


def test_an_alias_never_points_at_a_version_that_is_deleted_meanwhile(writers):
    """Half of them move an alias to a version, half delete that version: one side or the other, never both."""
    for _ in range(10):
        writers[0].add("spam", make_delta(0))
        n = writers[0].add("spam", make_delta(1))[0].version

        def move_or_delete(registry, number, n=n):
            try:
                if number % 2:
                    registry.move_alias("spam", "next", n, None)
                else:
                    registry.delete_version("spam", n)
            except (AliasConflict, VersionNotFound, VersionInUse):
                return None
            return "moved" if number % 2 else "deleted"

        (outcome,) = filter(None, all_at_once(writers, move_or_delete))
        task = writers[0].task("spam")
        assert ("next" in task.aliases, n in task.versions) == ((True, True) if outcome == "moved" else (False, False))
        if outcome == "moved":
            writers[0].delete_alias("spam", "next", n)
            writers[0].delete_version("spam", n)


def test_a_sweep_waits_for_those_who_add_and_keeps_others_out(writers):
    one, other, sweeper = (registry._store.database for registry in writers[:3])
    events = []

    def sweep():
        with sweeper.sweeping() as lock:
            lock.check()
            events.append("sweep")

    with ThreadPoolExecutor(1) as pool:
        with one.adding(), other.adding():
            swept = pool.submit(sweep)
            events.append("both add")
        swept.result()
    assert events == ["both add", "sweep"]


def test_a_sweep_takes_nothing_that_is_added_meanwhile(writers, place):
    """The same few contents are added and deleted while others sweep with no grace: every version keeps its blob."""

    def work(registry, number):
        if number % 2:
            with join_store(place) as store:
                for _ in range(20):
                    gc.sweep(store, timedelta(0))
            return []
        kept = []
        for i in range(10):
            delta = make_delta(i % 3)
            task = f"task-{number}"
            other = registry.add(task, make_delta(100 + number))[0]
            record, _ = registry.add(task, delta)
            if record.version != other.version and i < 7:
                registry.delete_version(task, record.version)
            else:
                kept.append(record)
        return kept

    kept = [record for records in all_at_once(writers, work) for record in records]
    assert kept
    for record in kept:
        assert loads(writers[0].read(record)).digest == record.digest
