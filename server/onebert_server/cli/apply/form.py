"""Reads `tasks.toml`: versions, aliases, and the parts that extensions set; each mistake is said with its key."""

import tomllib
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)

from onebert_server.client import Client, TaskStatus
from onebert_server.installed import modules
from onebert_store.errors import InvalidInput, OneBertError
from onebert_store.file.fields import Strict
from onebert_store.file.manifest import Manifest
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import check_alias, check_name
from onebert_store.registry.target import Shadow, Target, check_target
from onebert_store.suggestion import suggestion

# 10,000 tasks have 3 MB.
MAX_BYTES = 16 * 2**20
_DIGEST = "sha256:"
_WORDS = {"model_type": "must be a table", "dict_type": "must be a table", "missing": "is missing"}


@contextmanager
def _as_value_error() -> Iterator[None]:
    try:
        yield
    except OneBertError as error:
        raise ValueError(error.detail) from None


def _check_name(name: str) -> str:
    with _as_value_error():
        check_name(name)
    return name


def _check_alias(name: str) -> str:
    with _as_value_error():
        check_alias(name)
    return name


def _inside(name: Any, info: ValidationInfo) -> Path:
    """The path of a file or folder inside the folder of the TOML file, links followed; it may be missing."""
    if not isinstance(name, str):
        raise ValueError("must be a text")
    folder: Path = (info.context or {})["folder"]
    try:
        path = (folder / name).resolve()
        inside, special = path.is_relative_to(folder), path.exists() and not (path.is_file() or path.is_dir())
    # A NUL in the name, a name that is too long, a circle of links.
    except (OSError, ValueError, RuntimeError):
        raise ValueError(f"{printable(name)!r} is no path") from None
    if not inside:
        raise ValueError(f"{printable(name)} is outside the folder of the file, and only files in it are read")
    if special:
        raise ValueError(f"{printable(name)} is neither a file nor a folder")
    return path


Inside = Annotated[Path, BeforeValidator(_inside)]
# The value `false`: it shall not exist.
OR_FALSE = BeforeValidator(lambda value: None if value is False else value)


class VersionForm(Strict, frozen=False):
    """A version of a task: its delta file, its digest, or both; then a server that has the digest needs no file."""

    file: Inside | None = None
    digest: Annotated[str, Field(pattern=f"^{_DIGEST}[0-9a-f]{{64}}$")] = ""
    _manifest: Manifest | None = None
    _size: int = 0

    @property
    def manifest(self) -> Manifest | None:
        return self._manifest

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._size

    @model_validator(mode="before")
    @classmethod
    def _in_one_text(cls, value: Any) -> Any:
        return {"digest" if value.startswith(_DIGEST) else "file": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _read(self) -> "VersionForm":
        from onebert_store.file.format import load_with_bytes  # noqa: PLC0415

        if self.file is None and not self.digest:
            raise ValueError("names neither a file nor a digest")
        if self.file is None or (self.digest and not self.file.exists()):
            self.file = None
            return self
        with _as_value_error():
            delta, content = load_with_bytes(self.file)
        if self.digest not in ("", delta.digest):
            raise ValueError(f"{self.file.name} has another digest: {delta.digest}")
        self.digest, self._manifest, self._size = delta.digest, delta.manifest, len(content)
        return self


class AliasForm(Strict):
    """The whole meaning of an alias, by the names of versions in the file."""

    split: dict[str, int]
    sticky: str | None = None
    shadow: dict[str, int] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _of_one_version(cls, value: Any) -> Any:
        return {"split": {str(value): 100}} if type(value) in (str, int) else value

    def target(self, numbers: Mapping[str, int]) -> Target:
        """The same by the numbers of versions."""
        shares = sorted((numbers[name], share) for name, share in self.split.items())
        shadows = sorted(Shadow(numbers[name], share) for name, share in self.shadow.items())
        return Target(tuple(shares), self.sticky, tuple(shadows))


def _of_versions(alias: AliasForm | None, info: ValidationInfo) -> AliasForm | None:
    if alias is not None and "versions" in info.data:
        versions = info.data["versions"]
        for name in (*alias.split, *alias.shadow):
            if name not in versions:
                near = suggestion(name, versions)
                raise ValueError(f"the file names no version {printable(name, 40)!r} of this task{near}")
        with _as_value_error():
            check_target(alias.target({name: number for number, name in enumerate(versions, 1)}))
    return alias


def _different(versions: dict[str, VersionForm]) -> dict[str, VersionForm]:
    names = dict[str, str]()
    for name, version in versions.items():
        if (first := names.setdefault(version.digest, name)) != name:
            raise ValueError(f"{name} is the same as {first}")
    return versions


class TaskForm(Strict):
    """A task as the file has it; an alias or a part that is None shall not exist."""

    versions: Annotated[dict[Annotated[str, AfterValidator(_check_name)], VersionForm], AfterValidator(_different)] = (
        Field(default_factory=dict)
    )
    aliases: dict[
        Annotated[str, AfterValidator(_check_alias)],
        Annotated[AliasForm | None, OR_FALSE, AfterValidator(_of_versions)],
    ] = Field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Any]:
        """The values of the parts that the file names."""
        return {key: getattr(self, key) for key in self.model_fields_set - TaskForm.model_fields.keys()}


class PartChange(NamedTuple):
    """A change of a part: its words in the difference, and the call that makes it."""

    words: str
    run: Callable[[Client], object]


class Part(Protocol):
    """A key of a task that an extension sets: the `PART` of its module `applied`; `present` is the part's own.

    Attributes:
        before_moves: whether it is set before aliases move, or after.
        model: of the value in the file.
    """

    key: str
    title: str
    before_moves: bool

    @property
    def model(self) -> type[BaseModel]: ...

    def may_be_of(self, status: TaskStatus) -> bool:
        """Whether a task may have the part, by its status in the list of all."""

    def present(self, client: Client, task: str) -> Any:
        """Asks the server for the part; None: it has none."""

    def change(self, task: str, wanted: Any, present: Any, manifest: Callable[[], Manifest]) -> PartChange | None:
        """Compares; None: they are equal. Raises InvalidInput or InvalidData.

        Args:
            wanted: a `model`; None: the part is deleted.
            manifest: reads the manifest of the task's last version in the file.
        """

    def of_move(self, alias: str, numbers: Collection[int], wanted: Any, present: Any) -> str:
        """The judge of a move of an alias to versions that it does not mean yet, in words; empty: nothing does."""

    def written(self, present: Any) -> Mapping[str, Any]:
        """The value in the file."""


def parts() -> list[Part]:
    """The parts of the installed extensions."""
    return [module.PART for module in modules("applied")]


def read_form(file: Path) -> tuple[dict[str, TaskForm], list[str]]:
    """The sound tasks of a file by their names, and a line for each mistake, which its key begins.

    Raises InvalidInput for a file that is not TOML.
    """
    with file.open("rb") as opened:
        content = opened.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"it has more than {MAX_BYTES:,} bytes")
    try:
        value = tomllib.loads(content.decode("utf-8-sig"))
    # Also text that is not UTF-8, and numbers of thousands of digits.
    except ValueError as error:
        raise InvalidInput(f"it is not TOML: {printable(str(error), 200)}") from None
    except RecursionError:
        raise InvalidInput("it is not TOML: its lists or tables are too deep in each other") from None
    fields: dict[str, Any] = {part.key: (Annotated[part.model | None, OR_FALSE], None) for part in parts()}
    task = create_model("Task", __base__=TaskForm, **fields)
    model = create_model("File", __base__=Strict, tasks=(dict[Annotated[str, AfterValidator(_check_name)], task], ...))
    context, lines = {"folder": file.parent.resolve()}, list[str]()
    try:
        form: Any = model.model_validate(value, context=context)
    except ValidationError as error:
        schemas = model.model_json_schema()
        tables = [schemas, *schemas["$defs"].values()]
        known = {name for table in tables for name in table.get("properties", ())}
        mistakes = error.errors(include_input=False, include_url=False)
        lines = [_line(mistake, known) for mistake in mistakes]
        wrong = {mistake["loc"][1] for mistake in mistakes if len(mistake["loc"]) > 1}
        written = value.get("tasks")
        sound = {name: each for name, each in written.items() if name not in wrong} if isinstance(written, dict) else {}
        form = model.model_validate({"tasks": sound}, context=context)
    tasks: dict[str, TaskForm] = form.tasks
    return tasks, lines


def _line(mistake: Mapping[str, Any], known: Iterable[str]) -> str:
    keys = [str(key) for key in mistake["loc"] if key != "[key]"]
    words = _WORDS.get(mistake["type"], mistake["msg"].removeprefix("Value error, "))
    if mistake["type"] == "extra_forbidden":
        words = f"there is no such key{suggestion(keys[-1], known)}"
    return f"{printable('.'.join(keys), 200)}: {words}"


def other_tasks(forms: Mapping[str, TaskForm], known: Container[str]) -> list[str]:
    """A sentence for each file whose `known` digest is new, and which was trained for another task than it is under."""
    return [
        f"tasks.{task}.versions.{name}: {version.file.name} was trained for {printable(trained_for, 80)}"
        for task, form in forms.items()
        for name, version in form.versions.items()
        if version.file is not None and version.manifest is not None and version.digest not in known
        if isinstance(trained_for := version.manifest.training.get("task"), str) and trained_for != task
    ]


def shared_files(forms: Mapping[str, TaskForm]) -> list[str]:
    """A sentence for each file that several tasks name, which may be meant or a slip of the pen."""
    keys = dict[Path, list[str]]()
    for task, form in forms.items():
        for name, version in form.versions.items():
            if version.file is not None:
                keys.setdefault(version.file, []).append(f"tasks.{task}.versions.{name}")
    return [f"{' and '.join(paths)} are one file, {file.name}" for file, paths in keys.items() if len(paths) > 1]
