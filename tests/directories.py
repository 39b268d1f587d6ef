"""What tests change in a directory, as the follower would: one version at a time, with what points at it."""

from onebert_store.errors import TaskNotFound


def publish(directory, version, aliases):
    """Shows a version, and these of its task's aliases."""
    task = version.entry.task
    directory.show(task, [version], (), _aliases(directory, task) | aliases)


def retire(directory, task, number):
    """Forgets a version with what points at it."""
    left = {alias: at for alias, at in _aliases(directory, task).items() if at.version != number}
    directory.show(task, (), [number], left)


def _aliases(directory, task):
    try:
        return directory.task(task).aliases
    except TaskNotFound:
        return {}
