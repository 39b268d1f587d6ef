"""Versions made of examples."""

from typing import Annotated

from onebert_server.contract.declared import Declared, Rule


class CreatedFacts(Declared, frozen=True, kw_only=True):
    """The version that holds the exact head of the examples, or the vectors of the labels' names."""

    _document = "ExamplesResponse"
    _always = ("score",)

    task: str
    version: int
    digest: str
    live: bool
    metric: str
    score: Annotated[
        float | None, Rule("in folds: each example answered by a head that was fitted without it; null without any")
    ] = None
    notes: Annotated[list[str], Rule("doubts about the examples and the score")]
