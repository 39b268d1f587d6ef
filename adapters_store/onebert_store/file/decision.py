"""The decision of a manifest (format 2): how answers are read from logits, if not by the task type's defaults."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from onebert_store.file.fields import Finite, Line, Strict

Activation = Literal["softmax", "sigmoid", "none"]
Reduction = Literal["max", "mean", "union"]
CutRule = Literal["head", "ends", "abstain"]

MIN_WINDOW = 8

# Activations allowed per task type, the default first; a regression answers values and a span task spans.
ACTIVATIONS: Mapping[str, tuple[Activation, ...]] = {
    "single_label": ("softmax", "sigmoid", "none"),
    "multi_label": ("sigmoid", "softmax", "none"),
    "regression": (),
    "token": ("softmax", "none"),
    "span": (),
}

# Reductions of window answers allowed per task type, the default first.
REDUCTIONS: Mapping[str, tuple[Reduction, ...]] = {
    "single_label": ("max", "mean"),
    "multi_label": ("max", "mean"),
    "regression": ("max", "mean"),
    "token": ("union",),
    "span": ("max",),
}

# Task types whose labels may have thresholds.
THRESHOLDS = frozenset({"single_label", "multi_label", "regression"})

# Rules for abstaining allowed per task type.
ABSTAINING: Mapping[str, tuple[str, ...]] = {
    "single_label": ("below", "energy"),
    "multi_label": ("below", "energy"),
    "span": ("below",),
}


# Rules for an input that is too long, allowed per task type, the default first.
CUTS: Mapping[str, tuple[CutRule, ...]] = {
    "single_label": ("head", "ends", "abstain"),
    "multi_label": ("head", "ends", "abstain"),
    "regression": ("head", "ends"),
    "token": ("head",),
    "span": ("head", "abstain"),
}


class Abstain(Strict):
    """When the task says that it does not know: exactly one of the two.

    Attributes:
        below: its best score is a probability below this one.
        energy: -T logsumexp(logits / T) is above this number.
    """

    below: Annotated[Finite, Field(gt=0, le=1)] | None = None
    energy: Finite | None = None

    @model_validator(mode="after")
    def _one_rule(self) -> "Abstain":
        if (self.below is None) == (self.energy is None):
            raise ValueError("abstain has either below or energy")
        return self


class Window(Strict):
    """How a long text is read: in sequences that overlap, whose answers are reduced to one.

    Attributes:
        tokens: of a window, special tokens and the first text of a pair included.
        overlap: tokens that a window shares with the one before it.
        reduction: how one answer is made of theirs.
    """

    tokens: Annotated[int, Field(ge=MIN_WINDOW)]
    overlap: Annotated[int, Field(ge=0)]
    reduction: Reduction

    @model_validator(mode="after")
    def _goes_on(self) -> "Window":
        if 2 * self.overlap > self.tokens:
            raise ValueError("a window's overlap is at most half of its tokens")
        return self


class Decision(Strict):
    """How an answer is read from logits; what is None is as the task type has it.

    Attributes:
        activation: makes scores of logits: `softmax`, `sigmoid`, or `none`, which leaves them as they are.
        temperature: divides the logits before the activation; 0.001 to 1000.
        thresholds: label -> score over which the label is among an answer's `labels`.
        positives: the labels that count as positive, for whoever asks for one risk.
        abstain: when an answer says that it does not know.
        window: how a long text is read; None cuts it.
        cut: the part of a longer input that is read: its beginning (`head`), or half of the tokens from each end
            (`ends`); with `abstain` its beginning, and the answer abstains.
    """

    activation: Activation | None = None
    # Bounded so that divided logits stay finite and distinct.
    temperature: Annotated[Finite, Field(ge=1e-3, le=1e3)] | None = None
    thresholds: Annotated[dict[Line, Finite], Field(min_length=1)] | None = None
    positives: Annotated[list[Line], Field(min_length=1)] | None = None
    abstain: Abstain | None = None
    window: Window | None = None
    cut: CutRule | None = None

    @property
    def abstains(self) -> bool:
        """Whether some answers may abstain."""
        return self.abstain is not None or self.cut == "abstain"

    @model_validator(mode="after")
    def _says_something(self) -> "Decision":
        if not self.model_dump(exclude_none=True):
            raise ValueError("a decision says something, or is left out")
        return self


def check_decision(decision: Decision, task_type: str, labels: Sequence[str], max_length: int) -> None:
    """Raises ValueError with one sentence, which names no label, if the decision does not fit its task."""
    allowed = ACTIVATIONS[task_type]
    activation = decision.activation or (allowed[0] if allowed else None)
    if decision.activation is not None and activation not in allowed:
        raise ValueError(f"activation: a {task_type} task has {' or '.join(allowed) or 'none of its own'}")
    if decision.temperature is not None and (task_type == "regression" or activation == "none"):
        raise ValueError("temperature: there is no activation that it could be for")
    _check_labels(decision, task_type, activation, labels)
    if decision.abstain is not None:
        (rule,) = decision.abstain.model_dump(exclude_none=True)
        if rule not in ABSTAINING.get(task_type, ()):
            raise ValueError(f"abstain: a {task_type} task has no rule by {rule}")
        if rule == "below" and activation == "none":
            raise ValueError("abstain: below is a probability, and this task has none")
    _check_length(decision, task_type, max_length)


def _check_length(decision: Decision, task_type: str, max_length: int) -> None:
    if decision.window is not None:
        if decision.window.tokens > max_length:
            raise ValueError(f"window: its tokens are over max_length {max_length}")
        if decision.window.reduction not in REDUCTIONS[task_type]:
            raise ValueError(f"window: a {task_type} task is reduced by {' or '.join(REDUCTIONS[task_type])}")
        if decision.cut is not None:
            raise ValueError("cut: a task with a window cuts nothing")
    if decision.cut is not None and decision.cut not in CUTS[task_type]:
        raise ValueError(f"cut: a {task_type} task has {' or '.join(CUTS[task_type])}")


def _check_labels(decision: Decision, task_type: str, activation: str | None, labels: Sequence[str]) -> None:
    known = set(labels)
    thresholds, positives = decision.thresholds or {}, decision.positives or []
    if thresholds and task_type not in THRESHOLDS:
        raise ValueError(f"thresholds: the labels of a {task_type} task have none")
    if not known.issuperset(thresholds):
        raise ValueError("thresholds: a key is not a label")
    if activation in ("softmax", "sigmoid") and not all(0 <= threshold <= 1 for threshold in thresholds.values()):
        raise ValueError("thresholds: a value is not a probability")
    # A positive label without a threshold is never selected, so a caller that asks for the positives would not see it.
    if thresholds and task_type != "multi_label" and not set(positives) <= thresholds.keys():
        raise ValueError("thresholds: a positive label has no threshold")
    if positives and task_type == "span":
        raise ValueError("positives: a span task has no labels that could be positive")
    if not known.issuperset(positives):
        raise ValueError("positives: an entry is not a label")
    if len(set(positives)) != len(positives):
        raise ValueError("positives: an entry is repeated")
    if task_type == "single_label" and len(positives) == len(known):
        raise ValueError("positives: one label of a single_label task is not positive")
