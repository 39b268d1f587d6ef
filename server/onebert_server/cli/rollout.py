"""The command `rollout`: a split of an alias's requests between versions, and shadows."""

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from onebert_server.cli.moving import move, print_move
from onebert_server.cli.options import URL, ApiKey, AsJson, TaskName, Url
from onebert_server.cli.refusals import Force, Message, require_reason, showing_refusals
from onebert_server.client import AliasPlace, Client, TargetFacts
from onebert_server.contract.moves import changed
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import LIVE

NONE = "none"


def rollout(
    task: TaskName,
    split: Annotated[
        str | None, typer.Option(metavar="N=PERCENT,…", help="Versions that answer, as 7=95,8=5: 100 together.")
    ] = None,
    sticky: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="`principal` or `header:NAME`: requests with one key go to one version; without it by chance.",
        ),
    ] = None,
    shadow: Annotated[
        list[str] | None,
        typer.Option(metavar="N[=PERCENT]", help="Version that computes the requests unseen; may be repeated."),
    ] = None,
    alias: Annotated[str, typer.Option(metavar="ALIAS", help="The alias.")] = LIVE,
    force: Force = False,
    message: Message = None,
    url: Url = URL,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """Split an alias's requests between versions, or have shadows compute.

    Each option sets one thing, `none` ends it, and the others stay as they are. `onebert promote
    TASK VERSION` ends the rollout, `onebert promote TASK --rollback` goes back to the version live before. A version
    that begins to answer must pass the task's gate, as with `onebert promote`. `onebert status TASK` shows how shadows
    agree, and the wins, losses and e-values of versions by feedback.
    """
    require_reason(force, message)
    if not (split or sticky or shadow):
        raise typer.BadParameter(f"give --split, --sticky or --shadow; `onebert status {task}` shows how it stands")
    with Client(url, api_key, MAX_REQUEST_TIMEOUT) as client:
        place = client.alias(task, alias)
        with showing_refusals(as_json):
            moved = move(client, task, alias, place, _changed(place, split, sticky, shadow), None, message, force)
    print_move(moved, as_json)


def _changed(place: AliasPlace, split: str | None, sticky: str | None, shadow: Sequence[str] | None) -> TargetFacts:
    """The present meaning with the parts that are given in place of its own; `none` takes a part away."""
    shares = None if split is None else {} if split == NONE else dict(_numbers("--split", split.split(","), None))
    shadows = None if not shadow else {} if [*shadow] == [NONE] else dict(_numbers("--shadow", shadow, 100))
    return changed(place, shares, "" if sticky == NONE else sticky, shadows)


def _numbers(option: str, values: Sequence[str], default: int | None) -> list[tuple[int, int]]:
    pairs = []
    for value in values:
        read = re.fullmatch(r"\s*([1-9]\d{0,8})(?:=(\d{1,3}))?\s*", value)
        if read is None or (read[2] is None and default is None):
            form = "VERSION=PERCENT" if default is None else "VERSION or VERSION=PERCENT"
            raise typer.BadParameter(f"{option}: {printable(value, 40)!r} is not {form}")
        pairs.append((int(read[1]), int(read[2] or default or 0)))
    return pairs
