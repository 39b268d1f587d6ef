"""Creates a database's tables, or adds to an older database what this code's schema has more."""

from collections.abc import Callable

from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.schema import CreateColumn

from onebert_store.errors import StoreCorrupt
from onebert_store.registry.database import FEED, HOLDINGS, IDENTITIES, TABLES
from onebert_store.registry.dialects.database import NO_DATABASE, Database

# The number of this code's schema: the highest `since` of a table or a column.
SCHEMA = 10

# Counts from the audit trail, for quotas.
_HOLDINGS = """
    INSERT INTO holdings (task, principal, versions, bytes)
    SELECT versions.task, changes.principal, COUNT(*), SUM(versions.size)
    FROM versions JOIN changes ON changes.task = versions.task AND changes.version = versions.version
    WHERE changes.action = 'upload'
    GROUP BY versions.task, changes.principal
"""
# Samples and feedback of these tasks are under their names.
_IDENTITIES = (
    "INSERT INTO identities (task, id) SELECT DISTINCT task, task FROM versions",
    "UPDATE keepings SET id = task",
)


def ensure_schema(
    database: Database, may_create: Callable[[], bool], may_migrate: Callable[[], bool] = lambda: True
) -> None:
    """Creates the tables of an empty database, or upgrades an older one in one transaction; keeps every row.

    Several processes may call this at once; one of them changes the schema. `may_create` is called only if the database
    is empty, `may_migrate` only if its schema is older: False while another process may use the database. Raises
    StoreCorrupt, and changes nothing, if it may not or cannot, or if the database is newer than this code.
    """
    with database.reading() as connection:
        if database.schema_mark(connection) == SCHEMA:
            return
    with database.writing() as connection, database.migrating(connection):
        found = database.schema_mark(connection)
        if found == SCHEMA:
            return
        if found > SCHEMA:
            raise StoreCorrupt(f"the store has schema {found}; this OneBERT reads schema {SCHEMA} and older")
        if not found and not may_create():
            raise StoreCorrupt(NO_DATABASE)
        if found and not may_migrate():
            raise StoreCorrupt(
                f"the store has schema {found}, this OneBERT schema {SCHEMA}; stop the server that uses it, "
                "and start one of this version"
            )
        try:
            with database.typed_errors():
                _upgrade(connection, found)
                database.set_schema_mark(connection, SCHEMA)
        except (OperationalError, ProgrammingError) as error:
            raise StoreCorrupt(f"the store's database cannot be upgraded to schema {SCHEMA}") from error


def _upgrade(connection: Connection, found: int) -> None:
    """Makes missing tables as they are now; adds later columns and indexes to the tables of the schema `found`.

    0 is an empty database. Fails if a table of a later schema is there already.
    """
    missing = [table for table in TABLES.sorted_tables if table.info["since"] > found]
    TABLES.create_all(connection, missing, checkfirst=False)
    for table in TABLES.sorted_tables:
        for column in table.columns if table not in missing else ():
            if column.info.get("since", 0) > found:
                own = CreateColumn(column).compile(connection)
                connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {own}"))
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    if FEED in missing:
        connection.execute(insert(FEED).values(last=0))
    if HOLDINGS in missing:
        connection.execute(text(_HOLDINGS))
    if IDENTITIES in missing:
        for statement in _IDENTITIES:
            connection.execute(text(statement))
