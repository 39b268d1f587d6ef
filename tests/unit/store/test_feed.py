"""The feed: one change for each mutation, numbered in the order of the commits, and enough to rebuild the registry."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import AliasConflict, NotFound, OneBertError, VersionInUse
from onebert_store.registry.database import VERSIONS
from onebert_store.registry.records import Action, Actor, Alias, Place, VersionEntry, VersionRecord
from onebert_store.registry.registry import Registry
from onebert_store.registry.replicas import LIVE_SECONDS
from onebert_store.registry.store import join_store, open_store
from onebert_store.registry.target import alone
from registry_changes import MUTATIONS, rename_as_before
from tiny_delta import make_delta

ANN = Actor("key:ann", "request-1")


def facts(change):
    return change.action, change.task, change.version, change.alias, change.before


def test_every_mutation_writes_one_change_with_its_number(registry):
    registry.add("spam", make_delta(1), by=ANN)
    registry.add("spam", make_delta(2), by=ANN)
    alias, seq = registry.move_alias("spam", "live", 2, 1, by=ANN)
    assert (alias, seq) == (Alias(alone(2), (alone(1),)), 3)
    assert registry.move_alias("spam", "next", 1, None, by=ANN)[1] == 4
    assert registry.delete_alias("spam", "next", 1, by=ANN) == 5
    assert registry.delete_version("spam", 1, by=ANN) == 6
    assert registry.delete_task("spam", by=ANN) == 7
    changes = registry.feed.read(0, 100)
    assert [facts(change) for change in changes] == [
        ("upload", "spam", 1, "live", None),
        ("upload", "spam", 2, None, None),
        ("promote", "spam", 2, "live", 1),
        ("promote", "spam", 1, "next", None),
        ("delete-alias", "spam", None, "next", 1),
        ("delete-version", "spam", 1, None, None),
        ("delete-task", "spam", None, None, None),
    ]
    assert [change.seq for change in changes] == list(range(1, 8))
    assert registry.feed.last().seq == 7
    assert {(change.principal, change.request) for change in changes} == {("key:ann", "request-1")}
    times = [change.at for change in changes]
    assert times == sorted(times)
    assert abs((datetime.now(UTC) - times[0]).total_seconds()) < 3600


def test_what_changes_nothing_writes_nothing(registry):
    registry.add("spam", make_delta(1))
    with registry.storing(make_delta(1)) as stored:
        again = registry.add_stored("spam", make_delta(1), stored)
    assert (again.created, again.record.version, again.seq) == (False, 1, 1)
    for change in (
        lambda: registry.move_alias("spam", "live", 1, 2),
        lambda: registry.move_alias("spam", "live", 9, 1),
        lambda: registry.delete_alias("spam", "live", 2),
        lambda: registry.delete_version("spam", 1),
        lambda: registry.delete_version("spam", 2),
        lambda: registry.delete_task("ham"),
    ):
        with pytest.raises((AliasConflict, NotFound, VersionInUse)):
            change()
    assert registry.feed.last().seq == len(registry.feed.read(0, 9)) == 1


def test_an_upload_comes_with_its_version_as_long_as_that_exists(registry, place):
    record, _ = registry.add("spam", make_delta(1))
    damaged, _ = registry.add("spam", make_delta(2))
    registry.add("spam", make_delta(3))
    registry.delete_version("spam", 3)
    with join_store(place) as store, store.database.writing() as connection:
        connection.execute(VERSIONS.update().where(VERSIONS.c.version == 2).values(manifest="{}"))
    first, second, third, fourth = registry.feed.read(0, 9)
    assert isinstance(first.entry, VersionRecord)
    assert first.entry == record
    assert second.entry == VersionEntry("spam", 2, damaged.digest, damaged.size, damaged.created_at)
    assert third.entry is None
    assert fourth.entry is None


def test_large_manifests_come_few_at_once_and_each_of_them_whole(registry, monkeypatch):
    monkeypatch.setattr("onebert_store.registry.feed.MANIFESTS_TOGETHER", 50_000)
    deltas = [make_delta(seed) for seed in range(5)]
    for seed, letters in enumerate((10, 20_000, 20_000, 60_000, 10)):
        manifest = deltas[seed].manifest.model_copy(update={"training": {"note": "x" * letters}})
        registry.add("spam", dataclasses.replace(deltas[seed], manifest=manifest))
    pages, after = [], 0
    while page := registry.feed.read(after, 100):
        pages.append([change.seq for change in page])
        assert all(isinstance(change.entry, VersionRecord) for change in page)
        after = page[-1].seq
    assert pages == [[1, 2, 3], [4], [5]]


def test_a_reader_of_another_feed_gets_nothing(registry):
    registry.add("spam", make_delta(1))
    registry.add("spam", make_delta(2))
    first, second = registry.feed.read(0, 2)
    assert registry.feed.read(1, 9, first.at) == [second]
    assert registry.feed.read(1, 9, first.at - timedelta(microseconds=1)) == []


def test_a_snapshot_is_everything_and_the_number_until_then(registry):
    registry.add("spam", make_delta(1))
    registry.add("spam", make_delta(2))
    registry.add("ham", make_delta(1))
    registry.move_alias("spam", "live", 2, 1)
    registry.delete_alias("ham", "live", 1)
    snapshot = registry.feed.snapshot()
    assert snapshot.last == Place(5, registry.feed.read(4, 1)[0].at)
    assert snapshot.entries == registry.entries()
    assert snapshot.aliases == {"spam": {"live": Alias(alone(2), (alone(1),))}}


def test_numbers_are_those_of_the_commits_and_have_no_gap(place):
    """Eight writers, each of whom reads the feed again and again: what was read is never followed by a lower number."""
    with ExitStack() as opened:
        opened.enter_context(Registry.open(place))
        writers = [Registry(opened.enter_context(join_store(place))) for _ in range(8)]

        def work(number):
            registry, read = writers[number], []
            for i in range(6):
                registry.add(f"task-{i % 2}", make_delta(number * 10 + i))
                read += [change.seq for change in registry.feed.read(read[-1] if read else 0, 100)]
            return read

        everything = list(range(1, 49))
        with ThreadPoolExecutor(8) as pool:
            for read in pool.map(work, range(8)):
                assert read == everything[: len(read)]
        assert [change.seq for change in writers[0].feed.read(0, 100)] == everything


def replayed(changes):
    """Version numbers by task, and aliases by task and name, from the changes alone."""
    versions, aliases = {}, {}
    for change in changes:
        key = change.task, change.alias
        if change.action == Action.UPLOAD:
            versions.setdefault(change.task, set()).add(change.version)
            aliases |= {key: Alias(alone(change.version))} if change.alias else {}
        elif change.action in (Action.PROMOTE, Action.ROLL_BACK):
            before = aliases.get(key)
            assert (before and before.version) == change.before
            assert (before and before.target) == (change.before and (change.before_target or alone(change.before)))
            target, earlier = change.target or alone(change.version), before.earlier if before else ()
            if change.action == Action.ROLL_BACK:
                last = max(
                    number for number, earlier_change in enumerate(earlier) if earlier_change.version == change.version
                )
                earlier = earlier[:last]
            elif change.before not in (None, change.version):
                earlier = (*earlier, before.target)
            aliases[key] = Alias(target, earlier)
        elif change.action == Action.DELETE_ALIAS:
            assert aliases.pop(key).version == change.before
        elif change.action == Action.DELETE_VERSION:
            versions[change.task].remove(change.version)
        else:
            versions[change.task] = set()
            aliases = {key: at for key, at in aliases.items() if key[0] != change.task}
    return versions, aliases


@given(st.lists(MUTATIONS, max_size=40))
def test_changes_alone_say_what_is_registered(tmp_path_factory, mutations):
    """A reader of the feed that knows nothing but the actions ends with the registry's aliases and versions."""
    with Registry.open(tmp_path_factory.mktemp("feed")) as registry:
        for name, *arguments in mutations:
            task, *rest = arguments
            try:
                getattr(registry, name)(task, *([make_delta(rest[0])] if name == "add" else rest))
            except OneBertError:
                continue
        versions, aliases = replayed(registry.feed.read(0, 1000))
        tasks = {task.name: task for task in registry.tasks()}
        assert {name: tuple(sorted(numbers)) for name, numbers in versions.items() if numbers} == {
            name: task.versions for name, task in tasks.items()
        }
        assert aliases == {(name, alias): at for name, task in tasks.items() for alias, at in task.aliases.items()}


def test_silent_replicas_are_forgotten(place):
    with open_store(place) as store:
        replicas = Registry(store).replicas
        replicas.report("one", 3)
        replicas.report("two", 4)
        replicas.report("one", 5)
        assert [(replica.id, replica.seq) for replica in replicas.live()] == [("one", 5), ("two", 4)]
        assert all(0 <= replica.seconds < LIVE_SECONDS for replica in replicas.live())
        with store.database.writing() as connection:
            connection.exec_driver_sql(f"UPDATE replicas SET at = at - {LIVE_SECONDS} WHERE id = 'two'")
        assert [replica.id for replica in replicas.live()] == ["one"]
        replicas.leave("one")
        assert replicas.live() == []


def test_who_listens_hears_of_a_change_once_it_is_committed(registry, place):
    with join_store(place) as store:
        other = Registry(store)
        with registry.feed.listening() as heard:
            if not registry.shared:
                assert heard is None
                return
            other.add("spam", make_delta(1))
            assert heard(180)
            assert registry.feed.last().seq == 1
            assert not heard(0)
            with store.database.writing() as connection:
                other.feed.write(connection, ANN, Action.DELETE_TASK, "spam")
                assert not heard(0.05)
            assert heard(180)


def test_an_old_rename_is_in_the_trail_alone(registry):
    for task in ("old", "dead", "plain"):
        registry.add(task, make_delta(1))
        registry.add(task, make_delta(2))
        registry.move_alias(task, "live", 2, 1)
    rename_as_before(registry, "old", "new")
    registry.delete_task("dead")
    delta = make_delta(3)
    for task in ("old", "dead"):
        with registry.storing(delta) as stored:
            registry.add_stored(task, delta, stored, live=False)
    registry.move_alias("new", "next", 1, None)
    names = ["old", "new", "dead", "plain"]
    last = registry.feed.last_moves(names)
    assert last == {name: moves[0] for name in names if (moves := registry.feed.moves(name, 1))}
    assert {name: (move.task, move.version) for name, move in last.items()} == {
        "new": ("new", 1),
        "plain": ("plain", 2),
    }
    [rename, move] = registry.feed.audit(0, 9, task="new")
    assert (rename.action, rename.task, rename.name, move.action) == ("rename-task", "old", "new", "promote")
