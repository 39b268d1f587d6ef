"""The metrics of each task type, and the choice of the one that decides."""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from sklearn.metrics import mean_absolute_error, r2_score

from onebert_encoder.answering.stretches import is_bio
from onebert_store.errors import InvalidData, NotFinite
from onebert_training.data.examples import GoldAnswer

LOWER_IS_BETTER = frozenset({"mae"})
REGRESSION = ("pearson", "spearman", "r2", "mae")
MULTI_LABEL = ("micro_f1", "macro_f1", "accuracy")
ENTITIES = ("entity_f1", "entity_precision", "entity_recall")
WORDS = ("token_accuracy", "macro_f1")
ANSWERS = ("f1", "exact_match")

# A metric's other name -> our names; the first one that the task type has is taken.
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "matthews_correlation": ("matthews",),
    "mcc": ("matthews",),
    "acc": ("accuracy", "token_accuracy"),
    "accuracy": ("accuracy", "token_accuracy"),
    "f1": ("f1", "entity_f1"),
    "span_f1": ("entity_f1",),
    "squad_f1": ("f1",),
    "em": ("exact_match",),
}


_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class JackknifeScore:
    """A score on the deciding rows, and without each of some blocks of them (`fit.keeping.jackknife_score`)."""

    metric: str
    score: float
    blocks: tuple[float, ...] = ()

    def lead_over(self, other: "JackknifeScore") -> tuple[float, float]:
        """The lead over `other` on the same rows, with the jackknife's standard error over the blocks (none: 0)."""
        sign = -1 if self.metric in LOWER_IS_BETTER else 1
        lead = sign * (self.score - other.score)
        if len(self.blocks) != len(other.blocks) or len(self.blocks) < 2:
            return lead, 0.0
        leads, count = np.array(self.blocks) - np.array(other.blocks), len(self.blocks)
        return lead, float(np.sqrt((count - 1) / count * ((leads - leads.mean()) ** 2).sum()))

    def is_ahead_of(self, other: "JackknifeScore") -> bool:
        """Whether the lead exceeds its standard error: the one rule for keeping or publishing a result."""
        lead, error = self.lead_over(other)
        return lead > error


def best_of(candidates: Sequence[JackknifeScore]) -> JackknifeScore:
    """The element with the best score."""
    return max(
        candidates, key=lambda candidate: -candidate.score if candidate.metric in LOWER_IS_BETTER else candidate.score
    )


def near_best(candidates: Sequence[JackknifeScore]) -> int:
    """Index of the first score, in order of trained size, that the best one is not ahead of."""
    best = best_of(candidates)
    return next(place for place, candidate in enumerate(candidates) if not best.is_ahead_of(candidate))


def clear_winner(candidates: Sequence[JackknifeScore]) -> int:
    """Index of the score that is ahead of the first one by most, else 0."""
    ahead = [place for place, candidate in enumerate(candidates) if candidate.is_ahead_of(candidates[0])]
    return max(ahead, key=lambda place: candidates[place].lead_over(candidates[0])[0], default=0)


def tag_metrics(labels: Sequence[str]) -> tuple[str, ...]:
    """Names of the metrics that `score_tags` reports."""
    return (*ENTITIES, *WORDS) if is_bio(labels) else WORDS


def choose_metric(names: Sequence[str], requested: str | None = None) -> str:
    """The deciding metric: `requested` (only the first part of `f1/accuracy` counts), else the first of `names`."""
    if requested is None:
        return names[0]
    name = requested.split("/")[0].strip().lower()
    metric = next((known for known in _ALIASES.get(name, (name,)) if known in names), None)
    if metric is None:
        raise InvalidData(f"the metrics of this task are {', '.join(names)}")
    return metric


def is_better(metric: str, score: float, best: float | None) -> bool:
    """Whether `score` beats the best so far; a tie does not."""
    if best is None:
        return True
    return score < best if metric in LOWER_IS_BETTER else score > best


def is_preferred(metric: str, score: float, loss: float, best: float | None, least: float) -> bool:
    """Whether `score` beats `best`, or ties with it at a `loss` below `least`, the loss of the best."""
    return is_better(metric, score, best) or (score == best and loss < least)


def check_finite(logits: Iterable[NDArray[np.floating]]) -> None:
    """Raises NotFinite if a logit is NaN or infinite."""
    if not all(np.isfinite(values).all() for values in logits):
        raise NotFinite("a logit is NaN or infinite")


def f1_of(right: NDArray[Any], gold: NDArray[Any], answered: NDArray[Any]) -> NDArray[np.float64]:
    """F1 by label, from counts of right answers, rows and answers by label; 0 for a label without rows and answers."""
    f1 = np.zeros(len(gold))
    np.divide(2 * right, gold + answered, out=f1, where=gold + answered > 0)
    return f1


def score_single_label(gold: NDArray[np.integer], logits: NDArray[np.floating]) -> dict[str, float]:
    """Metrics of gold [n] and logits [n, labels]; F1 of label 1, Gorodkin's (2004) correlation, 0 for one class.

    A row whose logits are NaN abstains, which is not right.
    """
    labels = logits.shape[1]
    # An abstention is an answer that no row asks for.
    answered = np.where(np.isnan(logits).any(axis=1), labels, logits.argmax(axis=1))
    right, rows, answers = (
        np.bincount(indices, minlength=labels + 1).astype(np.float64)
        for indices in (gold[gold == answered], gold, answered)
    )
    count, hits, each = len(gold), right.sum(), f1_of(right, rows, answers)
    present = (rows + answers > 0)[:labels]
    spread = (count**2 - rows @ rows) * (count**2 - answers @ answers)
    scores = {
        "accuracy": float(hits / count),
        "macro_f1": float(each[:labels][present].mean()),
        "matthews": float((count * hits - rows @ answers) / np.sqrt(spread)) if spread > 0 else 0.0,
    }
    if labels == 2:
        scores["f1"] = float(each[1])
    return scores


def score_multi_label(gold: NDArray[np.generic], logits: NDArray[np.floating]) -> dict[str, float]:
    """Metrics for gold zeros and ones [n, labels] and logits [n, labels]; labels with logits above 0 are answered.

    Macro F1 averages over labels that a row or an answer has, as in the other task types: never answering an absent
    label is right. A row whose logits are NaN abstains, which is not right.
    """
    on, present, abstained = logits > 0, gold.astype(bool), np.isnan(logits).any(axis=1)
    right, rows, answers = ((on & present).sum(axis=0), present.sum(axis=0), on.sum(axis=0))
    each = f1_of(right, rows, answers)[rows + answers > 0]
    return {
        "micro_f1": float(f1_of(*(counts.sum(keepdims=True) for counts in (right, rows, answers)))[0]),
        "macro_f1": float(each.mean()) if each.size else 0.0,
        "accuracy": float(((on == present).all(axis=1) & ~abstained).mean()),
    }


def score_regression(gold: NDArray[np.generic], logits: NDArray[np.floating]) -> dict[str, float]:
    """Metrics for gold numbers [n] and logits [n, 1]; the correlation with constant numbers counts as 0."""
    gold, predicted = gold.astype(np.float64), logits[:, 0].astype(np.float64)
    varies = np.ptp(gold) > 0 and np.ptp(predicted) > 0
    return {
        "pearson": float(stats.pearsonr(gold, predicted).statistic) if varies else 0.0,
        "spearman": float(stats.spearmanr(gold, predicted).statistic) if varies else 0.0,
        "r2": float(r2_score(gold, predicted)) if len(gold) > 1 else 0.0,
        "mae": float(mean_absolute_error(gold, predicted)),
    }


def score_tags(
    gold: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]], labels: Sequence[str]
) -> dict[str, float]:
    """Metrics for the tags of every word of every text; entities as in seqeval's default mode, -1 predicts no label."""
    flat, guessed = np.concatenate(gold), np.concatenate(predicted)
    right, rows, answers = (
        np.bincount(indices, minlength=len(labels)) for indices in (flat[flat == guessed], flat, guessed[guessed >= 0])
    )
    scores = {
        "token_accuracy": float((flat == guessed).mean()),
        "macro_f1": float(f1_of(right, rows, answers)[rows + answers > 0].mean()),
    }
    if is_bio(labels):
        named = [[[labels[tag] if tag >= 0 else "O" for tag in tags] for tags in side] for side in (gold, predicted)]
        precision, recall, f1, _ = precision_recall_fscore_support(*named, average="micro", zero_division=0)
        scores |= {"entity_f1": float(f1), "entity_precision": float(precision), "entity_recall": float(recall)}
    return scores


def normalize(text: str) -> list[str]:
    """The words that SQuAD v1.1's evaluation compares: lower case, without punctuation and articles."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(predicted: str, answer: str) -> float:
    """1 if both texts are equal after `normalize`, else 0."""
    return float(normalize(predicted) == normalize(answer))


def word_f1(predicted: str, answer: str) -> float:
    """F1 of the words that both texts share."""
    words, answer_words = normalize(predicted), normalize(answer)
    shared = sum((Counter(words) & Counter(answer_words)).values())
    return 2 * shared / (len(words) + len(answer_words)) if shared else 0.0


def score_answers(gold: Sequence[Sequence[GoldAnswer]], predicted: Sequence[str]) -> dict[str, float]:
    """SQuAD v1.1's exact match and F1 (Rajpurkar et al. 2016, section 6.1): the best acceptable answer counts."""

    def mean_of_best(measure: Callable[[str, str], float]) -> float:
        best = [
            max(measure(text, answer) for _, answer in answers) for answers, text in zip(gold, predicted, strict=True)
        ]
        return sum(best) / len(best)

    return {"f1": mean_of_best(word_f1), "exact_match": mean_of_best(exact_match)}
