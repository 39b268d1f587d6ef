"""The tasks to score, and how they are found: delta files, and versions in a store."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from onebert_encoder.answering.answer import kind_of
from onebert_encoder.base.sentence import Vectors
from onebert_store.errors import AliasNotFound, InvalidInput
from onebert_store.file.delta import Delta
from onebert_store.file.format import load, loads
from onebert_store.file.manifest import PLAIN_FORMAT, BaseRef, Manifest
from onebert_store.registry.names import check_name, parse_ref
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import StoreAddress, join_store
from onebert_store.spec import BaseSpec

FILE = ".safetensors"
VECTOR = "vector"


@dataclass(frozen=True, eq=False)
class ScoredTask:
    """A task to score with; `name` is the prefix of its columns, `version` is None for a file."""

    name: str
    version: int | None
    digest: str
    manifest: Manifest


@dataclass(frozen=True, eq=False)
class LoadedTask(ScoredTask):
    """A task whose delta is in memory, to be computed here or on a cluster; None: the base's own vectors.

    `normalized`: whether the vectors shall have the length 1.
    """

    delta: Delta | None
    normalized: bool = False


T = TypeVar("T", bound=ScoredTask)


def find_tasks(wanted: Sequence[str], store: StoreAddress) -> list[LoadedTask]:
    """Loads every named task: a file, or `name`, `name@3` or `name@alias` in the store, which a server may own.

    Raises:
        InvalidInput: a name is invalid, or two tasks share one.
        InvalidDelta, TooLarge: a file is not a delta.
        TaskNotFound, VersionNotFound, AliasNotFound: the store has no such version.
        StoreCorrupt, StorageUnavailable: the store cannot be read.
    """
    with ExitStack() as opened:
        registry: Registry | None = None
        tasks = []
        for reference in wanted:
            if names_file(reference):
                tasks.append(_filed(Path(reference)))
            else:
                registry = registry or Registry(opened.enter_context(join_store(store)))
                tasks.append(_stored(registry, reference))
    return with_own_names(tasks, [Path(reference).name.removesuffix(FILE) for reference in wanted])


def vectors_task(spec: BaseSpec, vectors: Vectors | str) -> LoadedTask:
    """Returns the task `vector` of a base, whose numbers are read like a regression's.

    Raises InvalidInput if the base makes none.
    """
    if isinstance(vectors, str):
        raise InvalidInput(f"{spec.name} makes no vectors: {vectors}")
    manifest = Manifest(
        format=PLAIN_FORMAT,
        base=BaseRef(name=spec.name, model_type=spec.model_type, digest=spec.digest),
        task_type="regression",
        labels=[*map(str, range(spec.hidden_size))],
        pooling=vectors.pooling,
        max_length=vectors.max_length,
        method="none",
    )
    return LoadedTask(VECTOR, None, spec.digest, manifest, None, vectors.normalized)


def names_file(reference: str) -> bool:
    """Whether a task is given as a delta file."""
    return Path(reference).is_file() or reference.endswith(FILE)


def _filed(path: Path) -> LoadedTask:
    """Loads a file; its task is the one that it was trained for, or else the file's name."""
    delta = load(path)
    trained_for = delta.manifest.training.get("task")
    try:
        check_name(trained_for if isinstance(trained_for, str) else "")
    except InvalidInput:
        trained_for = path.name.removesuffix(FILE)
    return LoadedTask(str(trained_for), None, delta.digest, delta.manifest, delta)


def _stored(registry: Registry, text: str) -> LoadedTask:
    ref = parse_ref(text)
    version = ref.version
    if version is None:
        alias = registry.task(ref.task).aliases.get(ref.alias or "")
        if alias is None:
            raise AliasNotFound(f"{ref.task} has no alias {ref.alias}")
        version = alias.version
    delta = loads(registry.read(registry.version(ref.task, version)))
    return LoadedTask(ref.task, version, delta.digest, delta.manifest, delta)


def with_own_names(tasks: Sequence[T], files: Sequence[str]) -> list[T]:
    """Distinguishes versions of one task by their numbers, and files of one task by their file names."""
    count = Counter(task.name for task in tasks)
    named = [
        replace(task, name=f"{task.name}@{task.version}" if task.version else file) if count[task.name] > 1 else task
        for task, file in zip(tasks, files, strict=True)
    ]
    if twice := [name for name, times in Counter(task.name for task in named).items() if times > 1]:
        raise InvalidInput(f"two tasks are called {twice[0]}, and so would be their columns")
    return named


def require_takes(tasks: Sequence[ScoredTask], pair: bool) -> None:
    """Raises InvalidInput, with the task's name, unless every task takes such inputs (texts, or pairs)."""
    for task in tasks:
        kind = kind_of(task.manifest)
        if not kind.takes(pair):
            raise InvalidInput(f"{task.name} is a {task.manifest.task_type} task and takes {kind.question}")
