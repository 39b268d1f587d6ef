"""Reads from a server what it has of a task."""

from collections.abc import Collection, Sequence

from onebert_server.cli.apply.difference import Present
from onebert_server.cli.apply.part import Part
from onebert_server.client import Client, TargetFacts, TaskFacts
from onebert_store.registry.target import Shadow, Target, alone


def read_present(client: Client, task: str, parts: Sequence[Part], keys: Collection[str]) -> Present:
    """A task of the server, and of its parts those with these keys."""
    facts = client.task(task)
    has = {part.key: part.present(client, task) for part in parts if part.key in keys}
    return Present({version.digest: version.version for version in facts.versions}, targets(facts), tags(facts), has)


def targets(facts: TaskFacts) -> dict[str, Target]:
    """The meaning of each alias."""
    return {alias: _target(facts.targets.get(alias), number) for alias, number in facts.aliases.items()}


def tags(facts: TaskFacts) -> dict[str, int | str]:
    """The tag of each alias, which a move of it names."""
    more = {alias: str(target.tag) for alias, target in facts.targets.items()}
    return facts.aliases | more


def _target(facts: TargetFacts | None, version: int) -> Target:
    if facts is None:
        return alone(version)
    shares = sorted((int(number), share) for number, share in facts.split.items())
    shadows = sorted(Shadow(shadow.version, shadow.percent) for shadow in facts.shadow or ())
    return Target(tuple(shares), facts.sticky, tuple(shadows))
