"""Turns logits into answers, one way per task type, and checks which options a task type supports."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, repeat
from typing import Any, Protocol

import numpy as np

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.results import FEW, Answer, Extraction, FoundSpan, Labeled, Labeling, Prediction
from onebert_encoder.answering.scores import ACTIVATE, Array, Outputs, Scored, own_activation, score, tempered
from onebert_encoder.answering.stretches import MAX_ANSWERS, find_spans, find_words, is_bio, join_entities
from onebert_encoder.text.tokens import Alignment, Text
from onebert_store.file.decision import ABSTAINING, ACTIVATIONS, REDUCTIONS, THRESHOLDS
from onebert_store.file.manifest import SIAMESE, Pooling, TaskType


def answer(
    logits: Array,
    outputs: Outputs,
    text: Text = "",
    alignment: Alignment | None = None,
    asked: Asked = PLAIN,
    truncated: bool = False,
) -> Answer:
    """Turns logits into an answer, by task type.

    Args:
        logits: [labels] float32, or [tokens, labels] for a per-token task, which also needs `text` and `alignment`.
        outputs: the task type, the labels and the decision, such as a manifest.
        asked: options that `TaskKind.refusal` accepts. Only span tasks read `top_k`: the number of spans (None: 1).
        truncated: whether the text was cut.
    """
    of_type = TASK_TYPES[outputs.task_type]
    return of_type.answer(logits.astype(np.float64), outputs, text, alignment, asked, truncated)


def answer_texts(
    logits: Array,
    outputs: Outputs,
    names: Sequence[Sequence[str]],
    asked: Asked = PLAIN,
    truncated: Sequence[bool] | None = None,
) -> list[Prediction]:
    """Turns float32 logits [texts, labels] into what `answer` returns for each text, bit for bit.

    Args:
        outputs: task type, number of labels and decision of all texts, whose task is on whole texts.
        truncated: whether each text was cut; None if none was.
    """
    return predict(score(logits.astype(np.float64), outputs, asked, truncated=truncated), outputs, names)


def aligned(alignment: Alignment | None) -> Alignment:
    """The alignment, which a per-token task needs."""
    if alignment is None:
        raise ValueError("a per-token task is answered with the alignment of its tokens")
    return alignment


def predict(scored: Scored, outputs: Outputs, names: Sequence[Sequence[str]]) -> list[Prediction]:
    """Builds the predictions of texts from their scores, [texts, labels]; `names` are the labels of each text."""
    scores, selected, ranks = scored.scores, scored.selected, outputs.task_type != "regression"
    best: Iterable[int] = scores.argmax(-1).tolist() if ranks else repeat(0)
    order: Iterable[list[int] | None] = repeat(None)
    labels: Iterable[list[str] | None] = repeat(None)
    if ranks and (scores.shape[-1] <= FEW or selected is not None):
        places = np.argsort(-scores, axis=-1, kind="stable")
        order = places.tolist()
        labels = labels if selected is None else _selected(names, order, np.take_along_axis(selected, places, -1))
    elif selected is not None:
        labels = _selected(names, repeat(range(scores.shape[-1])), selected)
    abstained: Iterable[bool | None] = repeat(None) if scored.abstained is None else scored.abstained.tolist()
    energy: Iterable[float | None] = repeat(None) if scored.energy is None else scored.energy.tolist()
    # `map` calls no function of Python's per text.
    return [*map(Prediction, names, scores.tolist(), best, labels, abstained, repeat(ranks), energy, order)]


def _selected(names: Sequence[Sequence[str]], order: Iterable[Any], selected: Array) -> list[list[str]]:
    labels = []
    for labels_of_task, places, over in zip(names, order, selected.tolist(), strict=False):
        labels.append([*compress(map(labels_of_task.__getitem__, places), over)])
    return labels


def _whole(
    logits: Array, outputs: Outputs, text: Text, alignment: Alignment | None, asked: Asked, truncated: bool
) -> Prediction:
    scored = score(logits[None], outputs, asked, truncated=[truncated])
    [prediction] = predict(scored, outputs, [outputs.labels])
    return prediction


def _token(
    logits: Array, outputs: Outputs, text: Text, alignment: Alignment | None, asked: Asked, truncated: bool
) -> Labeling:
    starts, spans = find_words(aligned(alignment))
    logits = logits[starts]
    if asked.activation != "none":
        logits = tempered(logits, outputs.decision)
    scores = ACTIVATE[asked.activation or own_activation(outputs)](logits)
    best = scores.argmax(axis=-1)
    words = [
        Labeled(start, end, outputs.labels[label], score)
        for (start, end), label, score in zip(spans, best.tolist(), scores.max(axis=-1).tolist(), strict=True)
    ]
    return Labeling(words, join_entities(words) if is_bio(outputs.labels) else None)


def _span(
    logits: Array, outputs: Outputs, text: Text, alignment: Alignment | None, asked: Asked, truncated: bool
) -> Extraction:
    answers = find_spans(tempered(logits, outputs.decision), aligned(alignment), text[1], _wanted(asked))
    return extract(answers, outputs, asked, truncated)


def extract(answers: list[FoundSpan], outputs: Outputs, asked: Asked, truncated: bool = False) -> Extraction:
    """Builds a span answer from `answers`, best first; abstains by the task's rules."""
    abstained, decision = None, outputs.decision
    if decision is not None and decision.abstains:
        below = decision.abstain.below if decision.abstain else None
        unsure = below is not None and (not answers or answers[0].score < below)
        abstained = unsure or (truncated and decision.cut == "abstain")
    return Extraction(answers[: _wanted(asked)], abstained)


def _wanted(asked: Asked) -> int:
    return min(asked.top_k or 1, MAX_ANSWERS)


@dataclass(frozen=True)
class TaskKind:
    """The inputs and options that a task type accepts; `question` names the input in error messages."""

    name: TaskType
    answer: Callable[[Array, Outputs, Text, Alignment | None, Asked, bool], Answer]
    takes_text: bool = True
    takes_pair: bool = True
    question: str = "a text or a pair of texts"

    def takes(self, pair: bool) -> bool:
        return self.takes_pair if pair else self.takes_text

    def refusal(self, asked: Asked) -> str | None:
        """The option that this task type lacks, as the end of the sentence `a … task has …`; None if it lacks none."""
        if asked.activation is not None and asked.activation not in ACTIVATIONS[self.name]:
            return f"no activation {asked.activation}"
        if asked.threshold is not None and self.name not in THRESHOLDS:
            return "no thresholds"
        if asked.energy and "energy" not in ABSTAINING.get(self.name, ()):
            return "no energy"
        if asked.window is not None and asked.window.reduction not in (None, *REDUCTIONS[self.name]):
            return f"no reduction {asked.window.reduction}"
        return None


TASK_TYPES: Mapping[TaskType, TaskKind] = {
    kind.name: kind
    for kind in (
        TaskKind("single_label", _whole),
        TaskKind("multi_label", _whole),
        TaskKind("regression", _whole),
        TaskKind("token", _token, takes_pair=False, question="one text"),
        TaskKind("span", _span, takes_text=False, question="a question as text and its context as text_pair"),
    )
}


class Reader(Protocol):
    """The fields that decide which inputs a task takes; a manifest has them."""

    @property
    def task_type(self) -> TaskType: ...

    @property
    def pooling(self) -> Pooling: ...


def kind_of(task: Reader) -> TaskKind:
    """The kind of a task's type; a siamese task takes pairs only."""
    kind = TASK_TYPES[task.task_type]
    return replace(kind, takes_text=False, question="a pair of texts") if task.pooling == SIAMESE else kind
