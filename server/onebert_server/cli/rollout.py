"""The command `rollout`: a split of an alias's requests between versions, and shadows."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

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
from onebert_server.contract.moves import meaning
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_store.command import console
from onebert_store.errors import OneBertError
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import LIVE

# Pairs of labels shown for a version and its shadow.
PAIRS_SHOWN = 8
NONE = "none"

T = TypeVar("T")


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
        agreements = _installed(client.shadows, task, alias) or ()
        verdicts = _installed(client.verdicts, task, alias)
    if as_json:
        judged = as_dict(verdicts)["verdicts"] if verdicts else []
        console.print_json(
            as_dict(place) | {"shadows": [as_dict(agreement) for agreement in agreements], "verdicts": judged}
        )
        return
    console.say(f"{task}@{alias}: {meaning(place.target, place.version)}")
    _show(agreements)
    if verdicts:
        _show_verdicts(verdicts)


def _installed(ask: Callable[[str, str], T], task: str, alias: str) -> T | None:
    """Asks a route of an extension; returns None if the server does not have it."""
    try:
        return ask(task, alias)
    except OneBertError as error:
        if error.code != "not-found":
            raise
        return None


def _changed(place: AliasPlace, split: str | None, sticky: str | None, shadow: Sequence[str] | None) -> TargetFacts:
    """The present meaning with the parts that are given in place of its own; `none` takes a part away."""
    to = place.target or TargetFacts({str(place.version): 100})
    shares, key, shadows = to.split, to.sticky, to.shadow
    if split:
        shares = {str(number): share for number, share in _numbers("--split", split.split(","), None)}
    if sticky:
        key = None if sticky == NONE else sticky
    if shadow:
        shadows = [ShadowShare(*share) for share in _numbers("--shadow", shadow, 100)] if [*shadow] != [NONE] else None
    return TargetFacts(shares, key, shadows)


def _numbers(option: str, values: Sequence[str], default: int | None) -> list[tuple[int, int]]:
    """Reads `N=PERCENT`, or `N` with a default."""
    pairs = []
    for value in values:
        read = re.fullmatch(r"\s*([1-9]\d{0,8})(?:=(\d{1,3}))?\s*", value)
        if read is None or (read[2] is None and default is None):
            form = "VERSION=PERCENT" if default is None else "VERSION or VERSION=PERCENT"
            raise typer.BadParameter(f"{option}: {printable(value, 40)!r} is not {form}")
        pairs.append((int(read[1]), int(read[2] or default or 0)))
    return pairs


def _show(agreements: Sequence[ShadowAgreement]) -> None:
    for agreement in agreements:
        share = (
            f"{agreement.same / agreement.answers:.1%} of {agreement.answers:,} answers alike"
            if agreement.answers
            else "no answers yet"
        )
        left_out = f", {agreement.left_out:,} left out" if agreement.left_out else ""
        console.say(f"\nversion {agreement.version} and shadow {agreement.shadow}: {share}{left_out}")
        apart = [pair for pair in agreement.labels if pair.label != pair.shadow][:PAIRS_SHOWN]
        if apart:
            heads = (f"version {agreement.version}", f"shadow {agreement.shadow}", "answers")
            cells = ((printable(pair.label), printable(pair.shadow), f"{pair.answers:,}") for pair in apart)
            console.show(heads, cells, heads[2:])


def _show_verdicts(response: VerdictsResponse) -> None:
    """Prints a line for each candidate that feedback is known of."""
    for verdict in response.verdicts:
        if verdict.wins + verdict.losses + verdict.alike == 0:
            continue
        evidence = max(verdict.better, verdict.worse)
        beside = f"version {verdict.version} beside {response.version}, by feedback"
        proven = f"e-value {evidence:,.1f} of {len(response.verdicts) / response.level:,.0f}"
        counts = f"{verdict.wins:,} wins, {verdict.losses:,} losses, {verdict.alike:,} alike"
        console.say(f"\n{beside}: {verdict.verdict.replace('_', ' ')} ({counts}; {proven})")
