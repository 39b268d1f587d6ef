"""Writes a decision into a delta with what it follows from, and meets an earlier version's targets on new rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onebert_encoder.base.base import Base
from onebert_store.errors import InvalidData
from onebert_store.file.card import Decide, card_of
from onebert_store.file.decision import Decision
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import Manifest, format_for
from onebert_training.data.checks import listed
from onebert_training.data.examples import Split
from onebert_training.fit.features import predict_delta, tokenize
from onebert_training.fit.reference import reference_of, with_reference
from onebert_training.fit.temperature import gold_flags, temperature_folds
from onebert_training.insight.calibration import NEVER, Calibrated, Target, calibrate, targets_of
from onebert_training.insight.evaluated import counted_logits
from onebert_training.insight.fixed_rules import FixedRules
from onebert_training.tasks.objectives import OBJECTIVES

# Splits whose scores a manifest records.
MEASURED = ("validation", "test")


def with_decision(delta: Delta, values: Mapping[str, Any], facts: Mapping[str, Any], decide: Decide) -> Delta | None:
    """The delta with the new decision, its origin and its card; None if decision and card are unchanged.

    Scores that thresholds or abstentions change are gone; `remeasured` adds the scores of rows that are there.
    """
    # Tensors and golden logits stay the same. Folding the temperature into the head would change every number of it,
    # and hide that both versions compute the same.
    decision = Decision(**values) if values else None
    manifest, card = delta.manifest, card_of(delta.manifest)
    if decision == manifest.decision and decide == card.decide:
        return None
    why: dict[str, Any] = {"of": delta.digest}
    if "data" not in facts and isinstance(earlier := manifest.training.get("calibration"), dict):
        why = {**earlier, **why}  # what was fitted stays
    why |= {name: facts[name] for name in ("data", "split", "rows", "stated") if name in facts}
    for name in ("temperature", "thresholds", "abstain"):
        if name in facts:
            why[name] = {key: value for key, value in facts[name].items() if key != "labels"}
    train = card.train
    if train is not None and (positives := facts.get("stated", {}).get("positives")):
        train = {**train, "positive": ",".join(positives)}
    card = card.model_copy(update={"train": train, "decide": decide})
    # Which labels are positive changes no answer that the reference and the scores count.
    same_answers = _values(decision) | {"positives": 0} == _values(manifest.decision) | {"positives": 0}
    abstains = any(each is not None and each.abstains for each in (decision, manifest.decision))
    counts_change = not same_answers and (manifest.task_type == "multi_label" or abstains)
    outdated = (*MEASURED, "folds") if counts_change else ()
    training = {name: value for name, value in manifest.training.items() if name not in ("settings", *outdated)}
    reference = manifest.reference if same_answers else None
    return delta.with_manifest(
        format=format_for(decision, manifest.head, reference),
        decision=dict(values) or None,
        training={**training, "calibration": why, "card": card.dump()},
        reference=reference and reference.model_dump(),
    )


def _values(decision: Decision | None) -> dict[str, Any]:
    return decision.model_dump(exclude_none=True) if decision else {}


def decide_after(before: Decide, targets: Sequence[Target], states: bool) -> Decide:
    """The origin of a decision after a calibration: a target replaces the one of its kind, met or not.

    Args:
        states: whether thresholds were stated, which replaces a target of thresholds, too.
    """
    replaced = {target.is_coverage for target in targets} | ({False} if states else set())
    stay = [target for target in before.targets if targets_of([target])[0].is_coverage not in replaced]
    lacks = {target: why for target, why in before.lacks.items() if target in stay}
    return Decide(targets=[*stay, *map(str, targets)], lacks=lacks)


def repeat_decision(delta: Delta, earlier: Manifest, base: Base, splits: Mapping[str, Split]) -> Delta:
    """Gives a new delta an earlier version's stated thresholds and its windows, and meets its targets anew.

    The card has the targets that the validation rows are too few for, or that there are no such rows for.

    Args:
        delta: has the positive labels and the cut of its own settings.
        splits: the rows of the training.
    """
    targets, held_out = targets_of(card_of(earlier).decide.targets), splits.get("validation")
    decision, before = _values(delta.manifest.decision), _values(earlier.decision)
    if "window" in before and before["window"]["tokens"] <= delta.manifest.max_length:
        decision = {name: value for name, value in decision.items() if name != "cut"} | {"window": before["window"]}
    if not any(target.is_coverage for target in targets) and "below" in before.get("abstain", {}):
        decision |= {"abstain": before["abstain"]}
    if all(target.is_coverage for target in targets):
        stated = {label: each for label, each in before.get("thresholds", {}).items() if label in delta.manifest.labels}
        with_window = delta.manifest.model_copy(update={"decision": Decision(**decision) if decision else None})
        decision = _values(FixedRules(stated).decided(with_window)[0])
    lacks, facts = dict.fromkeys(map(str, targets), "no rows were held out"), dict[str, Any]()
    if targets and held_out is not None:
        calibrated, lacks = _met(delta, decision, targets, base, held_out)
        lacks |= _lost(before.get("thresholds", {}), calibrated)
        decision = calibrated.decision
        recorded = delta.manifest.training["data"]
        data = {"name": recorded["name"], "digest": recorded["measured"]["validation"]}
        facts = {"data": data, "split": "validation", "rows": len(held_out), **calibrated.facts}
    decide = Decide(targets=list(map(str, targets)), lacks={target: why[:256] for target, why in lacks.items()})
    new_delta = with_decision(delta, decision, facts, decide)
    return delta if new_delta is None else remeasured(new_delta, base, splits)


def _met(
    delta: Delta, decision: Mapping[str, Any], targets: Sequence[Target], base: Base, rows: Split
) -> tuple[Calibrated, dict[str, str]]:
    """The calibration on held-out rows by the targets that they can promise, and why not by the others."""
    manifest = delta.manifest.model_copy(update={"decision": Decision(**decision) if decision else None})
    met, lacks = list[Target](), dict[str, str]()
    tokens = tokenize(base, manifest, rows.texts)
    logits = np.stack(predict_delta(base, delta, tokens)).astype(np.float64)
    gold, truncated = gold_flags(rows.gold, len(manifest.labels)), np.array([text.truncated for text in tokens])
    fold = temperature_folds(rows, manifest.task_type)

    def calibrated(by: Sequence[Target]) -> Calibrated:
        return calibrate(logits, gold, manifest, by, truncated=truncated, fold=fold)

    for target in targets:
        try:
            calibrated([*met, target])
            met.append(target)
        except InvalidData as error:
            lacks[str(target)] = error.detail
    return calibrated(met), lacks


def _lost(before: Mapping[str, float], calibrated: Calibrated) -> dict[str, str]:
    """The target of thresholds if a label that the earlier version selects is never selected now."""
    fitted = calibrated.facts.get("thresholds", {})
    never = [each["label"] for each in fitted.get("labels", ()) if each["threshold"] >= NEVER]
    lost = [label for label in never if before.get(label, NEVER) < NEVER]
    return {fitted["target"]: f"these labels are never selected: {listed(lost)}"} if lost else {}


def remeasured(delta: Delta, base: Base, splits: Mapping[str, Split]) -> Delta:
    """The delta with a reference of validation rows, and the scores of `MEASURED` splits that it lacks."""
    manifest = delta.manifest
    for name in [name for name in MEASURED if name in splits]:
        examples = splits[name]
        tokens = tokenize(base, manifest, examples.texts)
        logits = predict_delta(base, delta, tokens)
        if name == "validation" and manifest.reference is None:
            reference = reference_of(manifest, logits, name, tokens, examples.texts)
            delta = with_reference(delta, reference)
        if name not in delta.manifest.training:
            objective = OBJECTIVES[manifest.task_type](manifest.labels)
            counted = counted_logits(logits, manifest, tokens)
            scores = objective.score(examples, objective.read(examples, tokens, counted))
            delta = delta.with_manifest(training={**delta.manifest.training, name: scores})
    return delta
