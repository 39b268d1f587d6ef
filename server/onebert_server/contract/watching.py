"""The watched versions of a task: their answers beside the reference."""

from datetime import datetime
from typing import Annotated

from onebert_server.contract.declared import Declared, Rule


class Estimate(Declared, frozen=True, kw_only=True):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


class WatchedLabel(Declared, frozen=True, kw_only=True):
    """The answers with one label."""

    label: str
    reference: Annotated[int, Rule("answers with it to the reference's rows")]
    live: Annotated[int, Rule("answers with it in the window")]
    true_share: Annotated[
        Estimate | None, Rule("share of the texts that are of this label, if only the shares of labels changed")
    ] = None


class WatchedScores(Declared, frozen=True, kw_only=True):
    """Answers by their top score."""

    edges: Annotated[list[float], Rule("upper bounds of the bins but the last")]
    reference: list[int]
    live: list[int]
    psi: Annotated[float | None, Rule("population stability index; null below 200 answers, or with one bin")] = None


class WatchedAccuracy(Declared, frozen=True, kw_only=True):
    """Estimates of the share of right answers; each is true only if its condition is."""

    reference: Annotated[float, Rule("of the reference's rows, by their right labels")]
    by_confidence: Annotated[float | None, Rule("mean top score: if scores are right, which a shift can end")] = None
    by_shares: Annotated[Estimate | None, Rule("by the estimated shares: if only the shares of labels changed")] = None


class WatchedVersion(Declared, frozen=True, kw_only=True):
    """One version: the reference of its manifest beside its last full window of at most 500 answers."""

    _always = ("alarm_since", "cause", "p", "scores", "accuracy")

    version: int
    aliases: list[str]
    state: Annotated[
        str,
        Rule(
            "unwatched: it has no reference, or watching is off; collecting: under 200 answers since the start",
            one_of=("unwatched", "collecting", "watched"),
        ),
    ]
    alarm_since: datetime | None = None
    cause: (
        Annotated[str, Rule("of an alarm; null where it cannot be told", one_of=("label_shares", "other"))] | None
    ) = None
    answers: Annotated[int, Rule("answers since the start that can be compared")]
    window: Annotated[int, Rule("answers in the window")]
    rows: Annotated[int, Rule("rows of the reference; 0 without one")]
    split: Annotated[str | None, Rule("the split of these rows, or folds")] = None
    p: Annotated[float | None, Rule("probability of a difference of this size by chance, over labels and scores")] = (
        None
    )
    labels: list[WatchedLabel]
    scores: WatchedScores | None = None
    accuracy: WatchedAccuracy | None = None


class WatchFacts(Declared, frozen=True, kw_only=True):
    """The versions of a task that its aliases mean, as this server has seen them since its start."""

    _document = "WatchResponse"

    task: str
    false_alarms: Annotated[float, Rule("ONEBERT_FALSE_ALARMS")]
    versions: list[WatchedVersion]
