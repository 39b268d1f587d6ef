"""What a request may ask of an answer: what it says is in place of what the task's manifest says."""

from dataclasses import dataclass
from typing import NamedTuple

from onebert_store.file.decision import Activation, Reduction


@dataclass(frozen=True)
class AskedWindow:
    """Windows for any task; see Window of a manifest.

    Attributes:
        tokens: of a window; None is as many as the task takes.
        overlap: tokens that a window shares with the one before it.
        reduction: None is the task type's own.
    """

    tokens: int | None = None
    overlap: int = 0
    reduction: Reduction | None = None


class Wording(NamedTuple):
    """How much a client's words say of a label whose score is shown; it bounds an answer before it is computed.

    Attributes:
        names: how often the label is named.
        beside: bytes of JSON beside the name: of a number with its separators, unless a client's words say more.
    """

    names: int = 1
    beside: int = 26


OWN = Wording()
"""A list of labels with their scores."""
OBJECTS = Wording(1, 48)
"""Each label an object of its own, with its score."""
NUMBERS = Wording(0)
"""Scores alone, in the order of the labels."""
FINDINGS = Wording(0, 0)
"""Only what is over a threshold is said, which nobody knows before it is computed."""


@dataclass(frozen=True)
class Asked:
    """What is asked of the answers of one request; None is what the task says.

    Attributes:
        top_k: how many scores, best first, or spans the caller reads; None is all scores, or one span.
        activation: makes scores of logits; `none` gives the logits themselves, without the task's temperature.
        threshold: score over which a label is selected, in the units of the scores that are given.
        window: how long texts are read.
        whole: whether a text that would be cut is read in windows, where neither `window` nor the task says in which.
        energy: whether the answer says its energy.
        only_scores: whether nobody reads more of the answer than its scores: no label is held against its threshold.
        wording: how much is said of each score.
    """

    top_k: int | None = None
    activation: Activation | None = None
    threshold: float | None = None
    window: AskedWindow | None = None
    whole: bool = False
    energy: bool = False
    only_scores: bool = False
    wording: Wording = OWN


PLAIN = Asked()
"""Nothing is asked: each task answers as it is."""
