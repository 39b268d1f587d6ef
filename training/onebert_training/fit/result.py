"""The result of a finished run: measured on the test split, and made into a delta if the method allows one."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from onebert_encoder.answering.scores import own_activation
from onebert_encoder.base.base import Base
from onebert_encoder.maths.fold import fold_delta, to_tensors
from onebert_encoder.maths.predict import compute_golden
from onebert_store.errors import NotFinite
from onebert_store.file.delta import Delta, require_fit
from onebert_store.file.fingerprint import fingerprint_of
from onebert_store.file.manifest import WATCHED
from onebert_training.data.checks import listed
from onebert_training.fit.features import Model
from onebert_training.fit.reference import reference_of, with_reference
from onebert_training.fit.run import Run
from onebert_training.fit.state import State
from onebert_training.fit.temperature import logit_size, some_rows, with_temperature_of_folds
from onebert_training.tasks.objective import Logits, Measurement, Verdict

SMALLER = "try a smaller learning rate"
NO_NUMBERS = f"the answers are no longer numbers; {SMALLER}"


@dataclass(frozen=True)
class Result:
    """The result of a run.

    Attributes:
        delta: the kept tensors with provenance and golden logits; None if the result is a changed base.
        base: the run's base, or the one that the method has made of it.
        differences: the kept differences from `base` and the head, by the names of the delta file.
        validation: metrics of the kept evaluation or of folds; may be empty.
        test, train: None if the split is missing, was not requested, or the run held rows out.
        folds: number of folds behind `validation`; 0 for a validation split.
        held_out: the logits of the training rows that the run held out (`Run.held_out`).
        logit_size: how large the logits of some rows are that were trained on; None of a task without a temperature.
        measured: the measurement behind `validation`, by which results are compared; None without one.
        verdict: doubts about the test scores, or about `validation` without a test split; `useful` is by `validation`.
        history: one entry per evaluation: step, epoch, mean training loss since the last one, validation and its loss.
        resumed_at: step of the checkpoint that the run continued from; 0 if it began anew.
        seconds: wall-clock time, including time before an interruption; runs that step together share a step's time.
    """

    delta: Delta | None
    base: Base
    differences: Mapping[str, Tensor]
    metric: str
    validation: Mapping[str, float]
    test: Mapping[str, float] | None
    train: Mapping[str, float] | None
    held_out: Sequence[Logits]
    logit_size: float | None
    verdict: Verdict
    history: Sequence[Mapping[str, Any]]
    steps: int
    kept_step: int
    resumed_at: int
    seconds: float
    tokens_per_second: float
    folds: int = 0
    strength: float | None = None
    measured: Measurement | None = None

    def with_provenance(self, facts: Mapping[str, Any]) -> "Result":
        """Adds facts to the manifest, if there is a delta; raises InvalidManifest if a number is NaN or infinite."""
        if self.delta is None:
            return self
        return replace(self, delta=self.delta.with_manifest(training={**self.delta.manifest.training, **facts}))

    def with_measured(self, run: Run, measured: Measurement | None, larger: float = 1.0) -> "Result":
        """Adds the measurement by which the result is judged, and what the manifest keeps of it.

        Validation rows give the manifest's reference. Folds give a temperature, since other models answer in them, less
        sure than this one: its logits are `larger` times as large as theirs.
        """
        delta = self.delta
        if delta is not None and measured is not None:
            examples, tokens = run.rows_of(measured.split)
            if measured.split == "validation":
                reference = reference_of(delta.manifest, measured.logits, "validation", tokens, examples.texts)
                delta = with_reference(delta, reference)
            elif self.folds:
                delta = with_temperature_of_folds(delta, measured.logits, examples, self.folds, larger)
        return replace(self, delta=delta, measured=measured)


def finish(run: Run, state: State, resumed_at: int) -> Result:
    """Tests the kept values and makes the delta, or measures held-out rows; raises NotFinite, InvalidManifest."""
    started = time.perf_counter()
    trains_on_all = not run.held_out.size
    try:
        model = run.model(state.kept_values)
    except NotFinite:
        raise NotFinite(NO_NUMBERS) from None
    tested = run.evaluate(model, "test") if trains_on_all and "test" in run.data.splits else None
    test = tested.scores if tested else None
    on_train = run.evaluate(model, "train").scores if trains_on_all and run.settings.measure_train else None
    delta = None if model.tensors is None else make_delta(run, state, model.tensors, test)
    with torch.no_grad():
        differences = to_tensors(delta, run.base) if delta else run.row_tensors(state.kept_values)
    result = Result(
        delta=delta,
        base=model.base,
        differences=differences,
        metric=run.metric,
        validation=state.validation,
        test=test,
        train=on_train,
        held_out=() if trains_on_all else run.logits(model, "train", run.held_out.tolist()),
        logit_size=_logit_size(run, model),
        verdict=_verdict(run, state, model, tested) if trains_on_all else Verdict(),
        history=state.history,
        steps=state.step,
        kept_step=state.kept_step,
        resumed_at=resumed_at,
        seconds=state.seconds + time.perf_counter() - started,
        tokens_per_second=state.tokens_per_second,
        folds=state.folds,
        strength=state.strength,
    )
    measured = state.measured or (run.evaluate(model, "validation") if trains_on_all and run.validates else None)
    return result.with_measured(run, measured)


def _logit_size(run: Run, model: Model) -> float | None:
    """Measured only where folds may judge the run, or where the run is a fold."""
    if run.validates or run.plan.exact or run.data.task_type not in WATCHED:
        return None
    return logit_size(run.logits(model, "train", some_rows(run.rows)), own_activation(run.manifest))


def _verdict(run: Run, state: State, model: Model, tested: Measurement | None) -> Verdict:
    verdict = run.judge(tested) if tested else Verdict(tuple(state.warnings), state.useful)
    measured = next((name for name in ("test", "validation") if name in run.data.splits), None)
    unseen = _unseen_labels(run, model, measured) if measured else ()
    return Verdict((*unseen, *verdict.warnings), state.useful)


def _unseen_labels(run: Run, model: Model, split: str) -> tuple[str, ...]:
    """A warning if labels that a split lacks are not even answered for the training rows that have them."""
    objective, train = run.objective, run.data.splits["train"]
    trained, measured = objective.label_counts(train), objective.label_counts(run.data.splits[split])
    if trained is None or measured is None:
        return ()
    absent = (trained > 0) & (measured == 0)
    rows = objective.rows_with(train, absent)
    if not rows.size:
        return ()
    tokens = [run.inputs.splits["train"].tokens[i] for i in rows.tolist()]
    logits = run.logits(model, "train", rows.tolist())
    never = objective.never_answered(train.take(rows), tokens, logits)
    names = [name for name, gone in zip(objective.labels, absent, strict=True) if gone and name in never]
    if not names:
        return ()
    return (f"never answers {listed(names)}, not even in training; no {split} row has it",)


def make_delta(run: Run, state: State, tensors: Mapping[str, Tensor], test: Mapping[str, float] | None) -> Delta:
    """The delta of a finished run from its kept tensors; raises NotFinite if a golden logit is not finite."""
    epochs = round(state.step / run.schedule.steps_per_epoch, 3)
    steps = {"epochs": epochs, "steps": state.step, "best_step": state.kept_step}
    training = {
        **run.provenance(),
        **({"strength": state.strength} if run.plan.exact else steps),
        **({"validation": state.validation} if state.validation else {}),
        **({"folds": state.folds} if state.folds else {}),
        **({"test": test} if test is not None else {}),
        **(
            {}
            if run.settings.no_fingerprint
            else {"fingerprint": fingerprint_of(run.data.trained_texts, run.base.spec.digest)}
        ),
    }
    plain = Delta(run.manifest, to_arrays(tensors))
    return checked_delta(run.inputs.exact_base, plain, {"training": training}, NO_NUMBERS)


def checked_delta(base: Base, plain: Delta, facts: Mapping[str, Any], why: str) -> Delta:
    """Adds facts to a delta's manifest, and golden logits from a float32 base.

    Raises:
        TensorMismatch: the tensors do not fit this base.
        NotFinite: a tensor or a logit is NaN or infinite; `why` is the message.
        InvalidManifest: a manifest cannot hold the facts.
    """
    try:
        require_fit(plain, base.spec)
        golden = compute_golden(base, fold_delta(base, plain), plain.manifest.max_length)
    except (NotFinite, ValidationError):
        raise NotFinite(why) from None
    return plain.with_manifest(**facts, golden=golden.model_dump())


def to_arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors in the file's types: floats as they are, indices int32."""
    arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
    return {name: array.astype("int32") if array.dtype.kind == "i" else array for name, array in arrays.items()}
