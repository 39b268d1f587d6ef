"""What tests change in a directory, as the follower would: one version at a time, with what points at it."""

from onebert_store.errors import TaskNotFound
from onebert_store.registry.records import Alias
from onebert_store.registry.target import alone


def publish(directory, version, **aliases):
    """Shows a version, and these of its task's aliases."""
    task = version.entry.task
    at = {alias: Alias(alone(number)) for alias, number in aliases.items()}
    directory.show(task, [version], _aliases(directory, task) | at, [version.entry.version])


def retire(directory, task, number):
    """Forgets a version with what points at it."""
    directory.show(task, (), None, [number])


def pin(directory, refs, principal):
    """Pins what each reference means, one version each."""
    return [version for [version] in directory.pin(refs, principal)]


def unpin(directory, versions):
    directory.unpin([(version,) for version in versions])


def _aliases(directory, task):
    try:
        return directory.task(task).aliases
    except TaskNotFound:
        return {}
