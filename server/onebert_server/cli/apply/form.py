"""Reads `tasks.toml`: the tasks of a server with their versions, aliases, and the parts that extensions set."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onebert_server.cli.apply.key import Key
from onebert_server.cli.apply.part import Part
from onebert_store.errors import InvalidInput, OneBertError
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import check_alias, check_name
from onebert_store.registry.target import Shadow, Target, check_target
from onebert_store.suggestion import suggestion

# 10,000 tasks have 3 MB.
MAX_BYTES = 16 * 2**20
_DIGEST = "sha256:"


@dataclass(frozen=True)
class NamedVersion:
    """A version of a task: its delta file, its digest, or both; then a server that has the digest needs no file."""

    key: Key
    file: Path | None
    digest: str | None


@dataclass(frozen=True)
class Meaning:
    """The meaning of an alias, by the names of versions in the file."""

    split: Mapping[str, int]
    sticky: str | None = None
    shadow: Mapping[str, int] | None = None

    def target(self, numbers: Mapping[str, int]) -> Target:
        """The same by the numbers of versions."""
        shares = sorted((numbers[name], share) for name, share in self.split.items())
        shadows = sorted(Shadow(numbers[name], share) for name, share in (self.shadow or {}).items())
        return Target(tuple(shares), self.sticky, tuple(shadows))


@dataclass(frozen=True)
class TaskForm:
    """A task as the file has it; an alias or a part that is None shall not exist."""

    key: Key
    versions: Mapping[str, NamedVersion]
    aliases: Mapping[str, Meaning | None]
    parts: Mapping[str, Any]


def read_form(file: Path, parts: Sequence[Part]) -> dict[str, TaskForm]:
    """The tasks of a file by their names; raises InvalidInput in one line, with the path of the key that is wrong."""
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
    root = Key("", value).table(["tasks"])
    if "tasks" not in root:
        raise InvalidInput("it has no task: a task is a table [tasks.NAME]")
    folder = file.parent.resolve()
    return {name: _task(name, key, folder, parts) for name, key in root["tasks"].items()}


def _task(name: str, key: Key, folder: Path, parts: Sequence[Part]) -> TaskForm:
    _named(key, name, check_name)
    by_key = {part.key: part for part in parts}
    table = key.table(["versions", "aliases", *by_key])
    empty = Key(key.path, {})
    versions = {each: _version(each, value, folder) for each, value in table.get("versions", empty).items()}
    aliases = {each: _alias(each, value, versions) for each, value in table.get("aliases", empty).items()}
    wanted = {
        each: None if value.value is False else by_key[each].wanted(value, folder)
        for each, value in table.items()
        if each in by_key
    }
    return TaskForm(key, versions, aliases, wanted)


def _version(name: str, key: Key, folder: Path) -> NamedVersion:
    _named(key, name, check_name)
    if isinstance(key.value, str):
        return NamedVersion(key, None, _digest(key)) if key.value.startswith(_DIGEST) else _on_disk(key, key, folder)
    table = key.table(["file", "digest"])
    digest = _digest(table["digest"]) if "digest" in table else None
    if "file" in table:
        return _on_disk(key, table["file"], folder, digest)
    if digest is None:
        raise key.wrong("it names neither a file nor a digest")
    return NamedVersion(key, None, digest)


def _on_disk(key: Key, place: Key, folder: Path, digest: str | None = None) -> NamedVersion:
    return NamedVersion(key, path_of(place, folder, missing_ok=digest is not None), digest)


def path_of(key: Key, folder: Path, missing_ok: bool = False) -> Path:
    """The file or folder that a key names, inside the folder of the TOML file, links followed."""
    name = key.text()
    try:
        path = (folder / name).resolve()
        inside, there, readable = path.is_relative_to(folder), path.exists(), path.is_file() or path.is_dir()
    # A NUL in the name, a name that is too long, a circle of links.
    except (OSError, ValueError, RuntimeError):
        raise key.wrong(f"{printable(name, 80)!r} is no path") from None
    if not inside:
        raise key.wrong(f"{printable(name, 80)} is outside the folder of the file, and only files in it are read")
    if there and not readable:
        raise key.wrong(f"{printable(name, 80)} is neither a file nor a folder")
    if not there and not missing_ok:
        raise key.wrong(f"there is no {printable(name, 80)}")
    return path


def _digest(key: Key) -> str:
    text = key.text()
    hexes = text.removeprefix(_DIGEST)
    if not text.startswith(_DIGEST) or len(hexes) != 64 or not set(hexes) <= set("0123456789abcdef"):
        raise key.wrong(f"a digest is {_DIGEST} and 64 of 0-9 and a-f")
    return text


def _alias(name: str, key: Key, versions: Mapping[str, NamedVersion]) -> Meaning | None:
    _named(key, name, check_alias)
    if key.value is False:
        return None
    if type(key.value) in (str, int):
        version = str(key.value)
        _known(key, version, versions)
        return Meaning({version: 100})
    table = key.table(["split", "sticky", "shadow"])
    if "split" not in table:
        raise key.wrong("it has no split: versions with their percentages, 100 together")
    sticky = table["sticky"].text() if "sticky" in table else None
    meaning = Meaning(_shares(table["split"], versions), sticky, _shares(table.get("shadow", Key("", {})), versions))
    numbers = {each: at for at, each in enumerate(versions, 1)}
    try:
        check_target(meaning.target(numbers))
    except InvalidInput as error:
        raise key.refused(error) from None
    return meaning


def _shares(key: Key, versions: Mapping[str, NamedVersion]) -> dict[str, int]:
    for name, share in key.items():
        _known(share, name, versions)
    return {name: share.whole(1, 100) for name, share in key.items()}


def _known(key: Key, version: str, versions: Mapping[str, NamedVersion]) -> None:
    if version not in versions:
        near = suggestion(version, versions)
        raise key.wrong(f"the file names no version {printable(version, 40)!r} of this task{near}")


def _named(key: Key, name: str, check: Callable[[str], None]) -> None:
    try:
        check(name)
    except OneBertError as error:
        raise key.refused(error) from None
