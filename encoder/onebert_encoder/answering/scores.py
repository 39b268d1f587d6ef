"""Computes scores, thresholds and abstention from logits, for one text or for a batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_store.file.decision import ACTIVATIONS, Activation, CutRule, Decision
from onebert_store.file.manifest import TaskType

Array = np.ndarray[Any, np.dtype[Any]]
Logits = np.ndarray[Any, np.dtype[np.float32]]
"""Logits of one sequence: [labels], or [tokens, labels] for a per-token task."""

DEFAULT_THRESHOLD: Mapping[Activation, float] = {"softmax": 0.5, "sigmoid": 0.5, "none": 0.0}
"""Threshold of a multi-label task's label if the manifest sets no other."""


class Outputs(Protocol):
    """The manifest fields that answers depend on."""

    @property
    def task_type(self) -> TaskType: ...

    @property
    def labels(self) -> Sequence[str]: ...

    @property
    def decision(self) -> Decision | None: ...


class Scored(NamedTuple):
    """Scores of whole texts.

    Attributes:
        scores: [..., labels] float64.
        selected: [..., labels], the label is over its threshold; None if the task has no thresholds.
        abstained: [...]; None if the task has no abstain rule.
        energy: [...], -T logsumexp(logits / T), high if every logit is low; None unless requested.
    """

    scores: Array
    selected: Array | None = None
    abstained: Array | None = None
    energy: Array | None = None


Reduce = Callable[[Array], Array]
"""Reduces the windows of a text, the second-to-last dimension, to one."""


def score(
    logits: Array,
    outputs: Outputs,
    asked: Asked = PLAIN,
    reduce: Reduce | None = None,
    truncated: Sequence[bool] | None = None,
) -> Scored:
    """Scores of whole texts from logits [..., labels], float64; `reduce` takes windows, `asked` overrides.

    `truncated`: [...], whether each text was cut; None if none was.
    """
    activation = own_activation(outputs)
    plain = asked.activation is None and asked.threshold is None and not (asked.energy or asked.only_scores)
    if plain and outputs.decision is None and reduce is None:
        scores = ACTIVATE[activation](logits)
        return Scored(scores, scores > DEFAULT_THRESHOLD[activation] if outputs.task_type == "multi_label" else None)
    reduce = reduce or (lambda numbers: numbers)
    scaled = tempered(logits, outputs.decision)
    decided = scores = reduce(ACTIVATE[activation](scaled))
    if asked.activation is not None and asked.activation != activation:
        scores = reduce(ACTIVATE[asked.activation](logits if asked.activation == "none" else scaled))
    if asked.only_scores:
        return Scored(scores)
    selected = None
    if asked.threshold is not None:
        selected = scores > asked.threshold
    elif (thresholds := thresholds_of(outputs)) is not None:
        selected = decided > thresholds
    energy = energy_of(logits, outputs.decision, reduce) if asked.energy else None
    return Scored(scores, selected, _abstained(logits, decided, outputs.decision, reduce, truncated), energy)


def own_activation(outputs: Outputs) -> Activation:
    """The activation of a task on whole texts or tokens, unless the request sets another."""
    if outputs.decision is not None and outputs.decision.activation is not None:
        return outputs.decision.activation
    return next(iter(ACTIVATIONS[outputs.task_type]), "none")


def thresholds_of(outputs: Outputs) -> Array | None:
    """[labels], each label's threshold, infinite if never selected; None if the task has no thresholds."""
    thresholds = outputs.decision.thresholds if outputs.decision is not None else None
    multi_label = outputs.task_type == "multi_label"
    if thresholds is None and not multi_label:
        return None
    default = DEFAULT_THRESHOLD[own_activation(outputs)] if multi_label else np.inf
    return np.array([(thresholds or {}).get(label, default) for label in outputs.labels])


def temperature_of(decision: Decision | None) -> float:
    """The task's temperature; 1 if it has none."""
    return (decision.temperature if decision is not None else None) or 1.0


def tempered(logits: Array, decision: Decision | None) -> Array:
    """Logits divided by the task's temperature."""
    return logits if decision is None or decision.temperature is None else logits / decision.temperature


def cut_rule(outputs: Outputs) -> CutRule:
    """The rule by which the task cuts an input that is too long."""
    return (outputs.decision.cut if outputs.decision is not None else None) or "head"


def _abstained(
    logits: Array, decided: Array, decision: Decision | None, reduce: Reduce, truncated: Sequence[bool] | None
) -> Array | None:
    if decision is None or not decision.abstains:
        return None
    cut = np.zeros(decided.shape[:-1], dtype=bool)
    if decision.cut == "abstain" and truncated is not None:
        cut[...] = truncated
    if decision.abstain is None:
        return cut
    if decision.abstain.below is not None:
        return np.asarray(cut | (decided.max(axis=-1) < decision.abstain.below))
    return np.asarray(cut | (energy_of(logits, decision, reduce) > decision.abstain.energy))


def energy_of(logits: Array, decision: Decision | None, reduce: Reduce = lambda numbers: numbers) -> Array:
    """[...], the energy -T logsumexp(logits / T) of each text (Liu et al. 2020); T is the task's temperature."""
    temperature = temperature_of(decision)
    # Windows are reduced on the negative energy: like a score, it is high when the model is sure.
    sure = temperature * _logsumexp(logits / temperature)
    return np.asarray(-reduce(sure)[..., 0])


def softmax(logits: Array) -> Array:
    """Softmax over the last dimension."""
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=-1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    """Elementwise sigmoid."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))


def log_softmax(logits: Array) -> Array:
    """Logarithm of the softmax over the last dimension."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def _logsumexp(logits: Array) -> Array:
    highest = logits.max(axis=-1, keepdims=True)
    return np.asarray(highest + np.log(np.exp(logits - highest).sum(axis=-1, keepdims=True)))


ACTIVATE: Mapping[Activation, Callable[[Array], Array]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits,
}
