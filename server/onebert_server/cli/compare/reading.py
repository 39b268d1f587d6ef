"""Reads rows for versions to answer: of one task, or of each task of a server from a folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from onebert_server.cli.compare.labeled import LabeledRow, labeled_rows
from onebert_server.client import Client, Input, TaskSummary, VersionFacts
from onebert_store import errors
from onebert_store.command import console
from onebert_store.errors import InvalidData, VersionUnavailable
from onebert_store.file.manifest import Manifest, parse_manifest
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import LIVE
from onebert_store.tables.columns import Columns
from onebert_store.tables.records import extension_of
from onebert_store.tables.tables import read_source

NO_ROWS = "it has no rows"
# Reasons to leave one task out; other errors, such as a lost server, end the command.
_OF_ONE_TASK = (
    *(InvalidData, errors.InvalidInput, errors.InvalidManifest, errors.InvalidSettings),
    *(errors.NotFound, errors.StoreCorrupt, VersionUnavailable),
)


class HowToRead(NamedTuple):
    """The user's options for reading rows.

    `split` None is test, or validation if there is no test; `slices` are columns by whose values answers are counted.
    """

    columns: Columns = Columns()
    split: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    slices: Sequence[str] = ()

    def rows(self, data: str, manifests: Sequence[Manifest]) -> list[LabeledRow]:
        """The rows of a file or folder for these versions; raises as `labeled_rows`."""
        read = read_source(data, self.encoding, sheet=self.sheet)
        return labeled_rows(read, self.split, self.columns, manifests, self.slices)


def files_of_tasks(folder: Path) -> dict[str, Path]:
    """The data of each task in a folder: a folder or a file that is named like the task.

    Raises InvalidData if two have one name, or there is no such folder.
    """
    if not folder.is_dir():
        raise InvalidData(f"there is no folder {folder}; it has a folder or a file of rows for each task")
    paths: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        ending = "" if path.is_dir() else extension_of(path.name)
        if path.name.startswith(".") or not (ending or path.is_dir()):
            continue
        name = path.name[: len(path.name) - len(ending)]
        if (other := paths.setdefault(name, path)) != path:
            raise InvalidData(f"two have the rows of {name}: {other.name} and {path.name}")
    return paths


class TaskRows(NamedTuple):
    """A task, its live and its newest version, and its rows."""

    task: str
    versions: Sequence[VersionFacts]
    rows: Sequence[LabeledRow]

    @property
    def items(self) -> list[tuple[str, Input]]:
        """Each row for each version."""
        return [(f"{self.task}@{version.version}", row.input) for row in self.rows for version in self.versions]

    @property
    def task_types(self) -> list[str]:
        return [str(version.task_type) for version in self.versions]


def read_tasks(client: Client, folder: Path, how: HowToRead) -> tuple[list[TaskRows], dict[str, str]]:
    """The tasks whose newest version is not live, with their rows, and why others are left out."""
    files, read, left_out = files_of_tasks(folder), list[TaskRows](), dict[str, str]()
    tasks = client.tasks()
    for task in tasks:
        if LIVE not in task.aliases or task.name not in files:
            left_out[task.name] = NO_ROWS if LIVE in task.aliases else "it has no live version"
        elif max(task.versions) != task.aliases[LIVE]:
            try:
                read.append(_read(client, task, str(files[task.name]), how))
            except _OF_ONE_TASK as error:
                left_out[task.name] = error.detail
    return read, left_out | dict.fromkeys(files.keys() - {task.name for task in tasks}, "there is no such task")


def _read(client: Client, task: TaskSummary, data: str, how: HowToRead) -> TaskRows:
    versions = [client.version(task.name, version) for version in (task.aliases[LIVE], max(task.versions))]
    for version in versions:
        if version.status == "unavailable":
            raise VersionUnavailable(f"version {version.version} is unavailable: {version.reason}")
    return TaskRows(task.name, versions, how.rows(data, [parse_manifest(version.manifest) for version in versions]))


def print_left_out(left_out: Mapping[str, str]) -> None:
    """Names the tasks without rows in one line, and each other with its reason."""
    if without := [name for name, why in left_out.items() if why == NO_ROWS]:
        console.say(f"without rows: {', '.join(without)}")
    for name, why in left_out.items():
        if why != NO_ROWS:
            console.say(f"left out: {printable(name)}: {printable(why, 200)}")
