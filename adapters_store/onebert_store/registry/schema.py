"""Brings a database to the schema of this code, by the revisions in `migrations/`."""

import logging
from pathlib import Path

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from onebert_store.errors import StoreCorrupt
from onebert_store.registry.database import reading, writing
from onebert_store.registry.dialects import schema_mark, set_schema_mark, typed_database_errors

SCHEMA = 2
"""The newest revision in `migrations/versions`; revisions are numbered, and SQLite's mark is the same number."""

NO_DATABASE = (
    "the store has blobs but no database; put the registry.sqlite3 that goes with them back, "
    "or make versions of the blobs with `onebert store recover`"
)


def ensure_schema(engine: Engine, may_create: bool, may_migrate: bool = True) -> None:
    """Makes the tables of an empty database, or upgrades an older one in one transaction; keeps every row.

    Args:
        engine: the database.
        may_create: whether an empty database is a new store.
        may_migrate: whether an older schema may be changed: not while another process works with it.

    Raises:
        StoreCorrupt: the database is empty and may not be, is newer than this code, or is older and may not or
            cannot be upgraded; it is as it was.
    """
    with reading(engine) as connection:
        if schema_mark(connection) == SCHEMA:
            return
    with writing(engine) as connection:
        found = schema_mark(connection)
        if found > SCHEMA:
            raise StoreCorrupt(f"the store has schema {found}; this OneBERT reads schema {SCHEMA} and older")
        if not found and not may_create:
            raise StoreCorrupt(NO_DATABASE)
        if found and not may_migrate:
            raise StoreCorrupt(
                f"the store has schema {found}, this OneBERT schema {SCHEMA}; stop the server that uses it first"
            )
        try:
            with typed_database_errors():
                migrate(connection, SCHEMA)
        except OperationalError as error:
            raise StoreCorrupt(f"the store's database cannot be upgraded to schema {SCHEMA}") from error


def migrate(connection: Connection, schema: int) -> None:
    """Upgrades or downgrades to a schema, inside the connection's transaction: all of it happens or nothing."""
    # Alembic reports its own import and every step as information, which would bury a server's own start-up line.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Imported here: a store that is up to date, nearly every one, needs none of it.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    found = schema_mark(connection)
    if found == 1:
        # Schema 1 was made before there were revisions: its number stands in the mark alone.
        command.stamp(config, _revision(1))
    (command.upgrade if schema > found else command.downgrade)(config, _revision(schema))
    set_schema_mark(connection, schema)


def _revision(schema: int) -> str:
    return f"{schema:04d}"
