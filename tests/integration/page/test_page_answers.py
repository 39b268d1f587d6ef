"""Answers of every kind in a browser: what a task does not say is not said for it, and only like numbers are ranked."""

import numpy as np
import pytest
from playwright.sync_api import expect

from browsers import assert_accessible, needs_chromium
from servers import Task

pytestmark = [pytest.mark.slow, needs_chromium]

TEXT = "please help my order is late again"
LABELS = ["a", "b", "c"]


def decided(seed, task_type="single_label", **decision):
    return Task(seed=seed, labels=LABELS, format=2, task_type=task_type, decision=decision)


def far_value():
    """A regression with a value above every probability."""
    task = Task(seed=7, labels=["stars"], task_type="regression")
    task.tensors["head.bias"] = np.array([40.0], np.float32)
    return task


VIEW = "/#/try"
TASKS = STORED = {
    "digits": Task(seed=2, labels=[str(number) for number in range(10)]),
    "nothing": decided(3, "multi_label", thresholds=dict.fromkeys(LABELS, 0.9999)),
    "sure": Task(seed=4, labels=LABELS),
    "stars": far_value(),
    "unsure": decided(5, abstain={"below": 0.9999}),
    "several": decided(6, "multi_label", thresholds=dict.fromkeys(LABELS, 0.0001)),
}


def classify(page):
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Classify").click()
    expect(page.get_by_role("heading", name="Answer")).to_be_visible()


def ranked(task):
    """Labels with their probabilities, by sigmoid of a multi-label task, best first."""
    scores = task.scores(TEXT)
    if task.manifest["task_type"] == "multi_label":
        scores = dict(zip(LABELS, 1 / (1 + np.exp(-task.logits(TEXT))), strict=True))
    return sorted(scores.items(), key=lambda entry: -entry[1])


def test_only_probabilities_are_ranked_and_who_says_nothing_comes_after_them(page):
    page.get_by_label("All tasks").check()
    classify(page)
    links = page.get_by_role("list", name="Answers of all tasks").get_by_role("link")
    expect(links).to_have_count(len(TASKS))
    rows = [tuple(row.locator("> span").all_inner_texts()) for row in links.all()]
    best = {name: ranked(TASKS[name]) for name in ("digits", "sure", "several")}
    order = sorted(best, key=lambda name: -best[name][0][1])
    several = ", ".join(label for label, _ in best["several"])
    best_label = {name: best[name][0][0] for name in order} | {"several": several}
    assert [row[:2] for row in rows] == [
        *((f"{name}@1", best_label[name]) for name in order),
        ("nothing@1", "nothing flagged"),
        ("unsure@1", "abstained"),
        ("stars@1", "stars"),
    ]
    assert [row[2] for row in rows[3:5]] == ["", ""]
    assert float(rows[5][2]) == pytest.approx(float(TASKS["stars"].logits(TEXT)[0]), rel=6e-3)
    assert_accessible(page)
