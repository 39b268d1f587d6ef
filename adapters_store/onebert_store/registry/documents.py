"""Documents that extensions keep of tasks: JSON under the extension's name, deleted with the task."""

from sqlalchemy import select

from onebert_store.registry import statements
from onebert_store.registry.database import DOCUMENTS
from onebert_store.registry.dialects.database import Database
from onebert_store.registry.feed import Feed
from onebert_store.registry.names import check_name
from onebert_store.registry.queries import require_task
from onebert_store.registry.records import CLI, Actor


class Documents:
    """The documents of one store; thread-safe. Every method raises StorageUnavailable if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._feed = Feed(database)

    def read(self, task: str, name: str) -> str | None:
        """Returns a document of a task, if there is one."""
        content = select(DOCUMENTS.c.content).where(DOCUMENTS.c.task == task, DOCUMENTS.c.name == name)
        with self._database.reading() as connection:
            return connection.scalar(content)

    def tasks(self, name: str) -> set[str]:
        """Returns the names of the tasks that have a document of this name."""
        with self._database.reading() as connection:
            return set(connection.scalars(select(DOCUMENTS.c.task).where(DOCUMENTS.c.name == name)))

    def write(self, task: str, name: str, content: str, action: str, by: Actor = CLI) -> int:
        """Sets a document; returns the number of the change, which is an `action`. Raises TaskNotFound."""
        check_name(task)
        with self._database.writing(by.until) as connection:
            statements.set_document(connection, task, name, content)
            return self._feed.write(connection, by, action, task)

    def delete(self, task: str, name: str, action: str, by: Actor = CLI) -> int | None:
        """Deletes a document; returns the number of the change, None if there was none. Raises TaskNotFound."""
        check_name(task)
        with self._database.writing(by.until) as connection:
            if statements.delete_document(connection, task, name):
                return self._feed.write(connection, by, action, task)
            require_task(connection, task)
        return None
