"""Trying a text in a browser: the numbers shown are the model's, and the call that is offered does the same."""

import json
import os
import re
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from browsers import needs_chromium
from servers import Task, clean_env

pytestmark = [pytest.mark.slow, needs_chromium]

TEXT = "please help my order is late again"
VIEW = "/#/try"
TASKS = STORED = {"tone": [Task(seed=1), Task(seed=2)], "topic": [Task(seed=3, labels=["a b", "c", "d", "e"])]}


def classify(page, text=TEXT, **fields):
    for label, value in fields.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(value)
    page.get_by_label("Text", exact=True).fill(text)
    page.get_by_role("button", name="Classify").click()
    expect(page.get_by_role("heading", name="Answer")).to_be_visible()


def scores(card):
    """Label -> score, of a card's first table."""
    rows = card.locator("table.scores").first.locator("tbody tr").all()
    return {row.locator("th").inner_text(): float(row.locator("td").first.inner_text()) for row in rows}


def test_two_versions_beside_each_other(page):
    classify(page, Task="tone@1")
    page.get_by_label("Beside it (optional)").fill("tone@2")
    page.get_by_role("button", name="Classify").click()
    for version, task in enumerate(TASKS["tone"], 1):
        card = page.get_by_role("article", name=f"tone version {version}")
        expect(card).to_be_visible()
        assert scores(card) == pytest.approx(task.scores(TEXT), abs=6e-4)
    both = [task.scores(TEXT) for task in TASKS["tone"]]
    row = page.get_by_role("article", name="tone version 1").locator("tbody tr").first
    label, more = row.locator("th").inner_text(), row.locator("td").nth(1).inner_text()
    shown = 0.0 if more == "±0" else float(more.replace("−", "-"))
    assert shown == pytest.approx(both[0][label] - both[1][label], abs=1.1e-3)


def test_the_words_that_mattered_are_those_without_which_the_score_changes(page):
    classify(page, Task="tone@2")
    card = page.get_by_role("article", name="tone version 2")
    card.get_by_role("button", name="Which words mattered?").click()
    table = card.locator(".mattered table")
    expect(table).to_be_visible()
    task, words = TASKS["tone"][1], TEXT.split()
    whole = task.scores(TEXT)
    label = max(whole, key=whole.get)
    without = {word: TEXT.replace(word, "", 1) for word in words}
    effects = {word: whole[label] - task.scores(text)[label] for word, text in without.items()}
    rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tbody tr").all()]
    shown = {word: 0.0 if value == "±0" else float(value.replace("−", "-")) for word, value in rows}
    assert shown == pytest.approx(effects, abs=1.1e-3)
    sizes = [abs(value) for value in shown.values()]
    assert sizes == sorted(sizes, reverse=True)


def answer_of_page(page):
    return {name: round(score, 3) for name, score in scores(page.locator("article").first).items()}


def test_the_call_can_be_made_with_curl_and_in_python(page, server):
    text = "it's \"late\", again; $HOME `id` \\ \n and 'so on' 🙂 ü"
    classify(page, text=text, Task="tone@2")
    page.locator(".calls summary").click()
    curl, python = (page.locator(".snippet pre").nth(at).inner_text() for at in (0, 1))
    shown = answer_of_page(page)
    output = subprocess.run(["bash", "-c", curl], capture_output=True, check=True, timeout=180).stdout
    [result] = json.loads(output)["results"]
    assert {label: round(score, 3) for label, score in result["scores"].items()} == pytest.approx(shown, abs=1e-3)
    env = clean_env() | {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", python], capture_output=True, text=True, check=True, env=env, timeout=180
    )
    printed = dict(re.findall(r"'(label \d)': ([\d.e-]+)", done.stdout))
    assert {label: round(float(score), 3) for label, score in printed.items()} == pytest.approx(shown, abs=1e-3)
