"""Five thousand tasks in a browser: all are searched, and only those that are seen are drawn."""

import pytest
from playwright.sync_api import expect

from browsers import assert_accessible, needs_chromium, opened
from onebert_store.file.format import loads
from onebert_store.registry.registry import Registry
from servers import Server, Task

pytestmark = [pytest.mark.slow, needs_chromium]

TASKS = 5000
# As many rows as a window of 800 pixels has, and some above and below.
MOST = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    delta = loads(Task(seed=1).file)
    with Registry.open(folder / "data") as registry, registry.storing(delta, None) as stored:
        for number in range(TASKS):
            registry.add_stored(f"task-{number:04}", delta, stored)
    with Server(folder) as running:
        yield running


def test_thousands_of_tasks_are_listed_searched_and_walked_through(browser, server):
    with opened(browser, server.url) as page:
        expect(page.get_by_text("5,000 tasks", exact=True)).to_be_visible()
        rows, drawn = page.locator("#tasks li"), page.locator("#tasks .title")
        assert 5 < rows.count() <= MOST
        assert rows.first.get_attribute("aria-setsize") == str(TASKS)
        search = page.get_by_label("Search tasks")
        search.fill("77")
        wanted = [name for name in (f"task-{number:04}" for number in range(TASKS)) if "77" in name]
        expect(page.get_by_text(f"{len(wanted)} of 5,000 tasks")).to_be_visible()
        shown = drawn.all_inner_texts()
        assert shown == wanted[: len(shown)]
        search.fill("")
        expect(drawn.first).to_have_text("task-0000")
        search.press("ArrowDown")
        page.keyboard.press("End")
        expect(page.locator(":focus .title")).to_have_text("task-4999")
        assert rows.count() <= MOST + 1
        page.keyboard.press("PageUp")
        expect(page.locator(":focus .title")).not_to_have_text("task-4999")
        page.locator("#tasks").evaluate("box => { box.scrollTop = box.scrollHeight / 2 }")
        expect(drawn.filter(has_text="task-2500")).to_be_visible()
        assert rows.count() <= MOST + 1
        assert_accessible(page)
