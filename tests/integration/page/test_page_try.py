"""Trying a text in a browser: the numbers shown are the model's, and the call that is offered does the same."""

import json
import os
import re
import subprocess
import sys
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import expect

from browsers import assert_accessible, needs_chromium, opened
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


def test_nothing_is_asked_until_a_task_is_chosen(page):
    asked = []
    page.on("request", lambda one: asked.append(urlsplit(one.url).path) if one.method == "POST" else None)
    button, text = page.get_by_role("button", name="Classify"), page.get_by_label("Text", exact=True)
    text.fill(TEXT)
    for blank in ("", "  "):
        page.get_by_label("Task", exact=True).fill(blank)
        expect(button).to_be_disabled()
        expect(button).to_have_accessible_description("Choose a task first.")
        text.press("Control+Enter")
    assert_accessible(page)
    page.get_by_label("All tasks").check()
    expect(button).to_be_enabled()
    page.get_by_label("One task").check()
    classify(page, Task="topic")
    expect(page.get_by_text("Choose a task first.")).to_have_count(0)
    assert asked == ["/v1/tasks/topic/classify"]


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


def test_a_long_text_is_asked_about_in_one_request(page, server):
    asked = []
    page.on("request", lambda one: asked.append(one.post_data_json) if one.method == "POST" else None)
    text = " ".join(f"word{at}" for at in range(300))
    classify(page, text=text, Task="tone@1")
    page.get_by_role("button", name="Which words mattered?").click()
    expect(page.locator(".mattered table")).to_be_visible()
    [_, words] = asked
    assert words == {"inputs": text, "explain": True}
    assert page.locator(".mattered .marked").inner_text().split() == text.split()


def test_what_is_asked_by_keys_does_not_take_the_focus_away(page):
    page.get_by_label("Task", exact=True).fill("tone")
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Classify").press("Enter")
    expect(page.get_by_role("heading", name="Answer")).to_be_visible()
    expect(page.get_by_role("button", name="Classify")).to_be_focused()
    page.get_by_role("button", name="Which words mattered?").press("Enter")
    expect(page.get_by_role("region", name="Words that mattered to tone 1")).to_be_focused()


def answer_of_page(page):
    return {name: round(score, 3) for name, score in scores(page.locator("article").first).items()}


def test_the_call_can_be_made_with_curl_and_in_python(page, server):
    text = "it's \"late\", again; $HOME `id` \\ \n and 'so on' 🙂 ü"
    classify(page, text=text, Task="tone@2")
    page.locator(".calls summary").click()
    curl, python = (page.locator(".snippet pre").nth(at).inner_text() for at in (0, 1))
    shown = answer_of_page(page)
    said = subprocess.run(["bash", "-c", curl], capture_output=True, check=True, timeout=180).stdout
    [result] = json.loads(said)["results"]
    assert {label: round(score, 3) for label, score in result["scores"].items()} == pytest.approx(shown, abs=1e-3)
    env = clean_env() | {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-c", python], capture_output=True, text=True, check=True, env=env, timeout=180
    )
    found = dict(re.findall(r"'(label \d)': ([\d.e-]+)", done.stdout))
    assert {label: round(float(score), 3) for label, score in found.items()} == pytest.approx(shown, abs=1e-3)


def test_what_the_server_refuses_is_shown_in_its_words(browser, server):
    with opened(browser, f"{server.url}/#/try", expected=["Failed to load resource"]) as page:
        page.get_by_label("Task", exact=True).fill("nowhere")
        page.get_by_label("Text", exact=True).fill(TEXT)
        page.get_by_role("button", name="Classify").click()
        alert = page.get_by_role("alert").filter(has_text="task-not-found")
        expect(alert).to_be_visible()
        said = httpx.post(f"{server.url}/v1/tasks/nowhere/classify", json={"inputs": TEXT}, timeout=180).json()
        expect(alert).to_contain_text(said["detail"])
        assert_accessible(page)
