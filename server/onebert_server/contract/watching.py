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
    reference_mean: Annotated[float | None, Rule("mean top score of the reference")] = None
    live_mean: Annotated[
        float | None, Rule("of the window: the share of right answers if scores are right, which a shift can end")
    ] = None
    psi: Annotated[float | None, Rule("population stability index; null below 200 answers, or with one bin")] = None


class WatchedAccuracy(Declared, frozen=True, kw_only=True):
    """The share of right answers."""

    reference: Annotated[float, Rule("of the reference's rows, by their right labels")]
    by_shares: Annotated[Estimate | None, Rule("by the estimated shares: if only the shares of labels changed")] = None


class WatchedVersion(Declared, frozen=True, kw_only=True):
    """One version: its reference beside its last full window of at most 500 answers."""

    _always = ("alarm_since", "cause", "p", "scores", "accuracy", "hears")

    version: int
    aliases: list[str]
    state: Annotated[
        str,
        Rule(
            "unwatched: its answers have no labels of whole texts, or watching is off; learning: its reference, from "
            "1,000 answers; collecting: under 200 answers to compare",
            one_of=("unwatched", "learning", "collecting", "watched"),
        ),
    ]
    alarm_since: datetime | None = None
    cause: (
        Annotated[str, Rule("of an alarm; null where it cannot be told", one_of=("label_shares", "other"))] | None
    ) = None
    answers: Annotated[
        int, Rule("counted since the start: by the version's own rules, to texts that are no repeats")
    ] = 0
    repeats: Annotated[int, Rule("answers left out since the start: their texts were among the 500 before")] = 0
    window: Annotated[int, Rule("answers in the window; while learning, of the 1,000")] = 0
    rows: Annotated[int, Rule("rows of the reference; 0 without one")] = 0
    split: Annotated[
        str | None,
        Rule("the split of these rows; answers: learned; folds: a reference of other models, which is not used"),
    ] = None
    hears: Annotated[
        float | None, Rule("how far a label's share must move to ring at one alarm in 3,000 windows; null: none rings")
    ] = None
    p: Annotated[
        float | None, Rule("probability of a difference of this size by chance, over labels, and scores if not surer")
    ] = None
    surer: Annotated[bool, Rule("scores are only higher than the reference's, which rings no alarm")] = False
    labels: list[WatchedLabel]
    scores: WatchedScores | None = None
    accuracy: WatchedAccuracy | None = None


class WatchFacts(Declared, frozen=True, kw_only=True):
    """The versions of a task that its aliases mean, as this server has seen them since its start."""

    _document = "WatchResponse"

    task: str
    false_alarms: Annotated[float, Rule("ONEBERT_FALSE_ALARMS")]
    versions: list[WatchedVersion]
