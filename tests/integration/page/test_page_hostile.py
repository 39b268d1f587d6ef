"""What others name and write is text on the page, whatever it looks like."""

import pytest
from playwright.sync_api import expect

from browsers import assert_accessible, needs_chromium, opened
from servers import Task

pytestmark = [pytest.mark.slow, needs_chromium]

MARKUP = "<img src=x onerror=\"violations.push('run')\"><script>violations.push('run')</script>"
LABELS = [MARKUP, "javascript:violations.push('run')", "x" * 200 + "\u202e", "${1+1}{{1+1}}"]
TRAINING = {
    "metric": MARKUP,
    "test": {MARKUP: 0.5, "__proto__": {"polluted": 1}},
    "data": {"name": MARKUP, "rows": {MARKUP: 3, "train": MARKUP}},
    "note": [MARKUP, {"deep": MARKUP}],
    "validation": None,
    "constructor": {"prototype": MARKUP},
}
STORED = {
    "tone": [Task(seed=n, labels=LABELS, method=MARKUP[:60], training=TRAINING | {"seed": n}) for n in (1, 2)],
    "a" * 63: Task(seed=3, training={"test": "no", "data": [1], "metric": 3}),
}


def test_names_labels_and_what_a_trainer_wrote_are_text(browser, server):
    with opened(browser, f"{server.url}/#/tasks/tone", viewport={"width": 360, "height": 700}) as page:
        expect(page.get_by_role("listitem", name="Version 2")).to_contain_text(MARKUP)
        page.get_by_text("of the manifests differ").click()
        page.get_by_label("Show what is the same, too").check()
        expect(page.get_by_role("region", name="Manifests of both")).to_contain_text(MARKUP)
        assert page.locator("main img, main script").count() == 0
        assert page.evaluate("({}).polluted") is None
        assert_accessible(page)
        page.goto(f"{server.url}/#/tasks/{'a' * 63}")
        expect(page.get_by_role("listitem", name="Version 1")).to_be_visible()
        assert_accessible(page)


def test_texts_and_what_is_said_of_them_are_text(browser, server):
    with opened(browser, f"{server.url}/#/try?task=tone&beside=tone@2") as page:
        page.get_by_label("Text", exact=True).fill(MARKUP)
        page.get_by_role("button", name="Classify").click()
        expect(page.get_by_role("article", name="tone version 1")).to_contain_text(MARKUP)
        page.get_by_role("button", name="Which words mattered?").first.click()
        expect(page.locator(".mattered .marked")).to_have_text(MARKUP)
        page.locator(".calls summary").click()
        assert page.locator("main img, main script").count() == 0
        assert_accessible(page)


def test_an_address_cannot_say_what_is_not_so(browser, server):
    for bad in (
        "#/tasks/%E0%A4%A",
        f"#/tasks/{MARKUP}",
        "#/constructor",
        "#/__proto__",
        "#/tasks/tone?version=9&beside=x",
    ):
        with opened(browser, f"{server.url}/{bad}", expected=["Failed to load resource"]) as page:
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert page.locator("main img, main script").count() == 0
