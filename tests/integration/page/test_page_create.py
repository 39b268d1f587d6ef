"""A task made of examples in a browser: created and tried; a server without a trainer says so."""

import pytest
from playwright.sync_api import expect

from browsers import PHONE, assert_accessible, needs_chromium, opened
from servers import Server
from trainings import THINGS

pytestmark = [pytest.mark.slow, needs_chromium]
SETTINGS = {"trainer": True}
VIEW = "/#/create"


def fill(page, task):
    page.get_by_label("Task", exact=True).fill(task)
    for number, (label, word) in enumerate((("praise", "good"), ("complaint", "bad")), 1):
        page.get_by_label(f"Label {number}", exact=True).fill(label)
        page.get_by_label(f"Examples of label {number}").fill("\n".join(f"the {thing} was {word}" for thing in THINGS))


@pytest.mark.parametrize(
    ("task", "options"), [("light", {}), ("dark", {"color_scheme": "dark"}), ("phone", {"viewport": PHONE})]
)
def test_a_task_is_made_and_tried(browser, server, client, task, options):
    with opened(browser, server.url + VIEW, **options) as page:
        fill(page, task)
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("heading", name=f"{task} version 1")).to_be_visible()
        page.get_by_label("Try a text").fill("the parcel was bad")
        page.get_by_role("button", name="Classify").click()
        expect(page.locator("#answer")).to_contain_text("complaint")
        assert_accessible(page, "made")
    made = client.task(task)
    assert [(version["version"], version["labels"]) for version in made["versions"]] == [(1, 2)]


def test_without_a_trainer_the_page_names_the_setting(browser, tmp_path):
    refused = "Failed to load resource: the server responded with a status of 409"
    with Server(tmp_path) as plain, opened(browser, plain.url + VIEW, expected=[refused]) as page:
        fill(page, "none")
        page.get_by_role("button", name="Create").click()
        expect(page.get_by_role("alert")).to_contain_text("ONEBERT_TRAINER")
