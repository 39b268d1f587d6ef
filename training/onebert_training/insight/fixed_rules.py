"""Thresholds and positive labels that a user states: written into a decision as they are, without any rows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onebert_encoder.answering.scores import DEFAULT_THRESHOLD, own_activation
from onebert_store.errors import InvalidSettings
from onebert_store.file.decision import THRESHOLDS, Decision
from onebert_store.file.manifest import Manifest
from onebert_store.file.strict_json import printable
from onebert_store.suggestion import suggestion
from onebert_training.data.checks import listed, positives_of


@dataclass(frozen=True)
class FixedRules:
    """A user's statements about a task's labels; both are empty by default, and change nothing then.

    Attributes:
        thresholds: label -> the score over which an answer has the label.
        positives: the labels that count as positive, in place of the file's.
    """

    thresholds: Mapping[str, float] = field(default_factory=dict)
    positives: Sequence[str] = ()

    def __bool__(self) -> bool:
        return bool(self.thresholds or self.positives)

    def decided(self, manifest: Manifest) -> tuple[Decision | None, list[str]]:
        """The manifest's decision with these rules, and notes on thresholds that follow from them."""
        decided = manifest.decision.model_dump(exclude_none=True) if manifest.decision else {}
        notes: list[str] = []
        if self.positives:
            decided["positives"] = list(self.positives)
        thresholds = {**decided.get("thresholds", {}), **self.thresholds}
        if thresholds and manifest.task_type != "multi_label":
            # Without any threshold a positive label is flagged over the usual one; with one, it needs its own.
            usual = DEFAULT_THRESHOLD[own_activation(manifest)]
            if bare := [label for label in decided.get("positives", ()) if label not in thresholds]:
                thresholds |= dict.fromkeys(bare, usual)
                notes.append(f"positive labels without a threshold get the usual {usual:g}: {listed(bare)}")
        if thresholds:
            decided["thresholds"] = thresholds
        return (Decision(**decided) if decided else None), notes

    @property
    def facts(self) -> dict[str, Any]:
        """For the manifest's `training` and `--json`."""
        stated = {"thresholds": dict(self.thresholds), "positives": list(self.positives)}
        return {name: value for name, value in stated.items() if value}


def fixed_rules(thresholds: Sequence[str], positive: str | None, manifest: Manifest) -> FixedRules:
    """Parses `--threshold LABEL=SCORE` and `--positive a,b` for a task; raises InvalidSettings with one sentence."""
    if thresholds and manifest.task_type not in THRESHOLDS:
        raise InvalidSettings(f"--threshold: the labels of a {manifest.task_type} task have none")
    if positive is not None and manifest.task_type == "span":
        raise InvalidSettings("--positive: a span task has no labels that could be positive")
    scores = dict[str, float]()
    for option in thresholds:
        label, score = _threshold(option, manifest)
        if label in scores:
            raise InvalidSettings(f"--threshold: {printable(label, 40)} has two")
        scores[label] = score
    positives = positives_of(positive, manifest.labels)
    if manifest.task_type == "single_label" and len(positives) == len(manifest.labels):
        raise InvalidSettings("--positive: one label of a single_label task is not positive")
    return FixedRules(scores, positives)


def _threshold(option: str, manifest: Manifest) -> tuple[str, float]:
    label, equals, number = option.rpartition("=")  # a label may have = in its name
    if not equals:
        raise InvalidSettings(f"--threshold {printable(option, 40)}: write LABEL=SCORE, such as spam=0.8")
    if label not in manifest.labels:
        hint = suggestion(label, manifest.labels) or f"; it has {listed(manifest.labels)}"
        raise InvalidSettings(f"--threshold {printable(label, 40)} is no label of the task{hint}")
    try:
        score = float(number)
    except ValueError:
        score = math.nan
    probability = own_activation(manifest) != "none"
    if not (0 <= score <= 1 if probability else math.isfinite(score)):
        a_score = "a probability from 0 to 1" if probability else "a number"
        raise InvalidSettings(f"--threshold {printable(option, 40)}: a score of this task is {a_score}")
    return label, score
