"""The registry: immutable versions, aliases by compare-and-set, one owner, and a model it must agree with."""

import errno
import os
import resource
import sqlite3
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event, text, update

from foreign_writer import write_delta
from onebert_store.errors import (
    InvalidInput,
    NotFinite,
    StorageFull,
    StorageUnavailable,
    StoreCorrupt,
    StoreLocked,
    VersionNotFound,
)
from onebert_store.file.format import dumps, loads
from onebert_store.registry import statements
from onebert_store.registry.database import ALIASES, VERSIONS
from onebert_store.registry.dialects import sqlite
from onebert_store.registry.dialects.sqlite import SqliteDatabase
from onebert_store.registry.grants import Grant, Scope
from onebert_store.registry.records import Actor, Alias
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store, open_store
from onebert_store.registry.target import Shadow, Target, alone
from onebert_store.upkeep import gc
from stores import all_at_once, go_back, name_of, orphans
from tiny_delta import make_delta, manifest_dict, tensors_for


@pytest.fixture
def in_folder(tmp_path):
    """A registry whose database is a file beside its blobs."""
    with Registry.open(tmp_path) as registry:
        yield registry


def all_versions(registry):
    return [registry.version(entry.task, entry.version) for entry in registry.entries()]


def blob_files(tmp_path):
    return {path.name for path in (tmp_path / "store" / "blobs").iterdir()}


def blob_path(tmp_path, record):
    return tmp_path / "store" / "blobs" / name_of(record)


def test_the_first_version_becomes_live(registry):
    delta = make_delta(training={"seed": 7, "note": None})
    before = datetime.now(UTC)
    record, created = registry.add("spam", delta)
    assert created
    assert (record.task, record.version, record.digest) == ("spam", 1, delta.digest)
    assert record.manifest == delta.manifest
    assert record.size == len(dumps(delta))
    assert timedelta(0) <= record.created_at - before < timedelta(minutes=1)
    assert registry.read(record) == dumps(delta)
    assert registry.version("spam", 1) == record
    assert all_versions(registry) == [record]
    task = registry.task("spam")
    assert (task.name, task.versions, task.aliases) == ("spam", (1,), {"live": Alias(alone(1))})
    assert registry.tasks() == [task]


def test_an_alias_of_an_older_store_moves_and_is_deleted(registry):
    for seed in (1, 2):
        registry.add("spam", make_delta(seed))
    target = Target(((1, 50), (2, 50)), "header:X_User")
    for alias in ("next", "old"):
        registry.move_alias("spam", alias, target, None)
    with registry.database.writing() as connection:
        connection.execute(
            update(ALIASES).where(ALIASES.c.alias != "live").values(target=target.dumps()[:-1] + ",0.05]")
        )
    assert registry.task("spam").aliases["next"] == Alias(target)
    registry.move_alias("spam", "next", 2, target.tag)
    assert registry.task("spam").aliases["next"] == Alias(alone(2), (target,))
    registry.delete_alias("spam", "old", target.tag)
    assert set(registry.task("spam").aliases) == {"live", "next"}


def test_a_task_has_so_many_aliases_whoever_makes_them_at_once(registry, monkeypatch):
    monkeypatch.setattr(statements, "MAX_ALIASES", 5)
    registry.add("spam", make_delta(1))
    registry.add("ham", make_delta(1))

    made = all_at_once(12, lambda n: registry.move_alias("spam", f"next-{n}", 1, None)[1], InvalidInput)
    # Beside `live`; and what was refused is no change.
    assert sorted(filter(None, made)) == [3, 4, 5, 6]
    assert len(registry.task("spam").aliases) == 5
    assert registry.feed.last().seq == 6
    [alias, *_] = set(registry.task("spam").aliases) - {"live"}
    registry.delete_alias("spam", alias, 1)
    registry.move_alias("spam", "other", 1, None)
    registry.move_alias("ham", "other", 1, None)


def test_a_deletion_stands_when_the_disk_refuses_to_remove_anything(registry, tmp_path, monkeypatch):
    registry.add("spam", make_delta(1))
    registry.add("spam", make_delta(2))

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for call in ("unlink", "remove", "rename", "replace"):
        monkeypatch.setattr(os, call, refuse)
    registry.delete_version("spam", 2)
    assert registry.task("spam").versions == (1,)
    with pytest.raises(VersionNotFound):
        registry.delete_version("spam", 2)


def test_a_canonical_upload_is_stored_as_it_is(registry, tmp_path):
    data = dumps(make_delta())
    body = registry.writer()
    body.write(data)
    (temporary,) = (tmp_path / "store" / "blobs").iterdir()
    inode = temporary.stat().st_ino
    record, _ = registry.add("spam", loads(data), body)
    assert blob_path(tmp_path, record).stat().st_ino == inode
    assert len(blob_files(tmp_path)) == 1


def test_a_foreign_upload_is_stored_in_canonical_form(registry, tmp_path):
    write_delta(tmp_path / "foreign", manifest_dict(), tensors_for())
    data = (tmp_path / "foreign").read_bytes()
    body = registry.writer()
    body.write(data)
    record, _ = registry.add("spam", loads(data), body)
    assert record.digest == make_delta().digest != body.digest
    assert registry.read(record) == dumps(make_delta())
    assert len(blob_files(tmp_path)) == 1


def test_a_refused_upload_leaves_nothing(registry, tmp_path):
    tensors = tensors_for()
    tensors["head.bias"][0] = float("nan")
    for task, delta, error in [("spam", make_delta(tensors=tensors), NotFinite), ("../x", make_delta(), InvalidInput)]:
        body = registry.writer()
        body.write(b"anything")
        with pytest.raises(error):
            registry.add(task, delta, body)
    assert blob_files(tmp_path) == set()
    assert registry.tasks() == []


def test_deleting_a_task_takes_constant_statements(place):
    counted = []
    with open_store(place) as store:
        registry = Registry(store)
        registry.add("other", make_delta(1))
        event.listen(store.database.writers, "before_cursor_execute", lambda *_: counted.append(1))
        for task, versions in (("few", 1), ("many", 12)):
            for seed in range(versions):
                registry.add(task, make_delta(seed))
            counted.append("deleted")
            registry.delete_task(task)
            counted.append("deleted")
    _, few, _, many, _ = "".join(map(str, counted)).split("deleted")
    assert few == many
    assert orphans(place) == {make_delta(seed).digest for seed in range(12)} - {make_delta(1).digest}


def test_damage_is_found_on_reading_and_healed_by_the_same_upload(registry, tmp_path):
    other, _ = registry.add("ham", make_delta(1))
    record, _ = registry.add("spam", make_delta())
    path = blob_path(tmp_path, record)
    for damage in (lambda: path.write_bytes(b"x" + path.read_bytes()[1:]), path.unlink):
        damage()
        for look in (registry.read, registry.verify):
            with pytest.raises(StoreCorrupt, match=r"other content|is missing"):
                look(record)
        registry.verify(other)
        assert registry.add("spam", make_delta()) == (record, False)
        assert registry.read(record) == dumps(make_delta())


def test_reading_a_version_deleted_meanwhile_is_not_damage(registry, place):
    registry.add("spam", make_delta(1))
    record, _ = registry.add("spam", make_delta(2))
    registry.delete_version("spam", 2)
    with join_store(place) as store:
        gc.sweep(store, timedelta(0))
    for look in (registry.read, registry.verify):
        with pytest.raises(VersionNotFound):
            look(record)


@pytest.mark.parametrize("lost", ["missing", "empty"])
def test_blobs_without_their_database_are_refused_and_kept(tmp_path, lost):
    folder = tmp_path / "store"
    with Registry.open(folder) as registry:
        record, _ = registry.add("spam", make_delta())
    database = folder / "registry.sqlite3"
    backup = database.read_bytes()
    database.unlink()
    if lost == "empty":
        database.touch()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="blobs but no database"):
            Registry.open(folder)
    database.write_bytes(backup)
    with Registry.open(folder) as registry:
        assert registry.read(record) == dumps(make_delta())


def test_a_folder_may_have_any_name(tmp_path):
    name = "file:a?b%20c#d e?mode=memory"
    with Registry.open(tmp_path / name) as registry:
        registry.add("spam", make_delta())
    assert (tmp_path / name / "registry.sqlite3").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with Registry.open(tmp_path / name) as registry:
        assert registry.task("spam").versions == (1,)


def test_who_only_joins_a_store_keeps_nobody_from_owning_it(tmp_path):
    """As `onebert store gc` of a timer at the moment at which a server starts."""
    Registry.open(tmp_path).close()
    database = SqliteDatabase(tmp_path / "registry.sqlite3")
    with database.joined() as is_alone:
        Registry.open(tmp_path).close()
        assert is_alone()
        with pytest.raises(StoreLocked):
            Registry.open(tmp_path)


def test_a_database_that_is_none_is_refused_and_the_lock_let_go(tmp_path):
    folder = tmp_path / "store"
    Registry.open(folder).close()
    database = folder / "registry.sqlite3"
    database.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreCorrupt, match="damaged"):
        Registry.open(folder)
    database.unlink()
    database.mkdir()
    with pytest.raises(StoreCorrupt, match="is not a file; put the database"):
        Registry.open(folder)
    database.rmdir()
    Registry.open(folder).close()


def test_a_disk_that_refuses_writes_changes_nothing_and_heals(in_folder):
    """Every write fails, as the operating system lets a file of this process grow no further."""
    for seed in range(3):
        in_folder.add("spam", make_delta(seed))
    in_folder.move_alias("spam", "next", 2, None)
    changes = [
        lambda: in_folder.add("spam", make_delta(9)),
        lambda: in_folder.move_alias("spam", "live", 2, 1),
        lambda: in_folder.delete_alias("spam", "next", 2),
        lambda: in_folder.delete_version("spam", 3),
    ]
    before = in_folder.task("spam")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        for change in changes:
            with pytest.raises(StorageUnavailable):
                change()
        assert in_folder.task("spam") == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for change in changes:
        change()
    task = in_folder.task("spam")
    assert (task.versions, task.aliases) == ((1, 2, 4), {"live": Alias(alone(2), (alone(1),))})


def test_every_connection_is_durable(tmp_path):
    database = SqliteDatabase(tmp_path / "x.sqlite3")
    with database.readers.connect() as reader, database.writers.connect() as other:
        for connection in (reader, other):
            names = ("journal_mode", "synchronous", "foreign_keys")
            values = [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names]
            assert values == ["wal", 2, 1], "2 is FULL"
    database.close()


@pytest.fixture
def for_ever(monkeypatch):
    """Whoever would wait by SQLite's own limit waits for an hour."""
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 3600.0)


@pytest.fixture
def held(in_folder, tmp_path):
    """A registry with a task, whose database another program has locked."""
    in_folder.add("spam", make_delta(1))
    with closing(sqlite3.connect(tmp_path / "registry.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield in_folder


@pytest.mark.parametrize(
    "change",
    [
        lambda registry, by: registry.move_alias("spam", "next", 1, None, by),
        lambda registry, by: registry.delete_alias("spam", "live", 1, by),
        lambda registry, by: registry.delete_version("spam", 1, by),
        lambda registry, by: registry.delete_task("spam", by),
        lambda registry, by: registry.keys.create(Grant("ci", frozenset({Scope.CLASSIFY}), ("*",)), by=by),
        lambda registry, by: registry.keys.revoke("0" * 12, by),
    ],
)
def test_a_held_database_is_waited_for_until_the_deadline(held, for_ever, change):
    with pytest.raises(StorageUnavailable, match="another process holds it"):
        change(held, Actor("test", until=time.monotonic() + 0.01))
    assert held.task("spam").aliases == {"live": Alias(alone(1))}


def test_a_start_gives_up_on_a_held_database(tmp_path, for_ever, monkeypatch):
    monkeypatch.setattr(sqlite, "READ_TIMEOUT_S", 0.01)
    Registry.open(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "registry.sqlite3", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StorageUnavailable, match="another process holds it"):
            Registry.open(tmp_path)
    Registry.open(tmp_path).close()


def test_a_folder_whose_path_is_too_long_for_sqlite_is_named(tmp_path):
    with pytest.raises(StorageUnavailable, match="longer than the 504 bytes that SQLite opens"):
        Registry.open(tmp_path / ("a" * 250) / ("b" * 250))


def test_an_upload_gives_up_on_a_stopped_sweep(in_folder, tmp_path, monkeypatch):
    with join_store(tmp_path) as store, store.database.sweeping():
        monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.01)
        with pytest.raises(StorageUnavailable, match="held by another process"):
            in_folder.add("spam", make_delta(1))
    assert in_folder.tasks() == []


def test_a_full_database_is_a_typed_error(in_folder, tmp_path):
    with join_store(tmp_path) as store, store.database.reading() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageFull), store.database.typed_errors():
            connection.exec_driver_sql("INSERT INTO tasks VALUES (?, 1)", ("x" * 100_000,))


def test_an_unusable_database_is_a_typed_error(tmp_path):
    folder = tmp_path / "store"
    with Registry.open(folder) as registry:
        registry.add("spam", make_delta(1))
        with join_store(folder) as store, store.database.readers.connect() as connection:
            connection.exec_driver_sql("PRAGMA query_only = ON")
            with pytest.raises(StorageUnavailable, match="read-only"), store.database.typed_errors():
                connection.exec_driver_sql("DELETE FROM aliases")
    missing = SqliteDatabase(tmp_path / "no folder" / "x.sqlite3")
    with pytest.raises(StorageUnavailable, match="cannot be opened"), missing.reading():
        pass


@pytest.mark.parametrize("manifest", ["{}", "not JSON"])
def test_an_upload_heals_a_damaged_row(registry, place, manifest):
    records = [registry.add(task, make_delta(seed))[0] for seed, task in enumerate(["ham", "spam", "tone"])]
    with join_store(place) as store, store.database.writing() as connection:
        connection.execute(update(VERSIONS).where(VERSIONS.c.task == "spam").values(manifest=manifest))
    assert [(entry.task, entry.digest) for entry in registry.entries()] == [(r.task, r.digest) for r in records]
    with pytest.raises(StoreCorrupt, match="damaged manifest of spam@1"):
        registry.version("spam", 1)
    assert [registry.version(task, 1) for task in ("ham", "tone")] == [records[0], records[2]]
    assert loads(registry.read(registry.entries()[1])).manifest == records[1].manifest
    assert registry.add("spam", make_delta(1)) == (records[1], False)
    assert registry.version("spam", 1) == records[1]


def test_manifests_of_many_versions_come_without_those_that_are_gone_or_damaged(registry, place):
    for task, seed in (("a", 1), ("a", 2), ("b", 1), ("b", 2)):
        registry.add(task, make_delta(seed, method=f"bitfit:{task}{seed}"))
    entries = registry.entries()
    with join_store(place) as store, store.database.writing() as connection:
        damaged = update(VERSIONS).where(VERSIONS.c.task == "a", VERSIONS.c.version == 2)
        connection.execute(damaged.values(manifest="{}"))
    registry.delete_version("b", 2)
    methods = [(entry, manifest.method) for entry, manifest in registry.manifests([*entries[:2], entries[3]])]
    assert methods == [(entries[0], "bitfit:a1")]
    assert list(registry.manifests([])) == []


def test_a_store_in_a_folder_has_one_owner(tmp_path):
    registry = Registry.open(tmp_path)
    registry.close()
    with Registry.open(tmp_path) as owner:
        registry.close()
        owner.add("spam", make_delta())
        with pytest.raises(StoreLocked):
            Registry.open(tmp_path)


def test_rolling_back_goes_along_the_versions_that_were_live(registry):
    for seed in range(5):
        registry.add("spam", make_delta(seed))

    def move(to):
        at = registry.task("spam").aliases["live"].target.tag
        alias, _ = registry.move_alias("spam", "live", to, at)
        before = alias.back(range(1, 6))
        return before and before.version, before, registry.feed.moves("spam", 1)[0].rolled_back

    shadowed = Target(((2, 100),), None, (Shadow(5, 100),))
    canary = Target(((2, 90), (3, 10)), None, (Shadow(5, 100),))
    assert move(2) == (1, alone(1), False)
    assert move(shadowed) == move(canary) == (1, alone(1), False)
    # The whole meaning comes back, unless the version that is left had a part in it.
    assert move(4) == (2, canary, False)
    assert move(canary) == (1, alone(1), True)
    assert move(3) == (2, alone(2), False)
    assert move(5) == (3, alone(3), False)
    assert move(2) == (1, alone(1), True)
    assert move(1) == (None, None, True)
    assert move(2) == (1, alone(1), False)
    # An older version that begins to answer beside the present one is no rollback until that has no share any more.
    assert move(Target(((1, 60), (2, 40)))) == (2, alone(2), False)
    assert move(1) == (2, alone(2), False)
    assert move(3) == (1, alone(1), False)
    assert move(1) == (2, alone(2), True)


def test_a_rollback_goes_to_the_last_meaning_whose_versions_there_still_are():
    split = Target(((2, 60), (3, 40)), "principal", (Shadow(4, 50), Shadow(5, 100)))
    alias = Alias(alone(6), (alone(1), split))
    assert alias.back(range(1, 7)) == split
    assert alias.back([1, 2, 3, 5, 6]) == split._replace(shadows=(Shadow(5, 100),))
    assert alias.back([1, 2, 4, 5, 6]) == alone(2)
    assert alias.back([1, 3, 4, 5, 6]) == alone(1)
    assert alias.back([6]) is None


def test_an_upgrade_finds_the_version_before_and_targets_in_the_trail(tmp_path):
    """A store of schema 12 knows the last meaning of an alias alone, and its trail none before a move."""
    with open_store(tmp_path) as store:
        registry = Registry(store)
        for seed in range(3):
            registry.add("spam", make_delta(seed))
        shadowed = Target(((2, 100),), None, (Shadow(3, 100),))
        registry.move_alias("spam", "live", 2, 1)
        registry.move_alias("spam", "live", shadowed, 2)
        for seed in range(2):
            registry.add("ham", make_delta(seed))
        registry.move_alias("ham", "live", 2, 1)
        registry.move_alias("ham", "live", 1, 2)
        moves, of_ham = registry.feed.moves("spam", 9), registry.feed.moves("ham", 9)
        go_back(store.database, 12)
        with store.database.writing() as connection:
            connection.execute(text("UPDATE aliases SET previous = 2"))
    with open_store(tmp_path) as store:
        registry = Registry(store)
        assert registry.task("spam").aliases["live"] == Alias(shadowed, (alone(1),))
        assert registry.feed.moves("spam", 9) == moves
        assert registry.feed.moves("ham", 9) == of_ham
        assert [move.rolled_back for move in of_ham] == [True, False, False]
