"""Versions made of examples, and their improvement."""

from typing import Annotated

from onebert_server.contract.declared import Declared, Rule


class ImprovementFacts(Declared, frozen=True, kw_only=True):
    """How far the training of a task's examples by the default method is, on this server since its start."""

    _document = "ImprovementResponse"
    _always = ("score", "version", "reason")

    task: str
    head: Annotated[int, Rule("version of the exact head on the same examples")]
    state: Annotated[
        str,
        Rule(
            "measuring: in folds, each trained without its rows",
            one_of=("waiting", "training", "measuring", "done", "failed"),
        ),
    ]
    step: Annotated[int, Rule("steps done of this state's training")]
    steps: int
    seconds: Annotated[float, Rule("since the training began")]
    metric: str
    head_score: Annotated[float, Rule("of the exact head, in folds")]
    score: Annotated[float | None, Rule("of the trained version; null until it is done")] = None
    version: Annotated[int | None, Rule("the trained version; null until it is done")] = None
    live: bool
    reason: Annotated[str | None, Rule("why it is not live, or has failed")] = None


class CreatedFacts(Declared, frozen=True, kw_only=True):
    """The version that holds the exact head of the examples, or the vectors of the labels' names."""

    _document = "ExamplesResponse"
    _always = ("score", "improvement")

    task: str
    version: int
    digest: str
    live: bool
    metric: str
    score: Annotated[
        float | None, Rule("in folds: each example answered by a head that was fitted without it; null without any")
    ] = None
    notes: Annotated[list[str], Rule("doubts about the examples and the score")]
    improvement: ImprovementFacts | None = None
