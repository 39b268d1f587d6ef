"""Resolves references by a server: versions, aliases and their tags."""

from onebert_server.client.client import Client
from onebert_server.contract.tasks import TaskFacts
from onebert_store.errors import AliasNotFound
from onebert_store.registry.names import parse_ref


def at_alias(facts: TaskFacts, alias: str | None) -> int:
    """The version that an alias of a task points at; raises AliasNotFound."""
    if alias not in facts.aliases:
        raise AliasNotFound(f"{facts.name} has no alias {alias}")
    return facts.aliases[alias]


def tag_of(facts: TaskFacts, alias: str) -> int | str:
    """The tag of an alias's meaning, which a change of it names; raises AliasNotFound."""
    target = facts.targets.get(alias)
    return at_alias(facts, alias) if target is None else str(target.tag)


def version_of(client: Client, ref: str) -> tuple[str, int]:
    """The task of a reference, and the version that it resolves to now."""
    parsed = parse_ref(ref)
    if parsed.version is not None:
        return parsed.task, parsed.version
    return parsed.task, at_alias(client.task(parsed.task), parsed.alias)
