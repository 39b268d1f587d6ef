"""Calibrates a delta on labeled rows: fits its decision, and estimates its rates on new rows."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import ceil, floor
from typing import Any, Literal, cast

import numpy as np

from onebert_encoder.answering.scores import own_activation, score
from onebert_store.errors import InvalidData, InvalidInput, InvalidSettings
from onebert_store.file.decision import Decision
from onebert_store.file.manifest import Manifest
from onebert_training.data.checks import listed
from onebert_training.fit.temperature import FOLDS, MIN_ROWS, Folds, fit_temperature
from onebert_training.insight import decision_rules as rules
from onebert_training.insight.fixed_rules import FixedRules
from onebert_training.insight.intervals import Flags, Floats, ScoredRows, interval_on_new_rows

Kind = Literal["fpr", "precision", "coverage"]
KINDS: Sequence[Kind] = ("fpr", "precision", "coverage")

# No probability exceeds this threshold; it marks labels for which no threshold meets the target.
NEVER = 1.0


@dataclass(frozen=True)
class Target:
    """A rate to keep on new rows: thresholds keep `fpr` and `precision`, abstaining keeps `coverage`."""

    kind: Kind
    value: float

    def __str__(self) -> str:
        return f"{self.kind}={self.value:g}"

    @property
    def is_coverage(self) -> bool:
        """Whether abstaining keeps it, and not thresholds."""
        return self.kind == "coverage"

    @property
    def rows(self) -> int:
        """The fewest rows that can promise it."""
        rare = self.value if self.kind == "fpr" else 1 - self.value
        return ceil(1 / rare - 1 - 1e-9)


@dataclass
class Calibrated:
    """The new decision (old values if no better ones were found), measurements as JSON, and notes for the user."""

    decision: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def new_decision(self) -> Decision | None:
        return Decision(**self.decision) if self.decision else None


def targets_of(options: Sequence[str]) -> list[Target]:
    """Parses targets such as `fpr=0.01`; raises InvalidSettings if one is invalid, or two concern thresholds."""
    targets = []
    for option in options:
        kind, _, number = option.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if kind not in KINDS or not 0 < value < 1:
            raise InvalidSettings(f"--target is one of {', '.join(KINDS)} with a share, such as fpr=0.01")
        targets.append(Target(cast("Kind", kind), value))
    if len({target.is_coverage for target in targets}) < len(targets):
        raise InvalidSettings("--target takes fpr or precision, and optionally coverage")
    return targets


def check_task(manifest: Manifest) -> None:
    """Raises InvalidInput unless the task's answers are probabilities of labels of whole texts."""
    if not rules.has_probabilities(manifest):
        raise InvalidInput("only single_label and multi_label tasks with probabilities can be calibrated")


def calibrate(
    logits: Floats,
    gold: Flags,
    manifest: Manifest,
    targets: Sequence[Target],
    unknown: Floats | None = None,
    fixed: FixedRules = FixedRules(),  # noqa: B008 - frozen
    truncated: Flags | None = None,
    fold: Folds | None = None,
) -> Calibrated:
    """Fits temperature, thresholds and a rule for abstaining, on rows that the delta was not trained on.

    `logits` and `gold` are [rows, labels]; `unknown` has logits [texts, labels] of texts that belong to no label.
    Thresholds are fitted for the positive labels alone, if the task has any. `fixed` rules are taken as they are.
    `truncated` [rows] counts if the task abstains on such texts. `fold` [rows] is by `temperature_folds`; None if no
    two rows have one text.

    Raises:
        InvalidInput: the task has no probabilities of labels.
        InvalidData: the rows are too few for a target, or no threshold keeps it.
    """
    check_task(manifest)
    decision, notes = fixed.decided(manifest)
    by = {("abstain" if target.is_coverage else "thresholds"): target for target in targets}
    result = Calibrated(decision.model_dump(exclude_none=True) if decision else {})
    result.notes += [] if "thresholds" in by else notes
    labels = result.decision.get("positives") or manifest.labels
    replaced = {*fixed.thresholds, *(labels if "thresholds" in by else ())}
    fold = np.arange(len(logits)) % FOLDS if fold is None else fold
    _fit_temperature(result, ScoredRows(logits, gold), fold, manifest, _bound(manifest, replaced, "abstain" in by))
    if "thresholds" in by:
        columns = [manifest.labels.index(label) for label in labels]
        scores = score(logits, _by(result, manifest)).scores
        _fit_thresholds(result, ScoredRows(scores[:, columns], gold[:, columns]), labels, by["thresholds"])
    answerable = np.ones(len(logits), bool)
    if truncated is not None and decision is not None and decision.cut == "abstain":
        answerable = ~truncated
    _fit_abstaining(result, logits, gold, manifest, by.get("abstain"), unknown, answerable)
    return result


def _bound(manifest: Manifest, replaced: Set[str], new_abstain: bool) -> list[str]:
    """The rules of the file that stay, and that hold for its present temperature only."""
    decision = manifest.decision
    thresholds = decision is not None and not set(decision.thresholds or ()) <= replaced
    abstain = decision is not None and decision.abstain is not None and not new_abstain
    return ["thresholds"] * thresholds + ["abstain"] * abstain


def _fit_temperature(
    result: Calibrated, rows: ScoredRows, fold: Folds, manifest: Manifest, bound: Sequence[str]
) -> None:
    activation = own_activation(manifest)
    if activation == "softmax" and manifest.task_type == "multi_label":
        return  # softmax over several right labels has no likelihood
    if len(fold) < MIN_ROWS:
        result.notes.append(f"a temperature is fitted on {MIN_ROWS} rows and more")
        return
    current = result.decision.get("temperature", 1.0)
    fitted = fit_temperature(rows.scores, rows.right, activation, fold, current)
    if fitted.gains and bound:
        result.notes.append(f"the temperature stays: the {' and '.join(bound)} of the delta are for it; give --target")
    if not fitted.is_bounded:
        why = "all answers are right" if fitted.temperature < 1 else "the logits are uninformative"
        result.notes.append(f"the temperature stays: the fit ends at its bound; {why}")
    taken = fitted.gains and not bound
    if taken:
        result.decision["temperature"] = fitted.temperature
    result.facts["temperature"] = {
        "before": current,
        "fitted": fitted.temperature,
        "taken": taken,
        # False if cross-validation finds a better temperature than the one decided now.
        "calibrated": fitted.is_bounded and taken == fitted.gains,
        "nll": {"before": fitted.before, "after": fitted.after, "error": fitted.error},
    }


def _by(result: Calibrated, manifest: Manifest) -> Manifest:
    return manifest.model_copy(update={"decision": result.new_decision})


def _fit_thresholds(result: Calibrated, sample: ScoredRows, names: Sequence[str], target: Target) -> None:
    def fit(rows: ScoredRows) -> Floats:
        if target.kind == "fpr":
            return rules.thresholds_for_fpr(rows, target.value)
        return rules.thresholds_for_precision(rows, target.value)

    chosen = fit(sample)
    never = np.isinf(chosen)
    if never.all():
        raise InvalidData(_why_none(sample, target))
    if never.any():
        which = np.flatnonzero(never).tolist()
        never_selected = listed((names[i] for i in which), [_why_not(sample, target, i) for i in which])
        result.notes.append(
            f"no threshold of these labels keeps {target}, and they are never selected: {never_selected}"
        )
    fitted = {
        label: NEVER if none else float(number)
        for label, number, none in zip(names, chosen.tolist(), never.tolist(), strict=True)
    }
    result.decision["thresholds"] = result.decision.get("thresholds", {}) | fitted
    observed = rules.as_rates(rules.rates(chosen, sample))
    # A label that is never selected may get a threshold in a resample; that is not this file's, so its rates are NaN.
    selected = np.append(~never, True)
    low, high = (
        rules.Rates(*(np.where(selected, rate, np.nan) for rate in rules.as_rates(end)))
        for end in interval_on_new_rows(sample, fit, rules.rates)
    )
    each = [
        {
            name: _rate(getattr(observed, name)[i], getattr(low, name)[i], getattr(high, name)[i])
            for name in observed._fields
        }
        for i in range(len(names) + 1)
    ]
    labels = [
        {"label": label, "rows": int(sample.right[:, i].sum()), "threshold": threshold}
        for i, (label, threshold) in enumerate(fitted.items())
    ]
    rated = [label | rates for label, rates in zip(labels, each[:-1], strict=True)]
    result.facts["thresholds"] = {"target": str(target), "labels": rated, "all": each[-1]}


def _why_not(sample: ScoredRows, target: Target, label: int) -> str:
    having = int(sample.right[:, label].sum())
    rows, condition = (len(sample) - having, "without it") if target.kind == "fpr" else (having, "with it")
    if rows < target.rows:
        return f"{rows:,} rows {condition}, and {target.rows:,} are needed"
    return f"the highest precision that one promises is {rules.highest_precision(sample)[label]:.3g}"


def _why_none(sample: ScoredRows, target: Target) -> str:
    having = sample.right.sum(axis=0)
    max_rows = int((len(sample) - having if target.kind == "fpr" else having).max())
    if max_rows < target.rows:
        if target.kind == "fpr":
            needs, available = (
                "a label that at least {rows:,} rows do not have",
                f"none is absent from more than {max_rows:,}",
            )
        else:
            needs, available = "a label that at least {rows:,} rows have", f"none has more than {max_rows:,}"
        return _too_few(target, needs.format(rows=target.rows), available, max_rows)
    best = _down(float(rules.highest_precision(sample).max()))
    return (
        f"no threshold of any label keeps --target {target}: the highest precision that these rows promise is "
        f"{best:g}; ask for that or less, or calibrate a delta that is right more often"
    )


def _too_few(target: Target, needs: str, available: str, rows: int) -> str:
    # Rounds towards the side that can be promised.
    best = 1 - _down(1 - 1 / (rows + 1)) if target.kind == "fpr" else _down(rows / (rows + 1))
    other = (
        f", or ask for {target.kind}={best:g} or {'more' if target.kind == 'fpr' else 'less'}" if 0 < best < 1 else ""
    )
    return f"--target {target} needs {needs}, and here {available}: give more rows{other}"


def _down(share: float) -> float:
    return floor(share * 10_000) / 10_000


def _fit_abstaining(
    result: Calibrated,
    logits: Floats,
    gold: Flags,
    manifest: Manifest,
    target: Target | None,
    unknown: Floats | None,
    answerable: Flags,
) -> None:
    outputs = _by(result, manifest)
    scored = score(logits, outputs)
    right = _right(scored.scores, scored.selected, gold, manifest)
    sure = rules.sureness(logits, outputs)
    mixed = right.any() and not right.all()
    wrong = {name: rules.auroc(each[right], each[~right]) if mixed else None for name, each in sure.items()}
    result.facts["right"] = float(right.mean())
    result.facts["auroc_right"] = wrong
    aurocs: Mapping[str, float | None] = wrong
    if unknown is not None:
        apart = result.facts["unknown"] = rules.unknown_facts(logits, unknown, outputs)
        aurocs = {name: apart[name]["auroc"] for name in sure}
    if target is not None:
        by = "energy" if (aurocs["energy"] or 0) > (aurocs["probability"] or 0) else "probability"
        _fit_coverage(result, by, ScoredRows(sure[by][:, None], np.column_stack([right, answerable])), target)


def _fit_coverage(result: Calibrated, by: str, sample: ScoredRows, target: Target) -> None:
    """Fits the cut; `sample.right` has the right rows, and those that may be answered (`coverage_and_accuracy`)."""

    def fit(rows: ScoredRows) -> float | None:
        return rules.lowest_sureness(np.where(rows.right[:, 1], rows.scores[:, 0], -np.inf), target.value)

    cut = fit(sample)
    if cut is None:
        raise InvalidData(_too_few(target, f"at least {target.rows:,} rows", f"are {len(sample):,}", len(sample)))
    if np.isinf(cut):
        never = int((~sample.right[:, 1]).sum())
        best = _down(1 - (never + 1) / (len(sample) + 1))
        other = f": ask for coverage={best:g} or less" if best > 0 else ""
        raise InvalidData(
            f"--target {target} is out of reach: the task abstains on texts that are cut, {never:,} of the "
            f"{len(sample):,} here{other}"
        )
    result.decision["abstain"] = {"energy": -cut} if by == "energy" else {"below": cut}
    observed = rules.coverage_and_accuracy(cut, sample)
    low, high = interval_on_new_rows(sample, fit, rules.coverage_and_accuracy)
    result.facts["abstain"] = {
        "target": str(target),
        "by": by,
        **result.decision["abstain"],
        "coverage": _rate(observed[0], low[0], high[0]),
        "right": _rate(observed[1], low[1], high[1]),
    }


def _right(scores: Floats, selected: Flags | None, gold: Flags, manifest: Manifest) -> Flags:
    """[rows], whether the best label is right; in a multi_label task, whether all selected labels are."""
    if manifest.task_type == "multi_label" and selected is not None:
        return np.asarray((selected == gold).all(axis=1))
    return np.asarray(gold[np.arange(len(gold)), scores.argmax(axis=1)])


def _rate(rate: float, low: float, high: float) -> dict[str, float | None]:
    rates = {"here": rate, "low": low, "high": high}
    return {name: None if np.isnan(number) else float(number) for name, number in rates.items()}
