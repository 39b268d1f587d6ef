"""Finds the tasks to score: delta files, and versions in a store."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from onebert_store.errors import AliasNotFound, InvalidInput
from onebert_store.file.delta import Delta
from onebert_store.file.format import load, loads
from onebert_store.registry.names import check_name, parse_ref
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import StoreAddress, join_store

FILE = ".safetensors"


@dataclass(frozen=True, eq=False)
class ScoredTask:
    """A task to score with; `name` is the prefix of its columns, `version` is None for a file."""

    name: str
    version: int | None
    delta: Delta


def find_tasks(wanted: Sequence[str], store: StoreAddress) -> list[ScoredTask]:
    """Loads every named task: a file, or `name`, `name@3` or `name@alias` in the store, which a server may own.

    Raises:
        InvalidInput: a name is invalid, or two tasks share one.
        InvalidDelta, TooLarge: a file is not a delta.
        TaskNotFound, VersionNotFound, AliasNotFound: the store has no such version.
        StoreCorrupt, StorageUnavailable: the store cannot be read.
    """
    with ExitStack() as opened:
        registry: Registry | None = None
        found = []
        for one in wanted:
            if Path(one).is_file() or one.endswith(FILE):
                found.append(_filed(Path(one)))
            else:
                registry = registry or Registry(opened.enter_context(join_store(store)))
                found.append(_stored(registry, one))
    return _with_own_names(found, [Path(one).name.removesuffix(FILE) for one in wanted])


def _filed(path: Path) -> ScoredTask:
    """Loads a file; its task is the one that it was trained for, or else the file's name."""
    delta = load(path)
    trained_for = delta.manifest.training.get("task")
    try:
        check_name(trained_for if isinstance(trained_for, str) else "")
    except InvalidInput:
        trained_for = path.name.removesuffix(FILE)
    return ScoredTask(str(trained_for), None, delta)


def _stored(registry: Registry, text: str) -> ScoredTask:
    ref = parse_ref(text)
    version = ref.version
    if version is None:
        alias = registry.task(ref.task).aliases.get(ref.alias or "")
        if alias is None:
            raise AliasNotFound(f"{ref.task} has no alias {ref.alias}")
        version = alias.version
    return ScoredTask(ref.task, version, loads(registry.read(registry.version(ref.task, version))))


def _with_own_names(tasks: Sequence[ScoredTask], files: Sequence[str]) -> list[ScoredTask]:
    """Distinguishes versions of one task by their numbers, and files of one task by their file names."""
    count = Counter(task.name for task in tasks)
    named = [
        replace(task, name=f"{task.name}@{task.version}" if task.version else file) if count[task.name] > 1 else task
        for task, file in zip(tasks, files, strict=True)
    ]
    if twice := [name for name, times in Counter(task.name for task in named).items() if times > 1]:
        raise InvalidInput(f"two tasks are called {twice[0]}, and so would be their columns")
    return named
