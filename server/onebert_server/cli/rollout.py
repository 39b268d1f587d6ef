"""The command `rollout`: a split of an alias's requests between versions, and shadows."""

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from onebert_server.cli.audit import meaning
from onebert_server.cli.moving import move, print_move
from onebert_server.cli.options import URL, ApiKey, AsJson, TaskName, Url
from onebert_server.cli.refusals import Force, Message, require_reason, showing_refusals
from onebert_server.client import (
    AliasPlace,
    Client,
    ShadowAgreement,
    ShadowShare,
    TargetFacts,
    VerdictsResponse,
    as_dict,
)
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_store.command import console
from onebert_store.file.strict_json import shown
from onebert_store.registry.names import LIVE

# Pairs of labels shown for a version and its shadow.
PAIRS_SHOWN = 8
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
    """Split an alias's requests between versions, have shadows compute, or show how they agree.

    An option replaces its part of the alias's meaning, `none` takes it away, and the other parts stay. `onebert promote
    TASK --rollback` goes back to the whole meaning before, `onebert promote TASK VERSION` ends the rollout. A version
    that begins to answer must pass the task's gate, as with `onebert promote`. Without an option the command shows how
    shadows agree, and the wins, losses and e-values of versions by feedback.
    """
    require_reason(force, message)
    with Client(url, api_key, MAX_REQUEST_TIMEOUT) as client:
        place = client.alias(task, alias)
        if split or sticky or shadow:
            to = _changed(place, split, sticky, shadow)
            with showing_refusals(as_json):
                moved = move(client, task, alias, to, None, message)
            print_move(moved, as_json)
            return
        if force:
            raise typer.BadParameter("--force is for a change: --split, --sticky or --shadow")
        agreements, verdicts = client.shadows(task, alias), client.verdicts(task, alias)
    if as_json:
        judged = as_dict(verdicts)["verdicts"]
        console.print_json(as_dict(place) | {"shadows": [as_dict(one) for one in agreements], "verdicts": judged})
        return
    console.say(f"{task}@{alias}: {meaning(place.target, place.version)}")
    _show(agreements)
    _show_verdicts(verdicts)


def _changed(place: AliasPlace, split: str | None, sticky: str | None, shadow: Sequence[str] | None) -> TargetFacts:
    """The present meaning with the parts that are given in place of its own; `none` takes a part away."""
    to = place.target or TargetFacts({str(place.version): 100})
    shares, key, shadows = to.split, to.sticky, to.shadow
    if split:
        shares = {str(number): share for number, share in _numbers("--split", split.split(","), None)}
    if sticky:
        key = None if sticky == NONE else sticky
    if shadow:
        shadows = [ShadowShare(*one) for one in _numbers("--shadow", shadow, 100)] if [*shadow] != [NONE] else None
    return TargetFacts(shares, key, shadows)


def _numbers(option: str, given: Sequence[str], default: int | None) -> list[tuple[int, int]]:
    """Reads `N=PERCENT`, or `N` with a default."""
    found = []
    for one in given:
        read = re.fullmatch(r"\s*([1-9]\d{0,8})(?:=(\d{1,3}))?\s*", one)
        if read is None or (read[2] is None and default is None):
            form = "VERSION=PERCENT" if default is None else "VERSION or VERSION=PERCENT"
            raise typer.BadParameter(f"{option}: {shown(one, 40)!r} is not {form}")
        found.append((int(read[1]), int(read[2] or default or 0)))
    return found


def _show(agreements: Sequence[ShadowAgreement]) -> None:
    for one in agreements:
        share = f"{one.same / one.answers:.1%} of {one.answers:,} answers alike" if one.answers else "no answers yet"
        left_out = f", {one.left_out:,} left out" if one.left_out else ""
        console.say(f"\nversion {one.version} and shadow {one.shadow}: {share}{left_out}")
        apart = [pair for pair in one.labels if pair.label != pair.shadow][:PAIRS_SHOWN]
        if apart:
            heads = (f"version {one.version}", f"shadow {one.shadow}", "answers")
            cells = ((shown(pair.label), shown(pair.shadow), f"{pair.answers:,}") for pair in apart)
            console.show(heads, cells, heads[2:])


def _show_verdicts(found: VerdictsResponse) -> None:
    """Prints a line for each candidate that feedback is known of."""
    for one in found.verdicts:
        if one.wins + one.losses + one.alike == 0:
            continue
        evidence = max(one.better, one.worse)
        beside = f"version {one.version} beside {found.version}, by feedback"
        proven = f"e-value {evidence:,.1f} of {len(found.verdicts) / found.level:,.0f}"
        counts = f"{one.wins:,} wins, {one.losses:,} losses, {one.alike:,} alike"
        console.say(f"\n{beside}: {one.verdict.replace('_', ' ')} ({counts}; {proven})")
