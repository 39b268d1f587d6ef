"""The gates of tasks, one row each, as JSON that only the server reads."""

from sqlalchemy import select

from onebert_store.errors import GateNotFound
from onebert_store.registry import statements
from onebert_store.registry.database import GATES
from onebert_store.registry.dialects.database import Database
from onebert_store.registry.feed import Feed
from onebert_store.registry.names import check_name
from onebert_store.registry.queries import require_task
from onebert_store.registry.records import CLI, Action, Actor, GateRecord


class Gates:
    """The gates of one store; thread-safe. Every method raises StorageUnavailable if the database fails.

    Methods that return an int return the number of the change.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._feed = Feed(database)

    def of(self, task: str) -> GateRecord | None:
        """Returns the gate of a task, if it has one."""
        with self._database.reading() as connection:
            row = connection.execute(select(GATES.c.rules, GATES.c.rows).where(GATES.c.task == task)).first()
        return GateRecord(*row) if row else None

    def tasks(self) -> set[str]:
        """Returns the names of the tasks that have a gate."""
        with self._database.reading() as connection:
            return set(connection.scalars(select(GATES.c.task)))

    def set(self, task: str, gate: GateRecord, by: Actor = CLI) -> int:
        """Sets the gate of a task in place of the one before; raises TaskNotFound."""
        check_name(task)
        with self._database.writing(by.until) as connection:
            statements.set_gate(connection, task, gate)
            return self._feed.write(connection, by, Action.SET_GATE, task)

    def delete(self, task: str, by: Actor = CLI) -> int:
        """Deletes the gate of a task; raises GateNotFound if it has none, or TaskNotFound."""
        check_name(task)
        with self._database.writing(by.until) as connection:
            if not statements.delete_gate(connection, task):
                require_task(connection, task)
                raise no_gate(task)
            return self._feed.write(connection, by, Action.DELETE_GATE, task)


def no_gate(task: str) -> GateNotFound:
    """Makes the error for a task without a gate."""
    return GateNotFound(f"{task} has no gate")
