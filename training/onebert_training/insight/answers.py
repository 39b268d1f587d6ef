"""Computes a delta's answers to labeled rows, by task type, as a server would answer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.results import Extraction
from onebert_encoder.answering.scores import ACTIVATE, own_activation, score, tempered
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

    def of(self, rows: Any = slice(None)) -> float:
        """The metric on some rows; NaN when their bottom sums to 0."""
        below = float(self.bottom[rows].sum())
        return float(self.top[rows].sum()) / below if below else float("nan")


class Reliability(NamedTuple):
    """[n] confidences of answers and whether these are right; `what` describes one answer in words."""

    what: str
    confidence: Floats
    right: Flags


class Told(NamedTuple):
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
        told: input of the confusion matrix; None for tasks whose rows may have several classes or none.
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
    told: Told | None = None
    reliability: Reliability | None = None
    abstained: Flags | None = None


class Asked(NamedTuple):
    """The rows, the logits of a delta's head for them, and the delta's manifest."""

    manifest: Manifest
    split: Split
    tokens: Sequence[Tokens]
    logits: Sequence[Logits]

    @property
    def loss(self) -> Floats:
        """[rows], as in `Answers`; logits are divided by the task's temperature."""
        objective = OBJECTIVES[self.manifest.task_type](self.manifest.labels)
        targets = objective.targets(self.split, self.tokens)
        scaled = [tempered(one, self.manifest.decision).astype(np.float32) for one in self.logits]
        return np.array([_loss(objective, *row) for row in zip(scaled, targets, strict=True)], dtype=np.float64)


def read_answers(manifest: Manifest, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> Answers:
    """The delta's answers to at least one row. The manifest's decision applies, except for its windows.

    `logits` are finite: [labels] by row, or [tokens, labels] in a per-token task, whose `tokens` need the alignment.
    """
    return _READ[manifest.task_type](Asked(manifest, split, tokens, logits))


def _loss(objective: Objective, logits: Logits, target: torch.Tensor) -> float:
    if not objective.has_target(target):
        return float("nan")
    return objective.loss([torch.from_numpy(logits)], [target]).item()


def _stacked(asked: Asked) -> Floats:
    return np.stack(asked.logits).astype(np.float64)


def _single_label(asked: Asked) -> Answers:
    labels, gold = asked.manifest.labels, asked.split.gold
    found = score(_stacked(asked), asked.manifest)
    best = found.scores.argmax(axis=1)
    confidence = found.scores[np.arange(len(best)), best]
    right = best == gold
    return Answers(
        gold=[labels[i] for i in gold.tolist()],
        answer=[labels[i] for i in best.tolist()],
        score=confidence,
        loss=asked.loss,
        measure=Measure("accuracy", right.astype(np.float64), np.ones(len(right))),
        counts=count_indices(gold, best, labels),
        told=Told(gold, best),
        reliability=_reliability(asked, "the best label of each text", confidence, right),
        abstained=found.abstained,
    )


def _multi_label(asked: Asked) -> Answers:
    labels, gold = asked.manifest.labels, asked.split.gold > 0
    found = score(_stacked(asked), asked.manifest)
    scores, on = found.scores, np.asarray(found.selected, dtype=bool)
    both = (gold & on).sum(axis=1)
    return Answers(
        gold=_names(labels, gold),
        answer=_names(labels, on),
        score=np.where(on.any(axis=1), np.where(on, scores, np.inf).min(axis=1), np.nan),
        loss=asked.loss,
        measure=Measure("micro_f1", 2.0 * both, (gold.sum(axis=1) + on.sum(axis=1)).astype(np.float64)),
        counts=count_indicators(gold, on, labels),
        reliability=_reliability(asked, "every label of every text", scores.ravel(), gold.ravel()),
        abstained=found.abstained,
    )


def _names(labels: Sequence[str], on: Flags) -> list[list[str]]:
    return [[labels[i] for i in np.flatnonzero(row).tolist()] for row in on]


def _regression(asked: Asked) -> Answers:
    gold, found = asked.split.gold.astype(np.float64), _stacked(asked)[:, 0]
    return Answers(
        gold=gold.tolist(),
        answer=found.tolist(),
        score=np.full(len(gold), np.nan),
        loss=asked.loss,
        measure=Measure("mae", np.abs(gold - found), np.ones(len(gold))),
    )


def _token(asked: Asked) -> Answers:
    labels, split = asked.manifest.labels, asked.split
    predicted = TokenLabel(labels).read(split, asked.tokens, asked.logits)
    gold, answered = np.concatenate(split.gold), np.concatenate(predicted)
    names = [[[labels[i] if i >= 0 else "O" for i in tags] for tags in side] for side in (split.gold, predicted)]
    by_word = [_confidence(asked, i) for i in range(len(split))]
    confidence, right = np.concatenate(by_word), gold == answered
    seen = ~np.isnan(confidence)
    entities, by_text = count_entities(*names) if is_bio(labels) else (None, None)
    if by_text is not None:
        found = by_text.astype(np.float64)
        measure = Measure("entity_f1", 2 * found[:, 0], found[:, 1] + found[:, 2])
    else:
        hits = [sum(a == b for a, b in zip(*sides, strict=True)) for sides in zip(split.gold, predicted, strict=True)]
        measure = Measure("token_accuracy", np.array(hits, float), np.array([*map(len, split.gold)], float))
    return Answers(
        gold=names[0],
        answer=names[1],
        score=np.array([np.nanmean(one) if not np.isnan(one).all() else np.nan for one in by_word]),
        loss=asked.loss,
        measure=measure,
        counts=count_indices(gold, answered, labels),
        entities=entities,
        told=Told(gold, answered),
        reliability=_reliability(asked, "the tag of each word", confidence[seen], right[seen]),
    )


def _confidence(asked: Asked, i: int) -> Floats:
    """[words], the score of each word's tag; NaN for truncated words."""
    alignment = asked.tokens[i].alignment
    if alignment is None:
        raise ValueError("a token task needs texts that were tokenized with their alignment")
    logits = tempered(asked.logits[i].astype(np.float64), asked.manifest.decision)
    best = ACTIVATE[own_activation(asked.manifest)](logits).max(axis=1)
    places = first_tokens(asked.split.words[i], alignment)
    return np.array([np.nan if place is None else best[place] for place in places])


def _span(asked: Asked) -> Answers:
    found, scores, abstained = [], [], []
    for text, tokens, logits in zip(asked.split.texts, asked.tokens, asked.logits, strict=True):
        one = answer(logits, asked.manifest, text, tokens.alignment)
        answers = one.answers if isinstance(one, Extraction) else []
        found.append(answers[0].text if answers else "")
        scores.append(answers[0].score if answers else np.nan)
        abstained.append(isinstance(one, Extraction) and bool(one.abstained))
    gold = [[text for _, text in answers] for answers in asked.split.gold]
    shared = [max(word_f1(said, one) for one in right) for said, right in zip(found, gold, strict=True)]
    exact = [max(exact_match(said, one) for one in right) > 0 for said, right in zip(found, gold, strict=True)]
    confidence = np.array(scores)
    seen = ~np.isnan(confidence)
    rule = asked.manifest.decision is not None and asked.manifest.decision.abstain is not None
    return Answers(
        gold=gold,
        answer=found,
        score=confidence,
        loss=asked.loss,
        measure=Measure("f1", np.array(shared), np.ones(len(found))),
        reliability=Reliability("each answer, right where it matches exactly", confidence[seen], np.array(exact)[seen]),
        abstained=np.array(abstained) if rule else None,
    )


def _reliability(asked: Asked, what: str, confidence: Floats, right: Flags) -> Reliability | None:
    return None if own_activation(asked.manifest) == "none" else Reliability(what, confidence, right)


_READ: Mapping[TaskType, Callable[[Asked], Answers]] = {
    "single_label": _single_label,
    "multi_label": _multi_label,
    "regression": _regression,
    "token": _token,
    "span": _span,
}
