"""Options of a request that override the task's manifest."""

from dataclasses import dataclass
from typing import NamedTuple

from onebert_store.file.decision import Activation, Reduction


@dataclass(frozen=True)
class AskedWindow:
    """Windows that the request sets, as in a manifest; None is the task's `max_length` or default reduction."""

    tokens: int | None = None
    overlap: int = 0
    reduction: Reduction | None = None


class Wording(NamedTuple):
    """Bounds the reply's bytes per shown score, by the client API's format, before the answer is computed.

    Attributes:
        names: how many times the reply repeats the label.
        beside: bytes of JSON per score besides the label: by default a number with its separators.
    """

    names: int = 1
    beside: int = 26


OWN = Wording()
"""The reply is a list of labels with scores."""
OBJECTS = Wording(1, 48)
"""The reply has one JSON object per label, with its score."""
NUMBERS = Wording(0)
"""The reply has the scores alone, in the order of the labels."""
FINDINGS = Wording(0, 0)
"""The reply lists only labels over a threshold; their number is unknown before the computation."""


@dataclass(frozen=True)
class Asked:
    """Options for the answers of one request; None means the task's own value.

    Attributes:
        top_k: number of scores, or of spans, best first; None is all scores, or one span.
        activation: turns logits into scores; `none` returns the logits, without the task's temperature.
        threshold: a label with a higher score is selected; in the units of the returned scores.
        whole: read a text whose end would be cut in windows. A task that says what it cuts is obeyed.
        energy: return the energy as well.
        only_scores: the caller reads the scores only, so thresholds are not evaluated.
        wording: bounds the reply's size.
    """

    top_k: int | None = None
    activation: Activation | None = None
    threshold: float | None = None
    window: AskedWindow | None = None
    whole: bool = False
    energy: bool = False
    only_scores: bool = False
    wording: Wording = OWN

    @property
    def of_shadows(self) -> "Asked":
        """The options for the shadows: the same windows. The caller's other options would hide differences."""
        return Asked(window=self.window, whole=self.whole)


PLAIN = Asked()
"""No option set: each task answers by its manifest."""
