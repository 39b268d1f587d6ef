"""Writes the file of a server for `onebert apply`: the versions that aliases mean, the aliases, and the parts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onebert_server.cli.apply.form import Part, parts
from onebert_server.client import Client, TargetFacts, TaskFacts, TaskSummary
from onebert_store.registry.names import LIVE

HEAD = """\
# The tasks of a server, for `onebert apply`. A server that does not have a digest takes its file, which
# `onebert download` writes beside this one. Rows of gates are on the server alone: another server refuses
# a gate over rows until gate.data names a file of them.
"""


def written(client: Client, task: str | None = None) -> Iterator[str]:
    """The file, task by task, or of one task."""
    from tomli_w import dumps  # noqa: PLC0415 - other commands do not need it

    yield HEAD
    installed = parts()
    if task:
        facts = client.task(task)
        digests = {str(version.version): version.digest for version in facts.versions}
        yield "\n" + dumps({"tasks": {task: _task(client, facts, digests, installed)}})
        return
    statuses = {status.name: status for status in client.status()}
    for listed in client.tasks():
        status = statuses.get(listed.name)
        asked = [part for part in installed if status is None or part.may_be_of(status)]
        yield "\n" + dumps({"tasks": {listed.name: _task(client, listed, listed.digests, asked)}})


def _task(
    client: Client, facts: TaskFacts | TaskSummary, digests: Mapping[str, str], asked: Sequence[Part]
) -> dict[str, Any]:
    numbers = {*facts.aliases.values()}
    for target in facts.targets.values():
        numbers |= {*map(int, target.split), *(shadow.version for shadow in target.shadow or ())}
    versions = {
        number: {"file": f"{facts.name}-{number}.safetensors", "digest": digest}
        for number, digest in digests.items()
        # A task without aliases has all of its versions.
        if int(number) in numbers or not numbers
    }
    aliases = {} if LIVE in facts.aliases else {LIVE: False}
    aliases |= {alias: _meaning(facts.targets.get(alias), number) for alias, number in facts.aliases.items()}
    present = {part.key: (part, part.present(client, facts.name)) for part in asked}
    values = {key: part.written(value) for key, (part, value) in present.items() if value is not None}
    return {"versions": versions, "aliases": aliases, **values}


def _meaning(target: TargetFacts | None, number: int) -> Any:
    if target is None:
        return number
    sticky = {"sticky": target.sticky} if target.sticky else {}
    shadows = {str(shadow.version): shadow.percent for shadow in target.shadow or ()}
    return {"split": target.split, **sticky, **({"shadow": shadows} if shadows else {})}
