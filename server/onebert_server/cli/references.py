"""Resolves the references of commands: version numbers, aliases and their tags."""

import re

import typer

from onebert_server.client import Client, TaskFacts
from onebert_store.errors import AliasNotFound
from onebert_store.file.strict_json import shown
from onebert_store.registry.names import parse_ref


def number_of(version: str) -> int:
    """A version number from an argument; it has at most 18 digits."""
    if not re.fullmatch(r"[0-9]{1,18}", version) or int(version) == 0:
        raise typer.BadParameter(f"{shown(version, 40)!r} is not a version number")
    return int(version)


def at_alias(found: TaskFacts, alias: str | None) -> int:
    """The version that an alias of a task points at; raises AliasNotFound."""
    if alias not in found.aliases:
        raise AliasNotFound(f"{found.name} has no alias {alias}")
    return found.aliases[alias]


def tag_of(found: TaskFacts, alias: str) -> int | str:
    """The tag of an alias's meaning, which a change of it names; raises AliasNotFound."""
    target = found.targets.get(alias)
    return at_alias(found, alias) if target is None else str(target.tag)


def version_of(client: Client, ref: str) -> tuple[str, int]:
    """The task of a reference, and the version that it resolves to now."""
    parsed = parse_ref(ref)
    if parsed.version is not None:
        return parsed.task, parsed.version
    return parsed.task, at_alias(client.task(parsed.task), parsed.alias)
