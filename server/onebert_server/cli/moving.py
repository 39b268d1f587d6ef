"""Moves an alias to a version or a target, and says what that changed."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import typer

from onebert_server.cli.audit import pages, time_of
from onebert_server.cli.compare.measured import breaking_changes, manifest_of, measure, not_alike, training_in
from onebert_server.client import Change, Client, TargetFacts, Wait, as_dict
from onebert_server.contract.moves import meaning
from onebert_server.references import at_alias
from onebert_store.command import console
from onebert_store.errors import Forbidden, InvalidInput
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import LIVE


def move(
    client: Client, task: str, alias: str, to: int | TargetFacts, wait: Wait | None = None, message: str | None = None
) -> dict[str, Any]:
    """Moves the alias and compares the main versions before and after; `message` moves past the task's gate."""
    facts = client.task(task)
    current, target = facts.aliases.get(alias), facts.targets.get(alias)
    version = current or 0  # a new alias always moves
    if to != (target or current):
        expected = target.tag if target else current
        version = client.move_alias(task, alias, to, expected, wait, message=message).version
    manifests = {each: manifest_of(client, task, each) for each in (current, version) if each is not None}
    measured = {str(each): training_in(manifest) for each, manifest in manifests.items()}
    changed = [] if current is None else breaking_changes(current, manifests[current], manifests[version])
    rollout = isinstance(to, TargetFacts)
    targets = {"target": to if rollout else None} if rollout or target else {}
    sides = {"from": current, "to": version, **targets}
    return {"task": task, "alias": alias, **sides, "measured": measured, "changed": changed}


def before(client: Client, task: str, alias: str, yes: bool) -> int | TargetFacts:
    """The alias's previous meaning; asks for confirmation (unless `yes`) if its version was rolled back."""
    facts, ref = client.task(task), f"{task}@{alias}"
    at, before = at_alias(facts, alias), facts.previous.get(alias)
    if before is None:
        raise InvalidInput(f"{ref} was never at another version")
    target = client.alias(task, alias).previous_target
    needed = (
        {before} if target is None else {*map(int, target.split), *(share.version for share in target.shadow or ())}
    )
    if gone := sorted(needed - {version.version for version in facts.versions}):
        raise InvalidInput(f"{ref} was at version {gone[0]} before, which is deleted; name a version")
    if before > at and not yes:
        when = _rolled_back_at(client, task, alias, before)
        going = f"{ref} goes from {at} back to {before}, which was rolled back{when}"
        if not sys.stdin.isatty():
            raise InvalidInput(f"{going}; say --yes, or name a version")
        typer.confirm(f"{going}; go on?", abort=True, err=True)
    return target or before


def _rolled_back_at(client: Client, task: str, alias: str, version: int) -> str:
    """When a version lost the alias by a rollback; empty if the key may not read the audit trail."""
    of_alias = list[Change]()
    with suppress(Forbidden):
        of_alias += [
            change for change in pages(client, {"task": task}) if (change.alias, change.before) == (alias, version)
        ]
    return next((f" at {time_of(change.at)} UTC" for change in reversed(of_alias) if change.rolled_back), "")


def json_of(moved: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `move` as JSON values."""
    target = moved.get("target")
    return {**moved, "target": as_dict(target)} if target else {**moved}


def print_move(moved: Mapping[str, Any], as_json: bool = False) -> None:
    """Prints the result of `move`: the two versions, their scores, and how to go back."""
    if as_json:
        console.print_json(json_of(moved))
        return
    ref, before, after = f"{moved['task']}@{moved['alias']}", moved["from"], moved["to"]
    if before == after and "target" not in moved:
        console.say(f"{ref}: is at version {after} already")
        return
    console.say(f"{ref}: {before or 'new'} → {meaning(moved.get('target'), after)}")
    for version, known in moved["measured"].items():
        if "score" in known:
            where = f" on {printable(str(known['data']))}" if "data" in known else ""
            console.say(f"  version {version}: {measure(known)} {known['score']:.4f}{where}")
    if doubt := not_alike(list(moved["measured"].values())):
        console.say(f"  the two scores may not be comparable: {doubt}")
    for line in moved["changed"]:
        console.say(f"  {line}")
    if before:
        option = "" if moved["alias"] == LIVE else f" --alias {moved['alias']}"
        back = "--rollback" if "target" in moved else before
        console.say(f"to go back: onebert promote {moved['task']} {back}{option}")
