"""Brings a database to the schema of this code, by the revisions in `migrations/`."""

import logging
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, ProgrammingError

from onebert_store.errors import StoreCorrupt
from onebert_store.registry.database import reading, writing
from onebert_store.registry.dialects.protocol import NO_DATABASE, Database

SCHEMA = 6
"""The newest revision in `migrations/versions`; revisions are numbered, and SQLite's mark is the same number."""


def ensure_schema(
    database: Database, may_create: Callable[[], bool], may_migrate: Callable[[], bool] = lambda: True
) -> None:
    """Makes the tables of an empty database, or upgrades an older one in one transaction; keeps every row.

    Args:
        database: may be opened by several processes at once, of which one changes it.
        may_create: whether an empty database is a new store; asked only where the database is empty.
        may_migrate: whether an older schema may be changed: not while another process works with it; asked only where
            the schema is older.

    Raises:
        StoreCorrupt: the database is empty and may not be, is newer than this code, or is older and may not or
            cannot be upgraded; it is as it was.
    """
    with reading(database) as connection:
        if database.schema_mark(connection) == SCHEMA:
            return
    with writing(database) as connection, database.migrating(connection):
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
                migrate(database, connection, SCHEMA)
        except (OperationalError, ProgrammingError) as error:
            raise StoreCorrupt(f"the store's database cannot be upgraded to schema {SCHEMA}") from error


def migrate(database: Database, connection: Connection, schema: int) -> None:
    """Upgrades or downgrades to a schema, inside the connection's transaction: all of it happens or nothing."""
    # Alembic reports its own import and every step as information, which would bury a server's own start-up line.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Imported here: a store that is up to date, nearly every one, needs none of it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    found = database.schema_mark(connection)
    if found == 1:
        # Schema 1 was made before there were revisions: its number stands in the mark alone.
        command.stamp(config, _revision(1))
    (command.upgrade if schema > found else command.downgrade)(config, _revision(schema))
    database.set_schema_mark(connection, schema)


def _revision(schema: int) -> str:
    return f"{schema:04d}"
