"""Kept answers of a task, and recorded feedback."""

from typing import Annotated

from onebert_server.contract.declared import Declared, Rule


class SamplesFacts(Declared, frozen=True, kw_only=True):
    """How much of a task's answers is kept."""

    _document = "SamplesResponse"
    _always = ("share", "days", "most")

    task: str
    share: Annotated[float | None, Rule("probability with which an answer is kept; null: none is")] = None
    days: Annotated[int | None, Rule("for how long an answer is kept; texts with feedback stay")] = None
    most: Annotated[int | None, Rule("answers that are kept at most, the latest ones")] = None
    kept: Annotated[int, Rule("answers that are kept now")]


class Recorded(Declared, frozen=True, omit_defaults=True):
    """One recorded row; feedback with the same task and identifier replaces it."""

    task: str
    identifier: str
    text_kept: Annotated[bool, Rule("whether the text is kept beside it")]
    new_labels: Annotated[
        list[str] | None, Rule("its labels that the version with the largest share lacks; verdicts leave the row out")
    ] = None


class FeedbackResponse(Declared, frozen=True):
    """The recorded rows, in the order of the items."""

    data: list[Recorded]
