"""What tests look up in a store, and how they use a registry from many threads at once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from sqlalchemy import event, select, text
from sqlalchemy.engine import Engine

from onebert_store.registry.store import join_store
from onebert_store.samples.reading import feedback_of as read_feedback
from onebert_store.samples.tables import FEEDBACK
from onebert_store.upkeep import gc


def name_of(made):
    """The name of the file, or of the object, of a delta or of a version."""
    return made.digest.removeprefix("sha256:")


def digests(store):
    return {blob.digest for blob in store.blobs.blobs()}


def orphans(place):
    with join_store(place) as store:
        return {orphan.blob.digest for orphan in gc.find_orphans(store)}


def all_at_once(number, work, *refusals):
    """Runs `work(n)` of so many threads at the same time; their results in order, None for those who were refused."""
    start = threading.Barrier(number)

    def begin(n):
        start.wait()
        try:
            return work(n)
        except refusals:
            return None

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(begin, range(number)))


def feedback_of(samples, task):
    """All feedback of a task, the latest first, with and without texts."""
    query = select(FEEDBACK).where(FEEDBACK.c.task == samples.owner(task).task)
    with samples.database.reading() as connection:
        rows = connection.execute(query.order_by(FEEDBACK.c.at.desc(), FEEDBACK.c.identifier)).all()
    return [read_feedback(row, task, samples._cipher.decrypt) for row in rows]


@contextmanager
def statements():
    """The statements of all databases while the block runs."""
    seen = []

    def note(_, __, statement, *___):
        seen.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", note)


# What each schema brought, taken away again.
WITHOUT = {
    15: (
        "ALTER TABLE changes ADD COLUMN forced TEXT",
        "UPDATE changes SET forced = message, message = NULL WHERE failed IS NOT NULL",
        "ALTER TABLE changes DROP COLUMN failed",
    ),
    14: ("ALTER TABLE changes DROP COLUMN message",),
    13: (
        *("ALTER TABLE aliases ADD COLUMN previous INTEGER", "ALTER TABLE aliases ADD COLUMN previous_target TEXT"),
        # One earlier version alone, as `[1]`.
        "UPDATE aliases SET previous = CAST(REPLACE(REPLACE(earlier, '[', ''), ']', '') AS INTEGER)",
        *("ALTER TABLE aliases DROP COLUMN earlier", "ALTER TABLE changes DROP COLUMN before_target"),
        "UPDATE changes SET action = 'promote' WHERE action = 'roll-back'",
    ),
    12: ("ALTER TABLE aliases DROP COLUMN payer",),
    11: (
        "DROP TABLE documents",
        "CREATE TABLE gates (task VARCHAR NOT NULL, rules TEXT NOT NULL, rows TEXT, PRIMARY KEY (task))",
    ),
    10: ("DROP TABLE deleted_tasks", "ALTER TABLE identities DROP COLUMN unkept_at"),
    9: ("DROP TABLE identities", "ALTER TABLE keepings DROP COLUMN id"),
    8: ("DROP TABLE keepings", "DROP TABLE cursors"),
    7: (
        *("ALTER TABLE aliases DROP COLUMN target", "ALTER TABLE aliases DROP COLUMN previous_target"),
        *("ALTER TABLE changes DROP COLUMN target", "ALTER TABLE changes DROP COLUMN forced", "DROP TABLE gates"),
    ),
    6: ("DROP INDEX ix_changes_name", "ALTER TABLE changes DROP COLUMN name"),
    5: ("DROP TABLE holdings",),
    4: (
        *("DROP INDEX ix_changes_task", "DROP INDEX ix_changes_principal"),
        *("ALTER TABLE changes DROP COLUMN key", "DROP TABLE keys"),
    ),
    3: ("DROP TABLE replicas", "DROP TABLE feed", "DROP TABLE changes"),
    2: ("DROP TABLE orphans",),
}


# Likewise for the tables of the samples.
WITHOUT_OF_SAMPLES = {
    7: (
        "DROP INDEX ix_feedback_mac",
        *("ALTER TABLE samples DROP COLUMN mac", "ALTER TABLE feedback DROP COLUMN mac"),
    ),
    6: ("ALTER TABLE feedback DROP COLUMN new_labels",),
    5: ("DROP TABLE samples_naming",),
    4: ("ALTER TABLE feedback DROP COLUMN reviewer",),
    3: ("DROP TABLE unknown_samples",),
    2: ("ALTER TABLE feedback DROP COLUMN counted",),
}


def go_back(database, schema):
    """Makes a database one of an older schema, as an older OneBERT has left it."""
    with database.writing() as connection:
        for number in range(database.schema_mark(connection), schema, -1):
            for statement in WITHOUT[number]:
                connection.execute(text(statement))
        database.set_schema_mark(connection, schema)
