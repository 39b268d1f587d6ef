"""Creates a database's tables or upgrades them to this code's schema, with the revisions in `migrations/`."""

import logging
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError, ProgrammingError

from onebert_store.errors import StoreCorrupt
from onebert_store.registry.database import reading, writing
from onebert_store.registry.dialects.protocol import NO_DATABASE, Database

# The newest revision in `migrations/versions`; SQLite's mark is the same number.
SCHEMA = 6


def ensure_schema(
    database: Database, may_create: Callable[[], bool], may_migrate: Callable[[], bool] = lambda: True
) -> None:
    """Creates the tables of an empty database, or upgrades an older one in one transaction; keeps every row.

    Several processes may call this at once; one of them changes the schema. `may_create` is called only if the database
    is empty, `may_migrate` only if its schema is older: False while another process may use the database. Raises
    StoreCorrupt, and changes nothing, if it may not or cannot, or if the database is newer than this code.
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
    """Upgrades or downgrades to a schema inside the connection's transaction."""
    # Alembic logs its import and every step at INFO, which would bury a server's start-up line.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # Imported here: nearly every store is up to date and needs no Alembic.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    found = database.schema_mark(connection)
    if found == 1:
        # Schema 1 is older than the revisions: only the mark has its number.
        command.stamp(config, _revision(1))
    (command.upgrade if schema > found else command.downgrade)(config, _revision(schema))
    database.set_schema_mark(connection, schema)


def _revision(schema: int) -> str:
    return f"{schema:04d}"
