"""The registry: immutable versions, aliases by compare-and-set, one owner, and a model it must agree with."""

import shutil
import sqlite3
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from foreign_writer import write_delta
from onebert_store.errors import (
    AliasConflict,
    AliasNotFound,
    InvalidInput,
    NotFinite,
    StorageFull,
    StoreCorrupt,
    StoreLocked,
    TaskNotFound,
    VersionInUse,
    VersionNotFound,
)
from onebert_store.format import dumps, loads
from onebert_store.registry import Alias, Registry
from onebert_store.rows import open_database, typed_database_errors
from tiny_delta import make_delta, manifest_dict, tensors_for


@pytest.fixture
def registry(tmp_path):
    with Registry(tmp_path / "store") as registry:
        yield registry


def blob_files(tmp_path):
    return {path.name for path in (tmp_path / "store" / "blobs").iterdir()}


def blob_path(tmp_path, record):
    return tmp_path / "store" / "blobs" / record.digest.removeprefix("sha256:")


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
    assert registry.versions() == [record]
    task = registry.task("spam")
    assert (task.name, task.versions, task.aliases) == ("spam", (1,), {"live": Alias(1)})
    assert registry.tasks() == [task]


def test_a_second_version_does_not_move_live(registry):
    registry.add("spam", make_delta(1))
    record, _ = registry.add("spam", make_delta(2))
    assert record.version == 2
    assert registry.task("spam").aliases == {"live": Alias(1)}


def test_the_same_content_is_the_same_version(registry):
    first = registry.add("spam", make_delta(1))[0]
    registry.add("spam", make_delta(2))
    assert registry.add("spam", make_delta(1)) == (first, False)
    assert registry.task("spam").versions == (1, 2)


def test_two_tasks_share_a_blob_until_the_last_is_deleted(registry, tmp_path):
    registry.add("a", make_delta(1))
    registry.add("b", make_delta(1))
    for task in "ab":
        registry.add(task, make_delta(2))
        registry.move_alias(task, "live", 2, 1)
    assert len(blob_files(tmp_path)) == 2
    registry.delete_version("a", 1)
    assert len(blob_files(tmp_path)) == 2
    registry.delete_version("b", 1)
    assert len(blob_files(tmp_path)) == 1


def test_a_canonical_upload_is_stored_as_it_is(registry, tmp_path):
    data = dumps(make_delta())
    staged = registry.stage()
    staged.write(data)
    (temporary,) = (tmp_path / "store" / "blobs").iterdir()
    inode = temporary.stat().st_ino
    record, _ = registry.add("spam", loads(data), staged)
    assert blob_path(tmp_path, record).stat().st_ino == inode
    assert len(blob_files(tmp_path)) == 1


def test_a_foreign_upload_is_stored_in_canonical_form(registry, tmp_path):
    write_delta(tmp_path / "foreign", manifest_dict(), tensors_for())
    data = (tmp_path / "foreign").read_bytes()
    staged = registry.stage()
    staged.write(data)
    record, _ = registry.add("spam", loads(data), staged)
    assert record.digest == make_delta().digest != staged.digest
    assert registry.read(record) == dumps(make_delta())
    assert len(blob_files(tmp_path)) == 1


def test_a_refused_upload_leaves_nothing(registry, tmp_path):
    tensors = tensors_for()
    tensors["head.bias"][0] = float("nan")
    for task, delta, error in [("spam", make_delta(tensors=tensors), NotFinite), ("../x", make_delta(), InvalidInput)]:
        staged = registry.stage()
        staged.write(b"anything")
        with pytest.raises(error):
            registry.add(task, delta, staged)
    assert blob_files(tmp_path) == set()
    assert registry.tasks() == []


def test_numbers_are_never_used_again(tmp_path):
    with Registry(tmp_path) as registry:
        registry.add("spam", make_delta(1))
        registry.add("spam", make_delta(2))
        registry.delete_version("spam", 2)
        assert registry.add("spam", make_delta(2))[0].version == 3
        registry.delete_version("spam", 3)
    with Registry(tmp_path) as registry:
        assert registry.add("spam", make_delta(3))[0].version == 4
        assert registry.task("spam").versions == (1, 4)


def test_an_alias_moves_only_from_where_it_is_said_to_be(registry):
    for seed in range(3):
        registry.add("spam", make_delta(seed))
    registry.move_alias("spam", "live", 2, 1)
    for expected in (1, 3, None):
        with pytest.raises(AliasConflict, match="the alias live of spam is at version 2"):
            registry.move_alias("spam", "live", 3, expected)
    with pytest.raises(AliasConflict, match="the alias canary of spam is not set"):
        registry.move_alias("spam", "canary", 3, 1)
    registry.move_alias("spam", "canary", 3, None)
    assert registry.task("spam").aliases == {"live": Alias(2, previous=1), "canary": Alias(3)}


def test_an_alias_remembers_where_it_was_before(tmp_path):
    with Registry(tmp_path) as registry:
        for seed in range(4):
            registry.add("spam", make_delta(seed))
        assert registry.move_alias("spam", "live", 4, 1) == Alias(4, previous=1)
        assert registry.move_alias("spam", "live", 4, 4) == Alias(4, previous=1), "it did not move"
        assert registry.move_alias("spam", "live", 2, 4) == Alias(2, previous=4)
        registry.delete_version("spam", 4)
    with Registry(tmp_path) as registry:
        assert registry.task("spam").aliases == {"live": Alias(2, previous=4)}


def test_an_alias_is_deleted_only_from_where_it_is_said_to_be(registry):
    registry.add("spam", make_delta(1))
    with pytest.raises(AliasConflict, match="the alias live of spam is at version 1"):
        registry.delete_alias("spam", "live", 2)
    with pytest.raises(AliasNotFound, match="spam has no alias canary"):
        registry.delete_alias("spam", "canary", 1)
    with pytest.raises(InvalidInput):
        registry.delete_alias("spam", "../x", 1)
    registry.delete_alias("spam", "live", 1)
    assert registry.task("spam").aliases == {}
    assert registry.add("spam", make_delta(2))[0].version == 2
    assert registry.task("spam").aliases == {}, "only a first version becomes live"
    registry.move_alias("spam", "live", 2, None)
    assert registry.task("spam").aliases == {"live": Alias(2)}


def test_a_task_goes_with_its_last_version_and_its_numbers_stay(registry, tmp_path):
    registry.add("spam", make_delta(1))
    registry.delete_alias("spam", "live", 1)
    registry.delete_version("spam", 1)
    assert registry.tasks() == []
    assert blob_files(tmp_path) == set()
    with pytest.raises(TaskNotFound):
        registry.task("spam")
    assert registry.add("spam", make_delta(1))[0].version == 2
    assert registry.task("spam").aliases == {"live": Alias(2)}, "a first version becomes live"


def test_what_is_not_there(registry):
    registry.add("spam", make_delta())
    for call in (
        lambda: registry.task("ham"),
        lambda: registry.version("ham", 1),
        lambda: registry.move_alias("ham", "live", 1, None),
        lambda: registry.delete_version("ham", 1),
        lambda: registry.delete_alias("ham", "live", 1),
    ):
        with pytest.raises(TaskNotFound, match="there is no task ham"):
            call()
    for n in (0, -1, 2, 2**31, 2**63, 10**30):
        with pytest.raises(VersionNotFound, match="spam has no version"):
            registry.version("spam", n)
        with pytest.raises(VersionNotFound):
            registry.move_alias("spam", "live", n, 1)
        with pytest.raises(VersionNotFound):
            registry.delete_version("spam", n)
    for call in (lambda: registry.task("../x"), lambda: registry.move_alias("spam", "12", 1, None)):
        with pytest.raises(InvalidInput):
            call()


def test_a_version_with_an_alias_is_not_deleted(registry):
    registry.add("spam", make_delta(1))
    registry.move_alias("spam", "old", 1, None)
    with pytest.raises(VersionInUse, match="version 1 of spam has the alias live, old"):
        registry.delete_version("spam", 1)
    assert registry.task("spam").versions == (1,)


def test_damage_is_found_on_reading_and_healed_by_the_same_upload(registry, tmp_path):
    record, _ = registry.add("spam", make_delta())
    path = blob_path(tmp_path, record)
    for damage in (lambda: path.write_bytes(b"x" + path.read_bytes()[1:]), path.unlink):
        damage()
        with pytest.raises(StoreCorrupt):
            registry.read(record)
        assert registry.add("spam", make_delta()) == (record, False)
        assert registry.read(record) == dumps(make_delta())


def test_reading_a_version_deleted_meanwhile_is_not_damage(registry):
    registry.add("spam", make_delta(1))
    record, _ = registry.add("spam", make_delta(2))
    registry.delete_version("spam", 2)
    with pytest.raises(VersionNotFound):
        registry.read(record)


def test_opening_removes_orphans_and_temporaries(tmp_path):
    folder = tmp_path / "store"
    with Registry(folder) as registry:
        record, _ = registry.add("spam", make_delta())
    (folder / "blobs" / ("0" * 64)).write_bytes(b"orphan")
    (folder / "blobs" / "tmp-abc").write_bytes(b"half")
    with Registry(folder) as registry:
        assert registry.versions() == [record]
    assert blob_files(tmp_path) == {record.digest.removeprefix("sha256:")}


@pytest.mark.parametrize("lost", ["missing", "empty"])
def test_blobs_without_their_database_are_refused_and_kept(tmp_path, lost):
    folder = tmp_path / "store"
    with Registry(folder) as registry:
        record, _ = registry.add("spam", make_delta())
    database = folder / "registry.sqlite3"
    backup = database.read_bytes()
    database.unlink()
    if lost == "empty":
        database.touch()
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="blobs but no database"):
            Registry(folder)
    database.write_bytes(backup)
    with Registry(folder) as registry:
        assert registry.read(record) == dumps(make_delta())


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a#b c", "file:x?mode=memory"])
def test_a_folder_may_have_any_name(tmp_path, name):
    with Registry(tmp_path / name) as registry:
        registry.add("spam", make_delta())
    assert (tmp_path / name / "registry.sqlite3").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with Registry(tmp_path / name) as registry:
        assert registry.task("spam").versions == (1,)


def test_a_store_has_one_owner(registry, tmp_path):
    with pytest.raises(StoreLocked):
        Registry(tmp_path / "store")
    registry.add("spam", make_delta())


def test_a_database_that_is_none_or_newer_is_refused_and_the_lock_let_go(tmp_path):
    folder = tmp_path / "store"
    Registry(folder).close()
    database = folder / "registry.sqlite3"
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreCorrupt, match="schema 99"):
        Registry(folder)
    database.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreCorrupt, match="damaged"):
        Registry(folder)
    database.unlink()
    Registry(folder).close()


def test_every_connection_is_durable(tmp_path):
    engine = open_database(tmp_path / "x.sqlite3")
    with engine.connect() as one, engine.connect() as other:
        for connection in (one, other):
            names = ("journal_mode", "synchronous", "foreign_keys")
            found = [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names]
            assert found == ["wal", 2, 1], "2 is FULL"
    engine.dispose()


def test_a_full_database_is_a_typed_error(tmp_path):
    engine = open_database(tmp_path / "x.sqlite3")
    with engine.begin() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StorageFull), typed_database_errors():
            connection.exec_driver_sql("INSERT INTO tasks VALUES (?, 1)", ("x" * 100_000,))
    engine.dispose()


def test_closing_twice_is_closing_once(tmp_path):
    registry = Registry(tmp_path)
    registry.close()
    with Registry(tmp_path):
        registry.close()
        with pytest.raises(StoreLocked):
            Registry(tmp_path)


def test_threads_add_each_content_once(registry):
    """Eight threads add the same ten contents: ten versions, numbered without a gap."""
    deltas = [make_delta(seed) for seed in range(10)]

    def add_all(_):
        return [registry.add("spam", delta) for delta in deltas]

    with ThreadPoolExecutor(8) as pool:
        results = [result for results in pool.map(add_all, range(8)) for result in results]
    assert sum(created for _, created in results) == 10
    assert registry.task("spam").versions == tuple(range(1, 11))
    assert {record.digest for record, _ in results} == {delta.digest for delta in deltas}


def test_of_threads_that_move_an_alias_one_wins(registry):
    for seed in range(9):
        registry.add("spam", make_delta(seed))
    start = threading.Barrier(8)

    def move(n):
        expected = registry.task("spam").aliases["live"].version
        start.wait()
        try:
            registry.move_alias("spam", "live", n, expected)
        except AliasConflict:
            return None
        finally:
            start.wait()
        return n

    with ThreadPoolExecutor(8) as pool:
        for turn in range(20):
            # The live version itself stays out of the race: moving it to where it is would be a second win.
            live = registry.task("spam").aliases["live"].version
            winners = [n for n in pool.map(move, {*range(1, 10)} - {live}) if n]
            assert len(winners) == 1, turn
            assert registry.task("spam").aliases == {"live": Alias(winners[0], previous=live)}


@dataclass
class ModelTask:
    """What the registry should know of a task."""

    last: int = 0
    versions: dict[int, str] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)

    def at(self, alias):
        return self.aliases[alias].version if alias in self.aliases else None


DELTAS = [make_delta(seed) for seed in range(4)]
TASKS = st.sampled_from(["a", "b"])
ALIASES = st.sampled_from(["live", "next"])
NUMBERS = st.integers(1, 4)


class RegistryAgreesWithItsModel(RuleBasedStateMachine):
    """Random histories, with re-openings, against two dictionaries."""

    @initialize()
    def open(self):
        self.folder = Path(tempfile.mkdtemp())
        self.registry = Registry(self.folder)
        self.model = {}

    def teardown(self):
        self.registry.close()
        shutil.rmtree(self.folder)

    def existing(self, name):
        """The task as long as it has versions; its numbers stay in the model."""
        task = self.model.get(name)
        return task if task and task.versions else None

    @rule()
    def reopen(self):
        self.registry.close()
        self.registry = Registry(self.folder)

    @rule(name=TASKS, delta=st.sampled_from(DELTAS), staged=st.booleans())
    def add(self, name, delta, staged):
        body = self.registry.stage() if staged else None
        if body:
            body.write(dumps(delta))
        record, created = self.registry.add(name, delta, body)
        task = self.model.setdefault(name, ModelTask())
        assert created == (delta.digest not in task.versions.values())
        if created:
            task.last += 1
            task.versions[task.last] = delta.digest
            if len(task.versions) == 1:
                task.aliases["live"] = Alias(task.last)
        assert task.versions[record.version] == record.digest == delta.digest

    @rule(name=TASKS, alias=ALIASES, n=NUMBERS, expected=st.none() | NUMBERS)
    def move(self, name, alias, n, expected):
        task = self.existing(name)
        if task is None:
            error = TaskNotFound
        elif n not in task.versions:
            error = VersionNotFound
        elif task.at(alias) != expected:
            error = AliasConflict
        else:
            self.registry.move_alias(name, alias, n, expected)
            if n != expected:
                task.aliases[alias] = Alias(n, expected)
            return
        with pytest.raises(error):
            self.registry.move_alias(name, alias, n, expected)

    @rule(name=TASKS, alias=ALIASES, expected=NUMBERS)
    def delete_alias(self, name, alias, expected):
        task = self.existing(name)
        if task is None:
            error = TaskNotFound
        elif alias not in task.aliases:
            error = AliasNotFound
        elif task.at(alias) != expected:
            error = AliasConflict
        else:
            self.registry.delete_alias(name, alias, expected)
            del task.aliases[alias]
            return
        with pytest.raises(error):
            self.registry.delete_alias(name, alias, expected)

    @rule(name=TASKS, n=NUMBERS)
    def delete(self, name, n):
        task = self.existing(name)
        if task is None:
            error = TaskNotFound
        elif n not in task.versions:
            error = VersionNotFound
        elif n in map(task.at, task.aliases):
            error = VersionInUse
        else:
            self.registry.delete_version(name, n)
            del task.versions[n]
            return
        with pytest.raises(error):
            self.registry.delete_version(name, n)

    @invariant()
    def agrees(self):
        found = {task.name: (task.versions, task.aliases) for task in self.registry.tasks()}
        existing = {name: task for name, task in self.model.items() if task.versions}
        assert found == {name: (tuple(task.versions), task.aliases) for name, task in existing.items()}
        records = self.registry.versions()
        assert {(record.task, record.version, record.digest) for record in records} == {
            (name, n, digest) for name, task in self.model.items() for n, digest in task.versions.items()
        }
        assert all(loads(self.registry.read(record)).digest == record.digest for record in records)
        blobs = {f"sha256:{path.name}" for path in (self.folder / "blobs").iterdir()}
        assert blobs == {record.digest for record in records}


RegistryAgreesWithItsModel.TestCase.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)
TestRegistryAgreesWithItsModel = RegistryAgreesWithItsModel.TestCase
