"""Computes a delta's answers to labeled rows, by task type, as a server would answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.results import Extraction
from onebert_encoder.answering.scores import ACTIVATE, Scored, own_activation, score, tempered
from onebert_encoder.answering.stretches import is_bio
from onebert_encoder.text.tokens import Tokens
from onebert_store.file.manifest import Manifest, TaskType
from onebert_training.data.examples import Split
from onebert_training.insight.classes import Counts, count_entities, count_indicators, count_indices
from onebert_training.insight.intervals import Flags, Floats, Indices
from onebert_training.tasks.metrics import exact_match, word_f1
from onebert_training.tasks.objective import Logits, Objective
from onebert_training.tasks.objectives import OBJECTIVES, TokenLabel
from onebert_training.tasks.reading import first_tokens


class Measure(NamedTuple):
    """A metric (`mae` for regression) as a share: over any rows, sum of `top` / sum of `bottom`, both [rows]."""

    name: str
    top: Floats
    bottom: Floats

    def over(self, rows: Any = slice(None)) -> float:
        """The metric on some rows; NaN when their bottom sums to 0."""
        below = float(self.bottom[rows].sum())
        return float(self.top[rows].sum()) / below if below else float("nan")


class Reliability(NamedTuple):
    """[n] confidences of answers and whether these are right; `description` says what one answer is."""

    description: str
    confidence: Floats
    right: Flags


class ClassPairs(NamedTuple):
    """Right and answered class of each item, as label indices."""

    gold: Indices
    answered: Indices


@dataclass(frozen=True)
class Answers:
    """Answers to rows, and how right they are.

    Attributes:
        gold: right label, labels, number, tags or acceptable answers by row.
        answer: in the same form; one text in a span task.
        score: [rows], the answer's probability: the lowest of several labels, the mean of tags; NaN without
            probabilities.
        loss: [rows], the training loss; NaN where the right answer was truncated.
        measure: the metric that slices are measured by.
        class_pairs: input of the confusion matrix; None for tasks whose rows may have several classes or none.
        reliability: None when scores are not probabilities.
        abstained: [rows]; None when the task has no rule for abstaining.
    """

    gold: Sequence[Any]
    answer: Sequence[Any]
    score: Floats
    loss: Floats
    measure: Measure
    counts: Counts | None = None
    entities: Counts | None = None
    class_pairs: ClassPairs | None = None
    reliability: Reliability | None = None
    abstained: Flags | None = None


class Predictions(NamedTuple):
    """The rows, the logits of a delta's head for them, and the delta's manifest."""

    manifest: Manifest
    split: Split
    tokens: Sequence[Tokens]
    logits: Sequence[Logits]

    @property
    def scored(self) -> Scored:
        """[rows, labels] of a task on whole texts."""
        logits, truncated = _stacked(self), [text.truncated for text in self.tokens]
        return score(logits, self.manifest, truncated=truncated)

    @property
    def loss(self) -> Floats:
        """[rows], as in `Answers`; logits are divided by the task's temperature."""
        objective = OBJECTIVES[self.manifest.task_type](self.manifest.labels)
        targets = objective.targets(self.split, self.tokens)
        scaled = [tempered(logits, self.manifest.decision).astype(np.float32) for logits in self.logits]
        return np.array([_loss(objective, *row) for row in zip(scaled, targets, strict=True)], dtype=np.float64)


def read_answers(manifest: Manifest, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> Answers:
    """The delta's answers to at least one row. The manifest's decision applies, except for its windows.

    `logits` are finite: [labels] by row, or [tokens, labels] in a per-token task, whose `tokens` need the alignment.
    """
    return _READ[manifest.task_type](Predictions(manifest, split, tokens, logits))


def _loss(objective: Objective, logits: Logits, target: torch.Tensor) -> float:
    if not objective.has_target(target):
        return float("nan")
    return objective.loss([torch.from_numpy(logits)], [target]).item()


def _stacked(predictions: Predictions) -> Floats:
    return np.stack(predictions.logits).astype(np.float64)


def _single_label(predictions: Predictions) -> Answers:
    labels, gold = predictions.manifest.labels, predictions.split.gold
    scored = predictions.scored
    best = scored.scores.argmax(axis=1)
    confidence = scored.scores[np.arange(len(best)), best]
    right = best == gold
    hits = right if scored.abstained is None else right & ~np.asarray(scored.abstained, dtype=bool)
    return Answers(
        gold=[labels[i] for i in gold.tolist()],
        answer=[labels[i] for i in best.tolist()],
        score=confidence,
        loss=predictions.loss,
        measure=Measure("accuracy", hits.astype(np.float64), np.ones(len(right))),
        counts=count_indices(gold, best, labels),
        class_pairs=ClassPairs(gold, best),
        reliability=_reliability(predictions, "the best label of each text", confidence, right),
        abstained=scored.abstained,
    )


def _multi_label(predictions: Predictions) -> Answers:
    labels, gold = predictions.manifest.labels, predictions.split.gold > 0
    scored = predictions.scored
    scores, on = scored.scores, np.asarray(scored.selected, dtype=bool)
    # An answer that abstains names no label.
    answered = on if scored.abstained is None else on & ~np.asarray(scored.abstained, dtype=bool)[:, None]
    both = (gold & answered).sum(axis=1)
    return Answers(
        gold=_names(labels, gold),
        answer=_names(labels, on),
        score=np.where(on.any(axis=1), np.where(on, scores, np.inf).min(axis=1), np.nan),
        loss=predictions.loss,
        measure=Measure("micro_f1", 2.0 * both, (gold.sum(axis=1) + answered.sum(axis=1)).astype(np.float64)),
        counts=count_indicators(gold, on, labels),
        reliability=_reliability(predictions, "every label of every text", scores.ravel(), gold.ravel()),
        abstained=scored.abstained,
    )


def _names(labels: Sequence[str], on: Flags) -> list[list[str]]:
    return [[labels[i] for i in np.flatnonzero(row).tolist()] for row in on]


def _regression(predictions: Predictions) -> Answers:
    gold, predicted = predictions.split.gold.astype(np.float64), _stacked(predictions)[:, 0]
    return Answers(
        gold=gold.tolist(),
        answer=predicted.tolist(),
        score=np.full(len(gold), np.nan),
        loss=predictions.loss,
        measure=Measure("mae", np.abs(gold - predicted), np.ones(len(gold))),
    )


def _token(predictions: Predictions) -> Answers:
    labels, split = predictions.manifest.labels, predictions.split
    predicted = TokenLabel(labels).read(split, predictions.tokens, predictions.logits)
    gold, answered = np.concatenate(split.gold), np.concatenate(predicted)
    names = [[[labels[i] if i >= 0 else "O" for i in tags] for tags in side] for side in (split.gold, predicted)]
    by_word = [_confidence(predictions, i) for i in range(len(split))]
    confidence, right = np.concatenate(by_word), gold == answered
    is_read = ~np.isnan(confidence)
    entities, by_text = count_entities(*names) if is_bio(labels) else (None, None)
    if by_text is not None:
        counts = by_text.astype(np.float64)
        measure = Measure("entity_f1", 2 * counts[:, 0], counts[:, 1] + counts[:, 2])
    else:
        hits = [sum(a == b for a, b in zip(*sides, strict=True)) for sides in zip(split.gold, predicted, strict=True)]
        measure = Measure("token_accuracy", np.array(hits, float), np.array([*map(len, split.gold)], float))
    return Answers(
        gold=names[0],
        answer=names[1],
        score=np.array(
            [np.nanmean(confidences) if not np.isnan(confidences).all() else np.nan for confidences in by_word]
        ),
        loss=predictions.loss,
        measure=measure,
        counts=count_indices(gold, answered, labels),
        entities=entities,
        class_pairs=ClassPairs(gold, answered),
        reliability=_reliability(predictions, "the tag of each word", confidence[is_read], right[is_read]),
    )


def _confidence(predictions: Predictions, i: int) -> Floats:
    """[words], the score of each word's tag; NaN for truncated words."""
    alignment = predictions.tokens[i].alignment
    if alignment is None:
        raise ValueError("a token task needs texts that were tokenized with their alignment")
    logits = tempered(predictions.logits[i].astype(np.float64), predictions.manifest.decision)
    best = ACTIVATE[own_activation(predictions.manifest)](logits).max(axis=1)
    places = first_tokens(predictions.split.words[i], alignment)
    return np.array([np.nan if place is None else best[place] for place in places])


def _span(predictions: Predictions) -> Answers:
    answered, scores, abstained = [], [], []
    for text, tokens, logits in zip(predictions.split.texts, predictions.tokens, predictions.logits, strict=True):
        result = answer(logits, predictions.manifest, text, tokens.alignment, truncated=tokens.truncated)
        answers = result.answers if isinstance(result, Extraction) else []
        answered.append(answers[0].text if answers else "")
        scores.append(answers[0].score if answers else np.nan)
        abstained.append(isinstance(result, Extraction) and bool(result.abstained))
    gold = [[text for _, text in answers] for answers in predictions.split.gold]
    both = list(zip(answered, gold, strict=True))
    shared = [max(word_f1(given, right) for right in rights) for given, rights in both]
    exact = [max(exact_match(given, right) for right in rights) > 0 for given, rights in both]
    confidence = np.array(scores)
    is_answered = ~np.isnan(confidence)
    decision = predictions.manifest.decision
    return Answers(
        gold=gold,
        answer=answered,
        score=confidence,
        loss=predictions.loss,
        measure=Measure("f1", np.array(shared), np.ones(len(answered))),
        reliability=Reliability(
            "each answer, right where it matches exactly", confidence[is_answered], np.array(exact)[is_answered]
        ),
        abstained=np.array(abstained) if decision is not None and decision.abstains else None,
    )


def _reliability(predictions: Predictions, description: str, confidence: Floats, right: Flags) -> Reliability | None:
    return None if own_activation(predictions.manifest) == "none" else Reliability(description, confidence, right)


_READ: Mapping[TaskType, Callable[[Predictions], Answers]] = {
    "single_label": _single_label,
    "multi_label": _multi_label,
    "regression": _regression,
    "token": _token,
    "span": _span,
}
