"""Translates a delta's decision for other runtimes: into weights, the activation's name, and rules left to callers."""

from typing import Any

import numpy as np

from onebert_encoder.answering.scores import own_activation
from onebert_store.file.decision import Abstain
from onebert_store.file.delta import HEAD_BIAS, HEAD_WEIGHT, Delta, require_finite
from onebert_store.file.manifest import Manifest, format_for

IN_CONFIG = "decision"
"""The configuration key for rules that callers have to apply themselves."""


def without_temperature(delta: Delta) -> Delta:
    """Folds the temperature into the head's last layer, for the same answers; drops the outdated golden logits.

    Raises:
        NotFinite: a divided weight exceeds float32.
    """
    manifest, decision = delta.manifest, delta.manifest.decision
    if decision is None or decision.temperature is None:
        return delta
    with np.errstate(over="ignore"):
        head = {
            name: delta.tensors[name].astype(np.float32) / np.float32(decision.temperature)
            for name in (HEAD_WEIGHT, HEAD_BIAS)
        }
    require_finite(head)
    abstain = decision.abstain
    if abstain is not None and abstain.energy is not None:
        # energy = -T logsumexp(logits / T); with divided logits the factor T is gone.
        abstain = Abstain(energy=abstain.energy / decision.temperature)
    left = decision.model_copy(update={"temperature": None, "abstain": abstain})
    rest = left if left.model_dump(exclude_none=True) else None
    changed = {"decision": rest, "format": format_for(rest), "golden": None}
    return Delta(manifest.model_copy(update=changed), {**delta.tensors, **head})


def problem_of(manifest: Manifest) -> str | None:
    """`problem_type` of a configuration, which selects a pipeline's activation; None for per-token tasks."""
    if manifest.per_token:
        return None
    named = {"softmax": "single_label_classification", "sigmoid": "multi_label_classification", "none": "regression"}
    return named[own_activation(manifest)]


def left_to_callers(manifest: Manifest) -> dict[str, Any]:
    """The parts of a decision that the model's own files cannot express: thresholds, positives, abstain, window."""
    if manifest.decision is None:
        return {}
    # The token pipeline always applies a softmax; it has no other activation.
    said = {"temperature"} if manifest.per_token else {"temperature", "activation"}
    return manifest.decision.model_dump(exclude_none=True, exclude=said)
