"""Documents that extensions keep of tasks and versions: JSON under a name, which goes with the task or the version."""

from collections.abc import Callable

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

    def versions(self, name: str) -> list[tuple[str, int]]:
        """Returns task and number of each version that has a document of this name."""
        names = select(DOCUMENTS.c.task, DOCUMENTS.c.name).where(DOCUMENTS.c.name.startswith(f"{name}@"))
        with self._database.reading() as connection:
            return [(task, int(of_version.rpartition("@")[2])) for task, of_version in connection.execute(names)]

    def read_version(self, task: str, version: int, name: str) -> str | None:
        """Returns a document of a version, if there is one."""
        return self.read(task, statements.document_of(name, version))

    def update_version(
        self, task: str, version: int, name: str, change: Callable[[str | None], str | None]
    ) -> str | None:
        """Sets a version's document to what `change` makes of it, None to delete it; returns what it is now.

        Concurrent updates of a task run one at a time. The feed has none. Raises TaskNotFound or VersionNotFound.
        """
        with self._database.writing() as connection:
            return statements.update_document(connection, task, version, name, change)

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
