"""What a request may ask of an answer: what it says is in place of what the task's manifest says."""

from dataclasses import dataclass

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
    """

    top_k: int | None = None
    activation: Activation | None = None
    threshold: float | None = None
    window: AskedWindow | None = None
    whole: bool = False
    energy: bool = False
    only_scores: bool = False


PLAIN = Asked()
"""Nothing is asked: each task answers as it is."""
