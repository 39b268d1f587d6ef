"""One task on the terminal: everything in force, how its shadows and shares do, its versions, its last moves."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from onebert_server.cli.audit import TIME, time_of
from onebert_server.cli.compare.measured import lacking, measure
from onebert_server.cli.status.picture import Picture, VersionLine
from onebert_server.cli.status.tables import alarm_text, score_text, share_text
from onebert_server.client import AliasInForce, ShadowAgreement, TaskInForce, VerdictsResponse
from onebert_server.contract.moves import why
from onebert_store.command import console
from onebert_store.file.strict_json import printable
from onebert_store.registry.names import LIVE

# Pairs of labels shown for a version and its shadow.
PAIRS_SHOWN = 8


def shown(picture: Picture) -> RenderableType:
    """The whole picture of a task."""
    status = picture.status
    parts: list[RenderableType] = [console.filled(console.facts(), _facts(status))]
    parts += [part for agreement in picture.shadows for part in _agreement(agreement)]
    parts += [Text(line) for judged in picture.verdicts for line in _verdicts(judged)]
    parts += [Text(), _versions(picture)]
    parts += [Text(note) for line in picture.versions for note in lacking(line.version, line.training)]
    if status.moves:
        rows = ((time_of(move.at), printable(move.who), move.alias, move.what, why(move)) for move in status.moves)
        parts += [Text(), console.filled(console.table(TIME, "who", "alias", "move", "reason"), rows)]
    if status.next:
        parts += [Text(), Text(f"next: {status.next}")]
    return Group(*parts)


def _facts(status: TaskInForce) -> Iterator[tuple[str, str]]:
    yield "task", status.name + (f" on {printable(status.base)}" if status.base else "")
    for place in status.aliases:
        yield place.alias, _place(place) + _since(status, place.alias)
    if LIVE not in [place.alias for place in status.aliases]:
        yield LIVE, "no version"
    rate = "" if status.a_minute is None else f"{status.a_minute:.1f} requests a minute"
    p95 = "" if status.p95 is None else f", p95 {1000 * status.p95:.0f} ms"
    shares = ((status.abstained, "abstained"), (status.cut, "about cut texts"))
    answers = ", ".join(f"{share_text(share)} {what}" for share, what in shares if share)
    gate = (
        status.gate
        and f"of {', '.join(status.gate.aliases or ())}, checks: {status.gate.checks}, rows: {status.gate.rows:,}"
    )
    yield from (
        (name, printable(text, 500))
        for name, text in (
            ("score", score_text(status.score)),
            ("alarm", f"{alarm_text(status.alarm)}, since {time_of(status.alarm.since)}" if status.alarm else ""),
            (
                "unavailable",
                ", ".join(f"{number}: {printable(why, 200)}" for number, why in status.unavailable.items()),
            ),
            ("traffic", rate + p95),
            ("answers", answers),
            ("gate", gate or ""),
            ("decision", _decision(status.decision or {})),
            ("kept", f"{share_text(status.kept.share)} of answers, {status.kept.days} days" if status.kept else ""),
            ("feedback", f"{status.feedback:,} rows since the live version" if status.feedback else ""),
            ("new labels", ", ".join(f"{name} {rows:,}" for name, rows in (status.new_labels or {}).items())),
        )
        if text
    )


def _since(status: TaskInForce, alias: str) -> str:
    """The time since which an alias has its meaning, if the last moves have it."""
    return next((f", since {time_of(move.at)}" for move in status.moves if move.alias == alias), "")


def _place(place: AliasInForce) -> str:
    return place.words + (f", before: {place.previous_words}" if place.previous_words else "")


def _decision(decision: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {_value(value)}" for name, value in decision.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _versions(picture: Picture) -> RenderableType:
    """The table of versions; their measure is its head if all of them have the same."""
    lines = picture.versions
    measures = {measure(line.training) for line in lines if "score" in line.training}
    head = printable(measures.pop()) if len(measures) == 1 else "score"
    broken = any(line.state for line in lines)

    def row(line: VersionLine) -> tuple[str, ...]:
        known = line.training
        name = printable(f"{measure(known)} ") if head == "score" and "score" in known else ""
        return (
            str(line.version),
            ", ".join(_aliases(picture.status.aliases, line.version)),
            f"{name}{known['score']:.4f}" if "score" in known else "–",
            printable(str(known.get("data", "–"))),
            printable(line.method or "–"),
            "–" if line.labels is None else str(line.labels),
            f"{line.created_at:%Y-%m-%d}",
            *((printable(line.state),) if broken else ()),
        )

    columns = ("version", "aliases", head, "data", "method", "labels", "created", *(("state",) if broken else ()))
    return console.filled(console.table(*columns, numbers=("version", head, "labels")), map(row, lines))


def _aliases(places: Sequence[AliasInForce], version: int) -> Iterator[str]:
    for place in places:
        if version == place.version or (place.target and str(version) in place.target.split):
            yield place.alias


def _agreement(agreement: ShadowAgreement) -> Iterator[RenderableType]:
    share = (
        f"{agreement.same / agreement.answers:.1%} of {agreement.answers:,} answers alike"
        if agreement.answers
        else "no answers yet"
    )
    left_out = f", {agreement.left_out:,} left out" if agreement.left_out else ""
    yield Text(f"\nversion {agreement.version} and shadow {agreement.shadow}: {share}{left_out}")
    apart = [pair for pair in agreement.labels if pair.label != pair.shadow][:PAIRS_SHOWN]
    if apart:
        heads = (f"version {agreement.version}", f"shadow {agreement.shadow}", "answers")
        cells = ((printable(pair.label), printable(pair.shadow), f"{pair.answers:,}") for pair in apart)
        yield console.filled(console.table(*heads, numbers=heads[2:]), cells)


def _verdicts(response: VerdictsResponse) -> Iterator[str]:
    for verdict in response.verdicts:
        if verdict.wins + verdict.losses + verdict.alike == 0:
            continue
        evidence = max(verdict.better, verdict.worse)
        beside = f"version {verdict.version} beside {response.version}, by feedback"
        proven = f"e-value {evidence:,.1f} of {len(response.verdicts) / response.level:,.0f}"
        counts = f"{verdict.wins:,} wins, {verdict.losses:,} losses, {verdict.alike:,} alike"
        yield f"\n{beside}: {verdict.verdict.replace('_', ' ')} ({counts}; {proven})"
