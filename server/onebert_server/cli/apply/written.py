"""Writes the file of a server for `onebert apply`: the versions that aliases mean, the aliases, and the parts."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onebert_server.cli.apply.part import Part, parts
from onebert_server.cli.apply.present import targets
from onebert_server.client import Client, TaskFacts
from onebert_store.registry.names import LIVE
from onebert_store.registry.target import Target, alone

_BARE = re.compile(r"[A-Za-z0-9_-]+")
HEAD = """\
# The tasks of a server, for `onebert apply`. A server that does not have a digest takes its file, which
# `onebert download` writes beside this one. Rows of gates are on the server alone: name a file of them with gate.data.
"""


def written(client: Client, task: str | None = None) -> Iterator[str]:
    """The file, task by task, or of one task."""
    yield HEAD
    installed = parts()
    for name in [task] if task else [listed.name for listed in client.tasks()]:
        yield _task(client, client.task(name), installed)


def _task(client: Client, facts: TaskFacts, installed: Sequence[Part]) -> str:
    meanings = targets(facts)
    numbers = {number for target in meanings.values() for number in target.numbers}
    lines = [f"[tasks.{_key(facts.name)}]"]
    for version in facts.versions:
        # A task without aliases has all of its versions.
        if version.version in numbers or not numbers:
            file = {"file": f"{facts.name}-{version.version}.safetensors", "digest": version.digest}
            lines.append(f"versions.{version.version} = {_value(file)}")
    lines += [f"aliases.{_key(alias)} = {_value(_meaning(target))}" for alias, target in meanings.items()]
    if LIVE not in meanings:
        lines.append(f"aliases.{LIVE} = false")
    for part in installed:
        if (present := part.present(client, facts.name)) is not None:
            lines += [f"{part.key}.{_key(name)} = {_value(value)}" for name, value in part.written(present).items()]
    return "\n".join(["", *lines, ""])


def _meaning(target: Target) -> Any:
    if target == alone(target.version):
        return target.version
    sticky = {"sticky": target.sticky} if target.sticky else {}
    shadows = {"shadow": dict(target.shadows)} if target.shadows else {}
    return {"split": dict(target.shares), **sticky, **shadows}


def _key(name: Any) -> str:
    text = str(name)
    return text if _BARE.fullmatch(text) else _value(text)


def _value(value: Any) -> str:
    """A value of JSON's kinds in TOML; its tables are inline."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(name)} = {_value(each)}' for name, each in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's escapes are TOML's; JSON leaves DEL as it is.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
