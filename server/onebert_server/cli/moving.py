"""Moves an alias to a version or a target, and says what that changed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from onebert_server.cli.compare.measured import breaking_changes, lacking, manifest_of, measure, not_alike, training_in
from onebert_server.cli.refusals import print_checks
from onebert_server.client import AliasPlace, Client, TargetFacts, Wait, as_dict
from onebert_server.contract.moves import meaning
from onebert_store.command import console
from onebert_store.errors import AliasConflict, AliasNotFound, CheckOutdated, InvalidInput
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import LIVE


def place_of(client: Client, task: str, alias: str) -> AliasPlace | None:
    """The present meaning of an alias; None if it is new."""
    with suppress(AliasNotFound):
        return client.alias(task, alias)
    return None


def move(
    client: Client,
    task: str,
    alias: str,
    place: AliasPlace | None,
    to: int | TargetFacts,
    wait: Wait | None = None,
    message: str | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Moves the alias if it still is at `place`, and compares the main versions before and after.

    Args:
        place: what the alias meant when `to` was chosen; None: there was no such alias.
        message: why, for the audit trail.
        force: moves past the task's gate.
    """
    current, target = (place.version, place.target) if place else (None, None)
    version, what, gate = current or 0, None, None  # a new alias always moves
    if to != (target or current):
        was = meaning(target, current) if current else ""
        with saying_where(client, task, alias, was):
            moved = client.move_alias(
                task, alias, to, target.tag if target else current, wait, message=message, force=force
            )
        version, what, gate = moved.version, moved.what, moved.gate
    manifests = {each: manifest_of(client, task, each) for each in (current, version) if each is not None}
    measured = {str(each): training_in(manifest) for each, manifest in manifests.items()}
    changed = [] if current is None else breaking_changes(current, manifests[current], manifests[version])
    rollout = isinstance(to, TargetFacts)
    targets = {"target": to if rollout else None} if rollout or target else {}
    sides = {"from": current, "to": version, **targets, "what": what, "gate": gate}
    return {"task": task, "alias": alias, **sides, "measured": measured, "changed": changed}


@contextmanager
def saying_where(client: Client, task: str, alias: str, was: str) -> Iterator[None]:
    """Says of an alias that somebody else has moved where it `was`, and where it is."""
    try:
        yield
    except AliasConflict as error:
        if isinstance(error, CheckOutdated):
            raise
        place = place_of(client, task, alias)
        now = f"`{meaning(place.target, place.version)}`" if place else "deleted"
        raise AliasConflict(f"{task}@{alias} is {now} now, was {f'`{was}`' if was else 'new'}: run it again") from None


def before(place: AliasPlace, yes: bool) -> int | TargetFacts:
    """The alias's meaning before its present version was live; asks (unless `yes`) if that ends a split."""
    ref, at, to = f"{place.task}@{place.alias}", place.version, place.previous_target
    if place.previous is None:
        split = place.target is not None and len(place.target.split) > 1
        cure = f"the split ends by: onebert promote {place.task} {at}" if split else "name a version"
        raise InvalidInput(f"{ref} was at no version before {at} to which it can go back; {cure}")
    if place.target is not None and len(place.target.split) > 1 and not yes:
        back = f"{meaning(place.target, at)} back to {meaning(to, place.previous)}"
        going = f"{ref} goes from {back}, not to {at} alone"
        console.confirm(going, f"say --yes, or onebert promote {place.task} {at}")
    return to or place.previous


def json_of(moved: Mapping[str, Any]) -> dict[str, Any]:
    """The result of `move` as JSON values."""
    target = moved.get("target")
    return {**moved, "target": as_dict(target)} if target else {**moved}


def print_move(moved: Mapping[str, Any], as_json: bool = False) -> None:
    """Prints the result of `move`: what it ended, the gate, the two versions, their scores, and how to go back."""
    if as_json:
        console.print_json(json_of(moved))
        return
    ref, before, after = f"{moved['task']}@{moved['alias']}", moved["from"], moved["to"]
    if moved["what"] is None:
        console.say(f"{ref}: is at {meaning(moved.get('target'), after)} already")
        return
    console.say(f"{ref}: {moved['what']}")
    _print_gate(moved["gate"] or ())
    for version, known in moved["measured"].items():
        if "score" in known:
            where = f" on {printable(str(known['data']))}" if "data" in known else ""
            console.say(f"  version {version}: {measure(known)} {known['score']:.4f}{where}")
        for line in lacking(version, known):
            console.say(f"  {line}")
    if doubt := not_alike(list(moved["measured"].values())):
        console.say(f"  the two scores may not be comparable: {doubt}")
    for line in moved["changed"]:
        console.say(f"  {line}")
    if before and (before != after or moved.get("target")):
        option = "" if moved["alias"] == LIVE else f" --alias {moved['alias']}"
        console.say(
            f"to {'go back' if before != after else 'end it'}: onebert promote {moved['task']} {before}{option}"
        )


def _print_gate(reports: Sequence[Mapping[str, Any]]) -> None:
    for report in reports:
        console.say(f"version {report['candidate']['version']} passed the gate of {report['task']}:")
        print_checks(report)
