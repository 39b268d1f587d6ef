"""`onebert gate`: shows the gate of a task."""

from collections.abc import Mapping
from typing import Any

from onebert_server.cli.options import URL, ApiKey, AsJson, TaskName, Url
from onebert_server.client import Client, GateFacts, as_dict
from onebert_store.command import console
from onebert_store.file.strict_json import printable


def gate(task: TaskName, url: Url = URL, api_key: ApiKey = None, as_json: AsJson = False) -> None:
    """Show the gate of a task, which the server runs before it moves an alias to a version.

    `onebert apply` sets and deletes gates.
    """
    with Client(url, api_key) as client:
        facts = client.gate(task)
    if as_json:
        console.print_json(as_dict(facts))
        return
    _print(facts)


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
