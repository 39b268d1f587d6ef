"""Trains a delta to give a checkpoint's answers to texts without labels, where no low rank gives them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onebert_encoder.answering.scores import ACTIVATE, softmax
from onebert_encoder.base.base import Base
from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData, InvalidInput, InvalidSettings
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import TaskType
from onebert_training.data.dataset import Dataset, digest_of
from onebert_training.data.examples import Split
from onebert_training.data.splitting import HELD_OUT, SPLIT_SEED, hold_out
from onebert_training.fit.checkpoint import checkpoint_path
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import Report, ignore
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings, refuse_steps
from onebert_training.interop.checkpoint.options import CheckpointOptions
from onebert_training.interop.checkpoint.program import ask_program
from onebert_training.interop.checkpoint.search import ModelLogits, Probe
from onebert_training.interop.checkpoint.teacher import Teacher, read_teacher
from onebert_training.interop.checkpoint.texts import read_texts
from onebert_training.interop.heads import TaskOptions, outputs_of
from onebert_training.selection.few import make_run, read_pairs
from onebert_training.selection.selection import forget, train_and_select

# The metric nearest to the agreement: the share of equal answers, or of a regression 1 only for equal numbers.
_METRIC = {"single_label": "accuracy", "multi_label": "accuracy", "regression": "r2"}


def import_by_distillation(
    folder: Path,
    name: str,
    base: Base,
    options: CheckpointOptions,
    task_options: TaskOptions,
    missed: str,
    out: Path,
    report: Report = ignore,
) -> tuple[Delta, dict[str, Any]]:
    """Trains a delta by the checkpoint's answers to the texts of --distil; else as `import_by_rank`.

    Some of the texts decide what the training keeps, and none that it has seen is compared on. Its checkpoints stay
    beside `out` until the answers agree: an equal call that asks for less agreement trains no more.

    Args:
        missed: the reason that no low rank will do.
        report: called after every step.

    Raises:
        InvalidInput: the checkpoint cannot be read, or the agreement is too low.
        InvalidData: the texts cannot be read, or the checkpoint gives all of them one answer.
        InvalidMethod, InvalidSettings: the method does not exist, does not fit the base, or gives no delta.
    """
    teacher = read_teacher(folder)
    outputs, warnings = outputs_of(teacher.config, "sequence", teacher.outputs, task_options)
    texts = read_texts(options, outputs[0])
    longest = task_options.max_length or min(teacher.max_length, base.spec.max_length)
    answers, _ = _answers(folder, teacher, texts.learned, outputs[0])
    inputs = TaskInputs(base, _dataset(name, texts.learned, answers, outputs), longest)
    run = _run(inputs, options, name)
    result = train_and_select(run, report, checkpoint_path(out)).result
    if result.delta is None:
        raise ValueError("only methods that give a delta are trained here")
    theirs, program = _answers(folder, teacher, texts.compared, outputs[0])
    probe = Probe(base, result.delta.manifest, texts.compared, theirs)
    agreement = probe(result.delta.tensors)
    if not agreement.reaches(options.agree, options.max_difference):
        raise InvalidInput(
            f"{agreement.shortfall(options.agree, options.max_difference)}, although {run.settings.method} learned "
            f"{len(texts.learned):,} other texts; with a lower --agree the same command trains no more. "
            f"Not by rank: {missed}"
        )
    forget(checkpoint_path(out))
    facts = {
        **{"imported_from": "checkpoint", "checkpoint": name},
        "teacher": {"digest": teacher.digest, "texts": len(texts.learned)},
        "agreement": agreement.facts(texts.data, program),
        "warnings": [*warnings, *result.verdict.warnings],
    }
    return _imported(result.delta, facts), {
        **agreement.record(outputs[0], program),
        "learned_texts": len(texts.learned),
        "checkpoint_bytes": teacher.weight_bytes,
        "not_by_rank": missed,
    }


def _imported(delta: Delta, facts: Mapping[str, Any]) -> Delta:
    training = {key: value for key, value in delta.manifest.training.items() if key != "task"}
    return delta.with_manifest(training={**training, **facts})


def _dataset(name: str, texts: Sequence[Text], answers: ModelLogits, outputs: tuple[TaskType, list[str]]) -> Dataset:
    """The texts with the teacher's answers as gold, and its probabilities to learn; a part of them validates."""
    task_type, labels = outputs
    logits = np.stack(answers.logits)
    gold, soft = logits[:, 0], None
    if task_type == "single_label":
        gold, soft = logits.argmax(axis=1), softmax(logits)
    elif task_type == "multi_label":
        gold, soft = (logits > 0).astype(np.float32), ACTIVATE["sigmoid"](logits)
    elif len(labels) > 1:
        raise InvalidInput(f"a regression of {len(labels)} numbers is not learned, only of one")
    if len(np.unique(gold, axis=0)) < 2:
        raise InvalidData("the checkpoint gives all texts of --distil the same answer; give more different texts")
    examples = Split(tuple(texts), gold, soft=None if soft is None else soft.astype(np.float32))
    train, validation = hold_out(examples, task_type, 1 / HELD_OUT, None, SPLIT_SEED)
    splits = {"train": train, "validation": validation}
    return Dataset(name, task_type, tuple(labels), None, splits, digest_of(task_type, labels, splits))


def _run(inputs: TaskInputs, options: CheckpointOptions, name: str) -> Run:
    metric = _METRIC[inputs.data.task_type]
    settings = Settings(method=options.method, epochs=options.epochs, max_length=inputs.max_length, metric=metric)
    refuse_steps(settings)
    settings = read_pairs(inputs, settings, name)
    run = make_run(inputs, settings, name)
    if not run.plan.servable:
        raise InvalidSettings(f"{run.method.text} changes the base itself, which no delta holds")
    return run


def _answers(folder: Path, teacher: Teacher, texts: Sequence[Text], task_type: TaskType) -> tuple[ModelLogits, str]:
    return ask_program(folder, teacher.model, teacher.tokenizer, texts, task_type, teacher.max_length)
