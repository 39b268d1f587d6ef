"""SQuAD v1.1's metrics for answers in a context: exact match and F1 (Rajpurkar et al. 2016, section 6.1)."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from onebert_training.data.spans import GoldAnswer

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize(text: str) -> list[str]:
    """The words that SQuAD v1.1's evaluation compares: lower case, without punctuation and articles."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(predicted: str, answer: str) -> float:
    """1 if both texts are equal after `normalize`, else 0."""
    return float(normalize(predicted) == normalize(answer))


def word_f1(predicted: str, answer: str) -> float:
    """F1 of the words that both texts share."""
    found, wanted = normalize(predicted), normalize(answer)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def score_answers(gold: Sequence[Sequence[GoldAnswer]], predicted: Sequence[str]) -> dict[str, float]:
    """Exact match and F1: the best value over a question's acceptable answers, averaged over the questions."""

    def mean_of_best(measure: Callable[[str, str], float]) -> float:
        best = [
            max(measure(text, answer) for _, answer in answers) for answers, text in zip(gold, predicted, strict=True)
        ]
        return sum(best) / len(best)

    return {"f1": mean_of_best(word_f1), "exact_match": mean_of_best(exact_match)}
