"""The watched versions of a task: their answers beside the reference."""

from datetime import datetime
from typing import Annotated

from onebert_server.contract.declared import Declared, Rule


class WatchedLabel(Declared, frozen=True, kw_only=True):
    """The answers with one label."""

    label: str
    reference: Annotated[int, Rule("answers with it to the reference's rows")]
    live: Annotated[int, Rule("answers with it in the window")]


class WatchedScores(Declared, frozen=True, kw_only=True):
    """Answers by their top score."""

    edges: Annotated[list[float], Rule("upper bounds of the bins but the last")]
    reference: list[int]
    live: list[int]
    reference_mean: Annotated[float | None, Rule("mean top score of the reference")] = None
    live_mean: Annotated[float | None, Rule("of the window")] = None


class WatchedVersion(Declared, frozen=True, kw_only=True):
    """One version: its reference beside its last full window of at most 500 answers."""

    _always = ("alarm_since", "p", "scores", "hears")

    version: int
    aliases: list[str]
    state: Annotated[
        str,
        Rule(
            "unwatched: its answers have no labels of whole texts, or watching is off; learning: its reference, from "
            "1,000 answers; collecting: under 100 answers to compare",
            one_of=("unwatched", "learning", "collecting", "watched"),
        ),
    ]
    alarm_since: datetime | None = None
    answers: Annotated[
        int, Rule("counted since the start: by the version's own rules, to texts that are no repeats")
    ] = 0
    repeats: Annotated[int, Rule("answers left out since the start: their texts were among the 500 before")] = 0
    window: Annotated[int, Rule("answers in the window; while learning, of the 1,000")] = 0
    rows: Annotated[int, Rule("rows of the reference; 0 without one")] = 0
    split: Annotated[str | None, Rule("the split of these rows; answers: learned")] = None
    hears: Annotated[
        float | None, Rule("how far a label's share must move to ring at one alarm in 3,000 windows; null: none rings")
    ] = None
    p: Annotated[
        float | None, Rule("probability that chance moves some label this far, or makes scores this much less sure")
    ] = None
    labels: list[WatchedLabel]
    scores: WatchedScores | None = None


class WatchFacts(Declared, frozen=True, kw_only=True):
    """The versions of a task that its aliases mean, as this server has seen them since its start."""

    _document = "WatchResponse"

    task: str
    false_alarms: Annotated[float, Rule("ONEBERT_FALSE_ALARMS")]
    versions: list[WatchedVersion]
