"""Tasks and their versions in a browser: found, compared, promoted and rolled back, with a mouse and without one."""

import pytest
from playwright.sync_api import expect

from browsers import PHONE, assert_accessible, needs_chromium, opened
from servers import Task

pytestmark = [pytest.mark.slow, needs_chromium]


def trained(seed, accuracy, **other):
    training = {"metric": "accuracy", "test": {"accuracy": accuracy, "f1": 0.5}, "seed": seed, "epochs": 3}
    data = {"name": "reviews", "digest": "sha256:0", "rows": {"train": 270, "test": 76}}
    return Task(seed=seed, training=training | {"data": data} | other)


TONES = [trained(1, 0.8125, note="old"), trained(2, 0.875, note="old"), trained(3, 0.75, note="new")]
STORED = {
    # Those whose names begin with x are changed, each by one test.
    **dict.fromkeys(("tone", "x-moved", "x-raced", "x-typed"), TONES),
    "tone-of-mail": Task(seed=4),
}


def names(page):
    return page.get_by_role("list", name="Tasks").locator(".title")


def test_tasks_are_found_as_one_types(page):
    expect(names(page)).to_have_text(["tone", "tone-of-mail", "x-moved", "x-raced", "x-typed"])
    page.get_by_label("Search tasks").fill("mail TONE")
    expect(names(page)).to_have_text(["tone-of-mail"])
    expect(page.get_by_text("1 of 5 tasks")).to_be_visible()
    page.get_by_role("link", name="tone-of-mail").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("tone-of-mail")
    page.go_back()
    expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")


def rows_of(page, name):
    """The rows of a table in a region of this name."""
    table = page.get_by_role("region", name=name).get_by_role("table")
    return table, lambda row: table.get_by_role("row", name=row, exact=True)


def test_what_differs_between_two_versions(page, server):
    page.goto(f"{server.url}/#/tasks/tone")
    page.get_by_label("Version", exact=True).select_option("3")
    page.get_by_label("beside").select_option("2")
    table, row = rows_of(page, "Facts of both")
    # What decides is seen at once, also where it is the same.
    expect(row("score 0.750 accuracy, test 0.875 accuracy, test")).to_be_visible()
    expect(row("data reviews, 270 train, 76 test reviews, 270 train, 76 test")).to_be_visible()
    expect(table.get_by_role("rowheader")).to_have_text(["score", "data", "method", "labels", "size"])
    expect(page.get_by_role("region", name="Manifests of both")).to_have_count(0)
    page.get_by_text("entries of the manifests differ").click()
    table, row = rows_of(page, "Manifests of both")
    expect(row("note new old")).to_be_visible()
    expect(row("test accuracy 0.75 0.875")).to_be_visible()
    expect(table.get_by_role("rowheader", name="epochs")).to_have_count(0)
    page.get_by_label("Show what is the same, too").check()
    expect(row("epochs 3 3")).to_be_visible()
    # What is shown is in the address, for who is sent it.
    page.reload()
    expect(page.get_by_label("Version", exact=True)).to_have_value("3")
    expect(page.get_by_label("beside")).to_have_value("2")


def test_promoting_and_rolling_back_ask_first(page, server):
    with server.client() as client:
        page.goto(f"{server.url}/#/tasks/x-moved")
        page.get_by_role("button", name="Promote version 2").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("live of x-moved is 1 now")
        assert_accessible(page)
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        assert client.task("x-moved")["aliases"] == {"live": 1}

        page.get_by_role("button", name="Promote version 2").click()
        dialog.get_by_role("button", name="Promote").click()
        expect(page.get_by_role("listitem", name="Version 2").locator(".tag.live")).to_be_visible()
        assert client.task("x-moved")["aliases"] == {"live": 2}

        page.get_by_role("button", name="Roll live back to 1").click()
        dialog.get_by_role("button", name="Roll back").click()
        expect(page.get_by_role("listitem", name="Version 1").locator(".tag.live")).to_be_visible()
        assert client.task("x-moved")["aliases"] == {"live": 1}
        # What is live needs no promotion, and what was rolled back is not one click away.
        expect(page.get_by_role("button", name="Promote version 1")).to_have_count(0)
        expect(page.get_by_role("list", name="Last moves").get_by_role("listitem").first).to_contain_text(
            "rolled back to 1"
        )

        page.get_by_role("button", name="Promote version 3").click()
        dialog.get_by_label("Alias").fill("next")
        expect(dialog).to_contain_text("next of x-moved is new")
        dialog.get_by_role("button", name="Promote").click()
        expect(page.get_by_role("listitem", name="Version 3")).to_contain_text("next")
        assert client.task("x-moved")["aliases"] == {"live": 1, "next": 3}


def test_an_alias_that_has_moved_meanwhile_is_not_moved_again(browser, server):
    with opened(browser, f"{server.url}/#/tasks/x-raced", expected=["Failed to load resource"]) as page:
        page.get_by_role("button", name="Promote version 2").click()
        with server.client() as client:
            client.move_alias("x-raced", "live", 3, 1)
            page.get_by_role("dialog").get_by_role("button", name="Promote").click()
            expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("alias-conflict")
            assert client.task("x-raced")["aliases"] == {"live": 3}


def focused(page):
    return page.evaluate("document.activeElement.textContent.trim()")


def tab_to(page, name):
    """Goes on by the tab key until something of this name has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if (
            page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent")
            == name
        ):
            return
    pytest.fail(f"the tab key does not come to {name}")


def test_everything_can_be_done_without_a_mouse(page, server):
    expect(names(page)).to_have_count(5)
    page.keyboard.press("Tab")
    assert focused(page) == "To the content"
    page.keyboard.press("Enter")
    assert focused(page) == "Tasks"
    page.keyboard.press("Tab")
    page.keyboard.type("x-")
    expect(names(page)).to_have_text(["x-moved", "x-raced", "x-typed"])
    page.keyboard.press("ArrowDown")
    assert focused(page).startswith("x-moved")
    page.keyboard.press("End")
    expect(page.locator(":focus .title")).to_have_text("x-typed")
    page.keyboard.press("Home")
    expect(page.locator(":focus .title")).to_have_text("x-moved")
    page.keyboard.press("PageDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    expect(page.get_by_role("heading", level=1)).to_have_text("x-typed")
    expect(page.get_by_role("button", name="Promote version 2")).to_be_visible()
    tab_to(page, "Promote version 2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Promote version 2")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Alias", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("listitem", name="Version 2").locator(".tag.live")).to_be_visible()
    with server.client() as client:
        assert client.task("x-typed")["aliases"] == {"live": 2}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible_light_and_dark_wide_and_narrow(browser, server, scheme):
    for options in ({}, {"viewport": PHONE}):
        with opened(browser, server.url, color_scheme=scheme, **options) as page:
            expect(names(page)).to_have_count(5)
            assert_accessible(page, "tasks")
            page.goto(f"{server.url}/#/tasks/tone")
            expect(page.get_by_role("region", name="Facts of both")).to_be_visible()
            assert_accessible(page, "task")
            page.get_by_role("link", name="Try both").click()
            page.get_by_label("Text", exact=True).fill("please help my order is late")
            page.get_by_role("button", name="Classify").click()
            page.get_by_role("button", name="Which words mattered?").first.click()
            expect(page.locator(".mattered")).to_have_count(1)
            page.locator(".calls summary").click()
            assert_accessible(page, "try")
