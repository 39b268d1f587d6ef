"""A task's Arrow columns: from logits, vectorized over texts where possible, or from a server's results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, cast

import numpy as np
import pyarrow

from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.results import Answer, Extraction, Labeled, Labeling
from onebert_encoder.answering.scores import Array, score, thresholds_of
from onebert_encoder.answering.stretches import is_bio
from onebert_encoder.answering.windows import WindowLogits, answer_windows, window_of
from onebert_encoder.base.sentence import unit
from onebert_encoder.text.tokens import Alignment, Cut, Text
from onebert_server.client import TaskResult
from onebert_server.client.questions import fields_of_result
from onebert_server.score.tasks import VECTOR, LoadedTask, ScoredTask
from onebert_store.file.decision import Reduction
from onebert_store.file.manifest import Manifest

_STRETCH = [("start", pyarrow.int32()), ("end", pyarrow.int32()), ("text", pyarrow.string())]
_SPANS = pyarrow.list_(pyarrow.struct([*_STRETCH, ("score", pyarrow.float32())]))
_WORDS = pyarrow.list_(pyarrow.struct([*_STRETCH, ("label", pyarrow.string()), ("score", pyarrow.float32())]))
# The type of each column that is the same for every task.
_TYPES = {
    "label": pyarrow.string(),
    "score": pyarrow.float32(),
    "labels": pyarrow.list_(pyarrow.string()),
    "words": _WORDS,
    "entities": _WORDS,
    "answers": _SPANS,
    "abstained": pyarrow.bool_(),
    "windows": pyarrow.int32(),
    "truncated": pyarrow.bool_(),
    "version": pyarrow.int32(),
    "digest": pyarrow.string(),
}


@dataclass(eq=False)
class Read:
    """One task's reading of a window's texts.

    Attributes:
        cuts: the sequences of each text: one, or one per window.
        refused: the texts that cannot be read in windows, with the reason.
        logits: [sequences, labels] float32; a per-token task has a list of [tokens, labels].
        alignments: token offsets of each sequence, in a per-token task only.
    """

    texts: Sequence[Text]
    cuts: Sequence[Sequence[Cut]]
    truncated: Sequence[bool]
    refused: Mapping[int, str]
    logits: Any
    alignments: Sequence[Alignment] = ()

    @cached_property
    def starts(self) -> list[int]:
        """The index of each text's first sequence."""
        return [0, *accumulate(map(len, self.cuts))][:-1]

    @cached_property
    def finite(self) -> Array:
        """[texts], whether a text has an answer: it was readable, and all its logits are finite."""
        if isinstance(self.logits, np.ndarray):
            finite = np.asarray(np.isfinite(self.logits).all(axis=1))
        else:
            finite = np.array([bool(np.isfinite(row).all()) for row in self.logits], dtype=bool)
        if len(finite) > len(self.cuts):
            finite = np.logical_and.reduceat(finite, self.starts)
        finite[list(self.refused)] = False
        return np.asarray(finite)


def column_names(task: ScoredTask, all_scores: bool) -> list[str]:
    """The columns of a task, in order."""
    if isinstance(task, LoadedTask) and task.delta is None:
        return [VECTOR, f"{VECTOR}_truncated"]
    return [f"{task.name}_{name}" for name in _names(task.manifest, all_scores)]


def columns_of_results(
    task: ScoredTask, texts: Sequence[Text], results: Sequence[TaskResult], all_scores: bool
) -> dict[str, pyarrow.Array]:
    """The columns of a task, by text, of a server's results; null in every column for a result with an error."""
    rows = [
        None if result.error else fields_of_result(result, text) for text, result in zip(texts, results, strict=True)
    ]
    types = {**_TYPES, "scores": pyarrow.struct([(label, pyarrow.float32()) for label in task.manifest.labels])}
    return {
        f"{task.name}_{name}": pyarrow.array([row and row.get(name) for row in rows], types[name])
        for name in _names(task.manifest, all_scores)
    }


def columns(task: ScoredTask, read: Read, all_scores: bool) -> dict[str, pyarrow.Array]:
    """The columns of a task, once its logits are there; answers with non-finite logits are null in every column."""
    manifest, count = task.manifest, len(read.cuts)
    if isinstance(task, LoadedTask) and task.delta is None:
        return dict(zip(column_names(task, all_scores), _vectors(read, task.normalized), strict=True))
    arrays = _per_token(manifest, read) if manifest.per_token else _per_text(manifest, read, all_scores)
    arrays |= {
        "truncated": pyarrow.array(read.truncated, pyarrow.bool_()),
        "windows": pyarrow.array([len(windows) for windows in read.cuts], pyarrow.int32()),
        "version": pyarrow.repeat(pyarrow.scalar(task.version, pyarrow.int32()), count),
        "digest": pyarrow.repeat(pyarrow.scalar(task.digest), count),
    }
    indices = pyarrow.array(np.arange(count), mask=~read.finite)
    return {f"{task.name}_{name}": arrays[name].take(indices) for name in _names(manifest, all_scores)}


def _vectors(read: Read, normalized: bool) -> list[pyarrow.Array]:
    """The vectors of texts as lists of float32, and whether each is of the beginning of its text."""
    logits = np.where(np.isfinite(read.logits), read.logits, 0)
    numbers = unit(logits) if normalized else logits
    offsets = pyarrow.array(np.arange(len(numbers) + 1) * numbers.shape[1], pyarrow.int32())
    vectors = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(numbers.astype(np.float32).reshape(-1)))
    indices = pyarrow.array(np.arange(len(numbers)), mask=~read.finite)
    return [vectors.take(indices), pyarrow.array(read.truncated, pyarrow.bool_()).take(indices)]


def _names(manifest: Manifest, all_scores: bool) -> list[str]:
    if manifest.task_type == "span":
        names = ["answers"]
    elif manifest.task_type == "token":
        names = ["words", "entities"] if is_bio(manifest.labels) else ["words"]
    else:
        names = ["score"] if manifest.task_type == "regression" else ["label", "score"]
        names += ["labels"] * (thresholds_of(manifest) is not None) + ["scores"] * all_scores
    if manifest.decision is not None and manifest.decision.abstains:
        names.append("abstained")
    names += ["windows"] * (window_of(manifest, manifest.max_length) is not None)
    return [*names, "truncated", "version", "digest"]


def _per_text(manifest: Manifest, read: Read, all_scores: bool) -> dict[str, pyarrow.Array]:
    window = window_of(manifest, manifest.max_length)
    reduce = partial(_reduced, window.reduction, read) if window and read.cuts else None
    scores, selected, abstained, _ = score(
        read.logits.astype(np.float64), manifest, reduce=reduce, truncated=read.truncated
    )
    names = pyarrow.array(manifest.labels, pyarrow.string())
    arrays = {}
    if manifest.task_type == "regression":
        arrays["score"] = pyarrow.array(scores[:, 0].astype(np.float32))
    else:
        best = scores.argmax(axis=1)
        arrays["label"] = names.take(pyarrow.array(best))
        arrays["score"] = pyarrow.array(scores[np.arange(len(best)), best].astype(np.float32))
    if selected is not None:
        ranked = manifest.task_type != "regression"
        order = np.argsort(-scores if ranked else np.zeros_like(scores), axis=1, kind="stable")
        over = np.take_along_axis(selected, order, axis=1)
        offsets = pyarrow.array(np.cumsum([0, *over.sum(axis=1)]), pyarrow.int32())
        arrays["labels"] = pyarrow.ListArray.from_arrays(offsets, names.take(pyarrow.array(order[over])))
    if abstained is not None:
        arrays["abstained"] = pyarrow.array(abstained)
    if all_scores:
        by_label = [pyarrow.array(column) for column in scores.astype(np.float32).T]
        arrays["scores"] = pyarrow.StructArray.from_arrays(by_label, names=manifest.labels)
    return arrays


def _per_token(manifest: Manifest, read: Read) -> dict[str, pyarrow.Array]:
    words, entities, answers, abstained = [], [], [], []
    for i, text in enumerate(read.texts):
        answer = _one_per_token(manifest, read, i) if read.finite[i] else None
        labeling = answer if isinstance(answer, Labeling) else None
        words.append(None if labeling is None else _stretches(labeling.words, text))
        entities.append(None if labeling is None else _stretches(labeling.entities or (), text))
        extraction = answer if isinstance(answer, Extraction) else None
        answers.append(None if extraction is None else [vars(span) for span in extraction.answers])
        abstained.append(None if extraction is None else extraction.abstained)
    return {
        name: pyarrow.array(cells, _TYPES[name])
        for name, cells in (("words", words), ("entities", entities), ("answers", answers), ("abstained", abstained))
    }


def _one_per_token(manifest: Manifest, read: Read, i: int) -> Answer:
    text, start, window = read.texts[i], read.starts[i], window_of(manifest, manifest.max_length)
    if window is None:
        return answer(read.logits[start], manifest, text, read.alignments[start], truncated=read.truncated[i])
    windows = [
        WindowLogits(read.logits[start + n], window[-1][0], read.alignments[start + n])
        for n, window in enumerate(read.cuts[i])
    ]
    return answer_windows(windows, manifest, text, window.reduction)


def _reduced(reduction: Reduction, read: Read, numbers: Array) -> Array:
    """[texts, …] from [sequences, …]: reduces the windows of each text."""
    if reduction == "max":
        return np.asarray(np.maximum.reduceat(numbers, read.starts, axis=0))
    counts = np.array([len(windows) for windows in read.cuts])[:, None]
    return np.asarray(np.add.reduceat(numbers, read.starts, axis=0) / counts)


def _stretches(spans: Sequence[Labeled], text: Text) -> list[dict[str, Any]]:
    """Adds the text of each span: offsets count code points, which some readers do not."""
    return [{**vars(span), "text": cast(str, text)[span.start : span.end]} for span in spans]
