"""Creates tables in a database, or adds what an older schema lacks."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Column, Connection, Integer, MetaData, Table, inspect, select, text
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.schema import CreateColumn

from onebert_store.errors import StoreCorrupt
from onebert_store.registry.database import NAME, TABLES, upsert
from onebert_store.registry.dialects.database import NO_DATABASE, Database

logger = logging.getLogger("onebert.store")

# The schemas of the tables in a database that are not the registry's, which has its mark elsewhere.
_SCHEMAS = Table(
    "schemas", MetaData(), Column("name", NAME, primary_key=True), Column("number", Integer, nullable=False)
)


@dataclass(frozen=True)
class Tables:
    """Tables that one part of OneBERT keeps in a database.

    Every table, and every column that came later than its table, has in `info["since"]` the schema that brought it.

    Attributes:
        name: the name of the tables' schema in the database.
        steps: SQL to run after the additions of a schema, by its number; `upgrades` only beside older tables.
    """

    name: str
    metadata: MetaData
    steps: Mapping[int, Sequence[str]] = field(default_factory=dict)
    upgrades: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @property
    def schema(self) -> int:
        """The number of this code's schema."""
        return max(map(since, self.parts))

    @property
    def parts(self) -> list[Table | Column[object]]:
        """The tables, and the columns that came later than their table."""
        tables = self.metadata.sorted_tables
        return [*tables, *(column for table in tables for column in table.columns if "since" in column.info)]


def since(part: Table | Column[object]) -> int:
    """Returns the number of the schema that brought a table or a column."""
    number: int = part.info["since"]
    return number


REGISTRY = Tables(
    "registry",
    TABLES,
    {3: ("INSERT INTO feed (last) VALUES (0)",)},
    {
        # Counts from the audit trail, for quotas.
        5: (
            """
            INSERT INTO holdings (task, principal, versions, bytes)
            SELECT versions.task, changes.principal, COUNT(*), SUM(versions.size)
            FROM versions JOIN changes ON changes.task = versions.task AND changes.version = versions.version
            WHERE changes.action = 'upload'
            GROUP BY versions.task, changes.principal
            """,
        ),
        # Schemas 7 to 12 have the last meaning of an alias here.
        7: (
            "ALTER TABLE aliases ADD COLUMN previous_target TEXT",
            # Schemas 7 to 14 have the reason of a forced move here.
            "ALTER TABLE changes ADD COLUMN forced TEXT",
        ),
        # Samples and feedback of these tasks are under their names.
        9: (
            "INSERT INTO identities (task, id) SELECT DISTINCT task, task FROM versions",
            "UPDATE keepings SET id = task",
        ),
        # Gates have a table of their own in schemas 7 to 10.
        11: (
            "CREATE TABLE IF NOT EXISTS gates (task VARCHAR, rules TEXT, rows TEXT)",
            """
            INSERT INTO documents (task, name, content)
            SELECT task, 'gate', '{"rules": ' || rules || ', "rows": ' || COALESCE(rows, 'null') || '}' FROM gates
            """,
            "DROP TABLE gates",
        ),
        # A new shadow replaced the last meaning, too: the trail knows the version before, unless a rename hides it.
        13: (
            """
            UPDATE changes SET before_target = (
                SELECT past.target FROM changes past
                WHERE past.task = changes.task AND past.alias = changes.alias AND past.seq < changes.seq
                ORDER BY past.seq DESC LIMIT 1
            )
            WHERE action IN ('promote', 'delete-alias')
            """,
            # A rollback was a move to an older version.
            "UPDATE changes SET action = 'roll-back' WHERE action = 'promote' AND version < before",
            """
            UPDATE aliases SET earlier = COALESCE(
                (
                    SELECT '[' || COALESCE(move.before_target, CAST(move.before AS TEXT)) || ']' FROM changes move
                    WHERE move.task = aliases.task AND move.alias = aliases.alias
                    AND move.version = aliases.version AND move.before < aliases.version
                    ORDER BY move.seq DESC LIMIT 1
                ),
                CASE WHEN previous < version
                THEN '[' || COALESCE(previous_target, CAST(previous AS TEXT)) || ']' END
            )
            """,
            "ALTER TABLE aliases DROP COLUMN previous",
            "ALTER TABLE aliases DROP COLUMN previous_target",
        ),
        # Nobody kept which checks had failed.
        15: (
            "UPDATE changes SET message = forced, failed = '[]' WHERE forced IS NOT NULL",
            "ALTER TABLE changes DROP COLUMN forced",
        ),
    },
)


def ensure_schema(
    database: Database,
    tables: Tables,
    may_create: Callable[[], bool] = lambda: True,
    may_migrate: Callable[[], bool] = lambda: True,
) -> None:
    """Creates the tables, or upgrades older ones in one transaction; keeps every row.

    Several processes may call this at once; one of them changes the schema. `may_create` is called only if the tables
    are missing, `may_migrate` only if their schema is older: False while another process may use the database. Raises
    StoreCorrupt, and changes nothing, if it may not or cannot, or if the tables are newer than this code.
    """
    with database.reading() as connection:
        is_current = _mark(database, connection, tables) == tables.schema
    if not is_current:
        _migrate(database, tables, may_create, may_migrate)
    # Another program's tables of these names would fail every request.
    with database.reading() as connection:
        for table in tables.metadata.sorted_tables:
            connection.execute(select(table).limit(0))


def has_tables(database: Database, tables: Tables) -> bool:
    """Returns whether a database has such tables, of any schema."""
    with database.reading() as connection:
        return _mark(database, connection, tables) > 0


def _migrate(
    database: Database, tables: Tables, may_create: Callable[[], bool], may_migrate: Callable[[], bool]
) -> None:
    with database.writing() as connection, database.migrating(connection):
        mark = _mark(database, connection, tables)
        if mark == tables.schema:
            return
        if mark > tables.schema:
            raise StoreCorrupt(
                f"the store has schema {mark} of its {tables.name} tables; "
                f"this OneBERT reads schema {tables.schema} and older"
            )
        if not mark and not may_create():
            raise StoreCorrupt(NO_DATABASE)
        if mark and not may_migrate():
            raise StoreCorrupt(
                f"the store has schema {mark} of its {tables.name} tables, this OneBERT schema {tables.schema}; "
                "stop the server that uses it, and start one of this version, which upgrades it"
            )
        try:
            with database.typed_errors():
                _upgrade(connection, tables, mark)
                _set_mark(database, connection, tables)
            if mark:
                logger.info("the store's %s tables had schema %d, and have %d now", tables.name, mark, tables.schema)
        except (OperationalError, ProgrammingError) as error:
            raise StoreCorrupt(
                f"the store's {tables.name} tables cannot be upgraded to schema {tables.schema}"
            ) from error


def _upgrade(connection: Connection, tables: Tables, mark: int) -> None:
    """Adds missing tables, columns and indexes and runs their steps; fails if a table later than `mark` exists."""
    if mark or tables is REGISTRY:
        missing = [part for part in tables.parts if since(part) > mark]
    else:
        missing = _missing(connection, tables)
    new = [part for part in missing if isinstance(part, Table)]
    tables.metadata.create_all(connection, new, checkfirst=False)
    for column in missing:
        if isinstance(column, Column) and column.table not in new:
            definition = CreateColumn(column).compile(connection)
            connection.execute(text(f"ALTER TABLE {column.table.name} ADD COLUMN {definition}"))
    for table in tables.metadata.sorted_tables:
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    for number in sorted({since(part) for part in missing}):
        upgrades = tables.upgrades.get(number, ()) if len(new) < len(tables.metadata.tables) else ()
        for statement in (*tables.steps.get(number, ()), *upgrades):
            connection.execute(text(statement))


def _missing(connection: Connection, tables: Tables) -> list[Table | Column[object]]:
    """Lists what is not there of tables without a mark: all, or some of tables from before there were marks."""
    inspector = inspect(connection)
    present = {
        table.name: {column["name"] for column in inspector.get_columns(table.name)}
        for table in tables.metadata.sorted_tables
        if inspector.has_table(table.name)
    }
    return [
        part
        for part in tables.parts
        if (part.name not in present if isinstance(part, Table) else part.name not in present.get(part.table.name, ()))
    ]


def _mark(database: Database, connection: Connection, tables: Tables) -> int:
    """Reads the number of the schema in the database; 0 without a mark."""
    if tables is REGISTRY:
        return database.schema_mark(connection)
    # Not a query that fails: it would end the transaction on PostgreSQL.
    if not inspect(connection).has_table(_SCHEMAS.name):
        return 0
    return connection.scalar(select(_SCHEMAS.c.number).where(_SCHEMAS.c.name == tables.name)) or 0


def _set_mark(database: Database, connection: Connection, tables: Tables) -> None:
    if tables is REGISTRY:
        database.set_schema_mark(connection, tables.schema)
        return
    _SCHEMAS.create(connection, checkfirst=True)
    row = upsert(connection, _SCHEMAS).values(name=tables.name, number=tables.schema)
    connection.execute(row.on_conflict_do_update(index_elements=["name"], set_={"number": tables.schema}))
