"""Looks up in the registry which rows belong to which task, and whether its answers are still kept."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection, select

from onebert_store.registry.database import DELETED_TASKS, IDENTITIES, KEEPINGS
from onebert_store.registry.dialects.database import Database
from onebert_store.registry.names import no_such_task
from onebert_store.samples.records import Owner, Retention

_SAME = IDENTITIES.c.task == KEEPINGS.c.task


class Owners:
    """Reads the registry's ids; a new task with the name of a deleted one has another id.

    `keeping` and `lock` run inside the caller's transaction on `database`, its own: no deletion comes between the query
    and the commit. In one database they lock the registry's rows. Beside an SQLite registry, a deletion changes that
    first and waits for the caller's transaction then.
    """

    def __init__(self, registry: Database, database: Database) -> None:
        self._registry = registry
        self._is_own = database is registry

    def owner(self, task: str) -> Owner:
        """Returns where the rows of a task are now; if there is no such task, under an empty id, which no row has."""
        query = select(IDENTITIES.c.id, KEEPINGS.c.id).outerjoin_from(IDENTITIES, KEEPINGS, _SAME)
        with self._registry.reading() as connection:
            row = connection.execute(query.where(IDENTITIES.c.task == task)).first()
        return Owner("", None) if row is None else Owner(*row)

    def by_id(self, tasks: Collection[str]) -> dict[str, str]:
        """Returns the names of these tasks that are there, by their ids."""
        query = select(IDENTITIES.c.task, IDENTITIES.c.id).where(IDENTITIES.c.task.in_(tasks))
        with self._registry.reading() as connection:
            return {row.id: row.task for row in connection.execute(query)}

    def names(self, ids: Collection[str], sees: Callable[[str], bool]) -> dict[str, str]:
        """Returns the names of tasks that are there and that `sees` allows, by their ids."""
        query = select(IDENTITIES.c.id, IDENTITIES.c.task).where(IDENTITIES.c.id.in_(ids))
        with self._registry.reading() as connection:
            return {id: task for id, task in connection.execute(query) if sees(task)}

    def retention(self, id: str) -> Retention | None:
        """Returns the registry's entry for the id of a task; None if it does not know the id."""
        columns = IDENTITIES.c.task, KEEPINGS.c.days, KEEPINGS.c.most, IDENTITIES.c.unkept_at
        entry = select(*columns).outerjoin_from(IDENTITIES, KEEPINGS, _SAME).where(IDENTITIES.c.id == id)
        deleted = select(DELETED_TASKS.c.id).where(DELETED_TASKS.c.id == id)
        with self._registry.reading() as connection:
            if row := connection.execute(entry).first():
                return Retention(*row)
            return Retention() if connection.execute(deleted).first() else None

    def keeping(self, connection: Connection, ids: Collection[str]) -> dict[str, str]:
        """Returns the ids of tasks by the ids of their keepings, without the keepings that have ended."""
        columns = KEEPINGS.c.id.label("keeping"), IDENTITIES.c.id.label("task")
        query = select(*columns).join_from(KEEPINGS, IDENTITIES, _SAME)
        query = query.where(KEEPINGS.c.id.in_(ids)).order_by(KEEPINGS.c.id)
        with self._registry_connection(connection) as registry:
            rows = registry.execute(query.with_for_update(read=True, key_share=True))
            return {row.keeping: row.task for row in rows}

    def lock(self, connection: Connection, tasks: Mapping[str, str]) -> None:
        """Raises TaskNotFound if one of these tasks, names by ids, is gone; call it after `keeping`."""
        query = select(IDENTITIES.c.id).where(IDENTITIES.c.id.in_(tasks)).order_by(IDENTITIES.c.id)
        with self._registry_connection(connection) as registry:
            existing = {*registry.scalars(query.with_for_update(read=True, key_share=True))}
        for id, name in tasks.items():
            if id not in existing:
                raise no_such_task(name)

    @contextmanager
    def _registry_connection(self, connection: Connection) -> Iterator[Connection]:
        if self._is_own:
            yield connection
            return
        with self._registry.reading() as registry:
            yield registry
