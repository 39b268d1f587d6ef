"""`onebert gate`: shows, sets and deletes the gate of a task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from onebert_server.cli.options import INPUT, URL, ApiKey, AsJson, TaskName, Url
from onebert_server.client import Client, GateFacts, as_dict
from onebert_store.command import console
from onebert_store.errors import InvalidInput
from onebert_store.file.strict_json import printable


def gate(
    task: TaskName,
    set_: Annotated[
        Path | None,
        INPUT.option("Set the gate that this file has, in place of the one before.", "--set", metavar="FILE"),
    ] = None,
    data: Annotated[
        str | None,
        INPUT.option(
            "Labeled rows to upload, which min, max and slices are about: a file, or a folder with a test split.",
            metavar="DATA",
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the gate, and its rows on the server.")] = False,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Show the gate of a task, set it from a file, or delete it.

    The server keeps the rows, and runs the gate before it moves an alias to a version.
    """
    if (data is not None and set_ is None) or (delete and set_ is not None):
        raise typer.BadParameter("write --set FILE [--data DATA], or --delete")
    with Client(url, api_key) as client:
        if delete:
            client.delete_gate(task)
            console.say(f"{task}: its gate is deleted")
            return
        facts = client.gate(task) if set_ is None else _set(client, task, set_, data)
    if as_json:
        console.print_json(as_dict(facts))
        return
    _print(facts)


def _set(client: Client, task: str, file: Path, data: str | None) -> GateFacts:
    from onebert_server.extensions.gate.reading import gate_of, pinned_rows  # noqa: PLC0415
    from onebert_store.file.manifest import parse_manifest  # noqa: PLC0415

    rules, rows = gate_of(file), []
    if data is not None:
        versions = client.task(task).versions
        manifest = parse_manifest(client.version(task, versions[-1].version).manifest)
        rows = [row.model_dump(exclude_defaults=True) for row in pinned_rows(data, rules, manifest)]
    elif rules.needs_rows:
        raise InvalidInput("min, max and slices are about rows: name them with --data")
    return client.set_gate(task, rules.model_dump(exclude_defaults=True), rows)


def _print(facts: GateFacts) -> None:
    rules = facts.rules
    aliases = ", ".join(rules.get("aliases", ["live"]))
    pinned = rules.get("pinned")
    console.say(
        f"{facts.task}: the gate of {aliases}" + (f", pinned to {facts.rows:,} rows ({pinned[:19]}…)" if pinned else "")
    )
    console.show(("check", "bound"), checks(rules), ("bound",))


def checks(rules: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Each check of a gate with its bound, in words."""
    checks = [(f"min.{name}", f"{bound:.4g}") for name, bound in rules.get("min", {}).items()]
    checks += [(f"max.{name}", f"{bound:.4g}") for name, bound in rules.get("max", {}).items()]
    if slices := rules.get("slices"):
        columns = printable(", ".join(slices["columns"]))
        checks.append((f"slices of {columns}: worst_drop", f"{slices['worst_drop']:.4g}"))
    for example in rules.get("must", ()):
        label = example["label"] if isinstance(example["label"], str) else ", ".join(example["label"])
        checks.append((f"must: {printable(example['text'])}", printable(label)))
    return checks
