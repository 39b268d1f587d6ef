"""Databases of every schema: older ones are upgraded with every row, newer ones refused."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import text

from onebert_store.errors import StoreCorrupt
from onebert_store.registry import schema
from onebert_store.registry.database import HOLDINGS, TABLES
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.records import CLI, Actor, Alias
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store, open_store
from onebert_store.registry.target import alone
from onebert_store.samples import tables as samples_tables
from onebert_store.samples.records import Feedback, Kind, Owner, Sample
from onebert_store.samples.store import open_samples
from stores import WITHOUT, WITHOUT_OF_SAMPLES, feedback_of, go_back
from tiny_delta import make_delta

# Dumped from a store that the last OneBERT without Alembic made: two tasks, a deleted version, a deleted task.
SCHEMA_1 = Path(__file__).with_name("schema_1.sql").read_text()
NEWER = {"orphans", "changes", "cursors", "documents", "feed", "holdings", "keepings", "keys", "replicas"}
NEWER |= {"alembic_version", "identities", "deleted_tasks"}
# Dumped from a file that revision d564fdb9 wrote for a task `tone`: a kept answer, an outcome on it, a review.
SAMPLES_1 = Path(__file__).with_name("samples_1.sql").read_text()
KEY = "b25lYmVydC1vbmViZXJ0LW9uZWJlcnQtb25lYmVydCE="
ROWS = (
    "SELECT * FROM versions ORDER BY task, version",
    "SELECT task, alias, version FROM aliases",
    "SELECT * FROM tasks",
)


@pytest.fixture
def old_store(tmp_path):
    """A folder with the database of schema 1 and the blobs that it names."""
    with Registry.open(tmp_path) as registry:
        registry.add("x", make_delta(1, training={"seed": 1}))
        registry.add("x", make_delta(2))
    for path in tmp_path.glob("registry.sqlite3*"):
        path.unlink()
    with closing(sqlite3.connect(tmp_path / "registry.sqlite3")) as connection:
        connection.executescript(SCHEMA_1)
    return tmp_path


def dump(folder, *queries):
    with closing(sqlite3.connect(folder / "registry.sqlite3")) as connection:
        return [connection.execute(query).fetchall() for query in queries]


def tables(folder):
    return {name for (name,) in dump(folder, "SELECT name FROM sqlite_master WHERE type = 'table'")[0]}


def test_a_store_of_schema_1_is_upgraded_with_every_row(old_store):
    before, of_schema_1 = dump(old_store, *ROWS), tables(old_store)
    with Registry.open(old_store) as registry:
        spam, tone = (registry.task(name) for name in ("spam", "tone"))
        assert (spam.versions, spam.aliases) == (
            (1, 2),
            {"live": Alias(alone(2), (alone(1),)), "canary": Alias(alone(1))},
        )
        assert (tone.versions, tone.aliases) == ((1,), {"live": Alias(alone(1))})
        first = registry.version("spam", 1)
        assert (first.digest, first.size) == (make_delta(1, training={"seed": 1}).digest, 1040)
        assert first.created_at == datetime(2026, 11, 20, 19, 10, 58, 403875, UTC)
        assert first.manifest.training == {"seed": 1}
        assert has_the_tables_of_the_code(registry.database)
        for entry in registry.entries():
            registry.verify(entry)
    assert (dump(old_store, *ROWS), tables(old_store)) == (before, of_schema_1 | NEWER)
    assert dump(old_store, "SELECT * FROM alembic_version", "PRAGMA user_version") == [[("0015",)], [(15,)]]
    with Registry.open(old_store) as registry:
        assert registry.add("spam", make_delta(9))[0].version == 4, "version 3 was deleted before"
        assert registry.add("gone", make_delta(9))[0].version == 2


def has_the_tables_of_the_code(database):
    with database.reading() as connection:
        assert database.schema_mark(connection) == schema.REGISTRY.schema
        assert database.integrity_errors(connection) == []
        return compare_metadata(MigrationContext.configure(connection), TABLES) == []


@pytest.mark.parametrize("older", [*range(1, schema.REGISTRY.schema - 1, 2), schema.REGISTRY.schema - 1])
def test_every_older_schema_is_upgraded_with_every_row(place, older):
    with open_store(place) as store:
        registry = Registry(store)
        for seed in range(3):
            registry.add("spam", make_delta(seed))
        registry.add("tone", make_delta(1))
        registry.move_alias("spam", "live", 2, 1, replace(CLI, message="it is urgent"), failed=["must is 1, bound 0"])
        registry.delete_version("spam", 3)
        before = registry.tasks(), registry.entries()
        assert has_the_tables_of_the_code(store.database)
        go_back(store.database, older)
    with open_store(place) as store:
        registry = Registry(store)
        assert (registry.tasks(), registry.entries()) == before
        moved = [(change.message, change.failed) for change in registry.feed.moves("spam", 1)]
        # Of schemas with forced moves; the checks were not kept.
        assert moved == [("it is urgent", [])] or older < 7
        assert has_the_tables_of_the_code(store.database)
        assert registry.add("spam", make_delta(2))[0].version == 4


def test_what_was_uploaded_by_whom_is_counted_by_the_upgrade(place):
    def counted(connection):
        return sorted(map(tuple, connection.execute(HOLDINGS.select())))

    with open_store(place) as store:
        registry = Registry(store)
        for seed, (task, who) in enumerate([("a", "ann"), ("a", "bob"), ("a", "ann"), ("b", "ann"), ("c", "bob")]):
            registry.add(task, make_delta(seed), by=Actor(who))
        registry.delete_version("a", 3)
        registry.delete_task("c")
        with store.database.reading() as connection:
            before = counted(connection)
        go_back(store.database, 4)
    with open_store(place) as store, store.database.reading() as connection:
        assert counted(connection) == before
    assert [row[:3] for row in before] == [("a", "ann", 1), ("a", "bob", 1), ("b", "ann", 1)]


def test_kept_answers_of_an_older_schema_stay_with_their_tasks(place):
    """They are under the names of then; a new task of the name gets another id."""
    with open_store(place) as store:
        registry = Registry(store)
        registry.add("tone", make_delta(1))
        registry.set_keeping("tone", Keeping(1.0, 30, 10))
        go_back(store.database, 8)
    with open_store(place) as store, open_samples(store.database) as samples:
        registry = Registry(store)
        assert samples.owner("tone") == Owner("tone", "tone")
        registry.delete_task("tone")
        registry.add("tone", make_delta(2))
        assert samples.owner("tone").task not in ("", "tone")


def test_feedback_of_the_first_schema_is_there_and_takes_more(tmp_path):
    with open_store(tmp_path) as store:
        Registry(store).add("tone", make_delta(1))
        Registry(store).set_keeping("tone", Keeping(1.0, 3650, 10))
        go_back(store.database, 8)
    with closing(sqlite3.connect(tmp_path / "samples.sqlite3")) as connection:
        connection.executescript(SAMPLES_1)
    now = datetime.now(UTC)
    # The answer of 2026 is kept for 3,650 days.
    with open_store(tmp_path) as store, open_samples(store.database, [KEY]) as samples:
        assert samples.sweeper.sweep() == []
        outcome = Feedback("tone", "r/1", Kind.OUTCOME, "calm", {1: "angry", 2: "calm"}, now, "key:app")
        samples.record([(samples.owner("tone"), outcome)])
        assert [(row.identifier, row.right) for row in feedback_of(samples, "tone")] == [
            ("r/1", "calm"),
            ("order-1", "calm"),
            ("r/0", "calm"),
        ]
        assert samples.outcomes("tone", 1, [2])[2].wins == 1
        assert [sample.texts for sample in samples.find(["r/0"], "tone".__eq__)] == [("late parcel",)]


@pytest.mark.parametrize(
    ("older", "marked"), [(1, False), *((older, True) for older in range(1, samples_tables.TABLES.schema))]
)
def test_every_older_schema_of_samples_is_upgraded_with_every_row(place, older, marked):
    sample = Sample("tone", "r/0", 1, datetime.now(UTC), "key:app", ("late",), ("angry",), None, 1.0)
    with open_store(place) as store, open_samples(store.database, [KEY]) as samples:
        Registry(store).add("tone", make_delta(1))
        Registry(store).set_keeping("tone", Keeping(1.0, 30, 10))
        samples.keep([(samples.owner("tone").keeping, sample)])
        mark = f"UPDATE schemas SET number = {older}" if marked else "DROP TABLE schemas"
        with samples.database.writing() as connection:
            for number in range(samples_tables.TABLES.schema, older, -1):
                for statement in WITHOUT_OF_SAMPLES[number]:
                    connection.execute(text(statement))
            connection.execute(text(mark))
    with open_store(place) as store, open_samples(store.database, [KEY]) as samples:
        assert samples.find(["r/0"], "tone".__eq__) == [sample]
        with samples.database.reading() as connection:
            context = MigrationContext.configure(connection)
            changes = compare_metadata(context, samples_tables.TABLES.metadata)
            # The registry's tables are in the same database on PostgreSQL.
            assert {change[0] for change in changes} <= {"remove_table", "remove_index"}
            assert connection.scalar(text("SELECT number FROM schemas")) == samples_tables.TABLES.schema


def test_newer_samples_are_refused_in_one_line(place):
    with open_store(place) as store, open_samples(store.database) as samples:
        with samples.database.writing() as connection:
            connection.execute(text("UPDATE schemas SET number = 99"))
        with pytest.raises(StoreCorrupt, match="schema 99 of its samples tables"), open_samples(store.database):
            pass


@pytest.mark.parametrize("name", ["samples", "samples_naming"])
@pytest.mark.parametrize("other", ["DROP TABLE {0}", "DROP TABLE {0}; CREATE TABLE {0} (x)"])
@pytest.mark.parametrize("marked", [True, False], ids=["marked", "from before marks"])
def test_samples_with_tables_of_another_program_are_refused_in_one_line(tmp_path, name, other, marked):
    """Without a mark a missing table is made; one with other columns cannot be upgraded."""
    with open_store(tmp_path) as store:
        with open_samples(store.database):
            pass
        with closing(sqlite3.connect(tmp_path / "samples.sqlite3")) as connection:
            connection.executescript(other.format(name) + ("" if marked else "; DROP TABLE schemas"))
        if not marked and "CREATE" not in other:
            with open_samples(store.database):
                return
        with pytest.raises(StoreCorrupt, match="lacks tables or columns of OneBERT"), open_samples(store.database):
            pass


def test_gates_of_an_older_schema_are_documents(place):
    rules = '{"must": [{"text": "it\'s \\"late\\": 5 %", "label": "angry"}]}'
    gates = {"tone": (rules, None), "spam": ("{}", '[{"text": "ü"}]')}
    with open_store(place) as store:
        registry = Registry(store)
        for task in gates:
            registry.add(task, make_delta(1))
        go_back(store.database, 10)
        with store.database.writing() as connection:
            for task, row in gates.items():
                values = dict(zip(("task", "rules", "rows"), (task, *row), strict=True))
                connection.execute(text("INSERT INTO gates VALUES (:task, :rules, :rows)"), values)
    with open_store(place) as store:
        documents = Registry(store).documents
        assert documents.tasks("gate") == {"tone", "spam"}
        assert json.loads(documents.read("tone", "gate")) == {"rules": json.loads(rules), "rows": None}
        assert json.loads(documents.read("spam", "gate")) == {"rules": {}, "rows": [{"text": "ü"}]}


def test_the_schema_is_that_of_its_latest_part():
    for tables, without in ((schema.REGISTRY, WITHOUT), (samples_tables.TABLES, WITHOUT_OF_SAMPLES)):
        assert {schema.since(part) for part in tables.parts} == {1, *without} == {*range(1, tables.schema + 1)}


def test_a_newer_store_is_refused_and_left(old_store):
    with closing(sqlite3.connect(old_store / "registry.sqlite3")) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = (old_store / "registry.sqlite3").read_bytes()
    for opening in (Registry.open, lambda folder: join_store(folder).__enter__()):
        with pytest.raises(StoreCorrupt, match=r"schema 99 .* registry tables; .* reads schema 15 and older"):
            opening(old_store)
    assert (old_store / "registry.sqlite3").read_bytes()[100:] == before[100:]


def test_an_upgrade_that_fails_changes_nothing(old_store):
    """A table of the new schema is there already, as after an upgrade by hand."""
    with closing(sqlite3.connect(old_store / "registry.sqlite3")) as connection:
        connection.execute("CREATE TABLE orphans (mine)")
    before = dump(old_store, *ROWS), tables(old_store)
    with pytest.raises(StoreCorrupt, match="registry tables cannot be upgraded to schema 15"):
        Registry.open(old_store)
    assert (dump(old_store, *ROWS), tables(old_store)) == before
    assert dump(old_store, "PRAGMA user_version") == [[(1,)]]


def test_a_store_in_use_is_not_upgraded_beside_its_owner(old_store):
    with open_store(old_store) as store:
        go_back(store.database, 1)
        with pytest.raises(StoreCorrupt, match="stop the server"), join_store(old_store):
            pass
    # Nor by whoever looks at it at rest, unless they say so.
    with pytest.raises(StoreCorrupt, match="start one of this version, which upgrades it"), join_store(old_store):
        pass
    with join_store(old_store, may_upgrade=True) as store, store.database.reading() as connection:
        assert store.database.schema_mark(connection) == schema.REGISTRY.schema
