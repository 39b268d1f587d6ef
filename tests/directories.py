"""What tests change in a directory, as the follower would: one version at a time, with what points at it."""

from onebert_server.engine.banks.uses import BankBytes, Uses
from onebert_server.engine.host import Slot
from onebert_store.errors import TaskNotFound
from onebert_store.registry.records import Alias
from onebert_store.registry.target import alone


class SlotHost(Uses):
    """A host, and its bank, with slots and without rows; `freed` has the numbers of those that are free again."""

    def __init__(self):
        self.freed = []
        super().__init__(BankBytes(0), self.freed.append)
        self.bank, self.release = self, self.end

    def slot(self, number):
        self.begin(number)
        return Slot(self, number)


def publish(directory, version, **aliases):
    """Shows a version, and these of its task's aliases."""
    task = version.entry.task
    at = {alias: Alias(alone(number)) for alias, number in aliases.items()}
    directory.show(task, [version], _aliases(directory, task) | at, [version.entry.version])


def retire(directory, task, number):
    """Forgets a version with what points at it."""
    directory.show(task, (), None, [number])


def _aliases(directory, task):
    try:
        return directory.task(task).aliases
    except TaskNotFound:
        return {}
