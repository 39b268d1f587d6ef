"""Tasks of each kind for the tests of façades, with what they must say, by the plain Hugging Face model."""

import numpy as np
import pytest

from servers import Task

# The key of a server that wants one.
KEY = "key-of-the-gateways"
TEXTS = ["please help my order is late", "the weather in paris was fine", "no"]
# Longer than any of the tasks reads at once.
LONG = " ".join(TEXTS * 8)
HARMS = ["hate", "spam", "violence/graphic", "harmless"]


def assert_best_first(scores: dict[str, float], expected: dict[str, float], within: float = 1e-4) -> None:
    """Scores by label are the plain model's, best first; float32 sums in another order have differed by 1e-6."""
    assert scores == pytest.approx(expected, abs=within)
    assert list(scores.values()) == sorted(scores.values(), reverse=True)


def moderating() -> Task:
    """Several labels may apply; one of the positive ones applies to some of the texts, and two others to none."""
    spam = sorted(sigmoids(Task(labels=HARMS, seed=1), text)["spam"] for text in TEXTS)
    thresholds = {"hate": 1.0, "violence/graphic": 1.0, "spam": (spam[0] + spam[1]) / 2}
    decision = {"positives": HARMS[:3], "thresholds": thresholds}
    return Task(labels=HARMS, seed=1, format=2, task_type="multi_label", decision=decision)


def telling() -> Task:
    """One label applies; the positive one is the likelier of two for the first text."""
    plain = Task(labels=["fine", "risky"], seed=2)
    scores = plain.scores(TEXTS[0])
    return Task(labels=["fine", "risky"], seed=2, format=2, decision={"positives": [max(scores, key=scores.get)]})


def naming() -> Task:
    """Entities."""
    return Task(labels=["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], pooling="none", seed=3, task_type="token")


def guards() -> dict[str, Task]:
    """Name -> task: all of them."""
    return {"harms": moderating(), "risk": telling(), "names": naming()}


def sigmoids(task: Task, text: str) -> dict[str, float]:
    """Label -> probability."""
    return dict(zip(task.manifest["labels"], (1 / (1 + np.exp(-task.logits(text)))).tolist(), strict=True))
