"""The list of tasks in a browser: what needs attention comes first, it is sorted, searched and kept up to date."""

import pytest
from playwright.sync_api import expect

from browsers import PHONE, assert_accessible, needs_chromium, opened
from onebert_store.file.format import loads
from onebert_store.registry.registry import Registry
from servers import Server, Task

pytestmark = [pytest.mark.slow, needs_chromium]

TASKS = 1000
# A file that is gone, of a task in the middle of the alphabet.
BROKEN, BUSY = "task-0500", "task-0777"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attention")
    delta, other = (loads(Task(seed=seed).file) for seed in (1, 2))
    with Registry.open(folder / "data") as registry:
        with registry.storing(delta, None) as stored:
            for number in range(TASKS):
                if f"task-{number:04}" != BROKEN:
                    registry.add_stored(f"task-{number:04}", delta, stored)
        with registry.storing(other, None) as stored:
            registry.add_stored(BROKEN, other, stored)
    [path] = (folder / "data").rglob(f"*{other.digest.removeprefix('sha256:')}*")
    path.write_bytes(b"damaged")
    with Server(folder) as running:
        with running.client() as client:
            for _ in range(3):
                client.classify(BUSY, "a text")
            client.classify("task-0001", "a text")
        yield running


def names(page):
    """Of the rows that are drawn, from top to bottom."""
    rows = page.locator("#tasks li").all()
    return [name for _, name in sorted((row.bounding_box()["y"], row.locator(".title").inner_text()) for row in rows)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 800}, PHONE], ids=["wide", "phone"])
def test_what_needs_attention_comes_first_and_the_rest_by_traffic(browser, server, scheme, viewport):
    with opened(browser, server.url, color_scheme=scheme, viewport=viewport) as page:
        expect(page.get_by_text("1,000 tasks, 1 needs attention")).to_be_visible()
        # Only rows that are seen are drawn, and some above and below.
        assert page.locator("#tasks li").first.get_attribute("aria-setsize") == str(TASKS)
        assert 5 < page.locator("#tasks li").count() <= 40
        assert names(page)[:4] == [BROKEN, BUSY, "task-0001", "task-0000"]
        first = page.get_by_role("link", name=BROKEN)
        expect(first).to_contain_text("unavailable: 1")
        assert_accessible(page, f"{scheme} tasks")
        # Nothing of a row or card is cut off at the side.
        box, row = page.locator("#tasks").bounding_box(), first.bounding_box()
        assert row["width"] <= box["width"]
        # A task is a line.
        assert viewport is PHONE or row["height"] < 40
        page.get_by_role("button", name="Task", exact=True).click()
        expect(page.locator("#tasks .title").first).to_have_text("task-0000")
        assert names(page)[:3] == ["task-0000", "task-0001", "task-0002"]
        page.get_by_role("button", name="Requests a minute").click()
        expect(page.get_by_role("button", name="Requests a minute")).to_have_attribute("aria-pressed", "true")
        assert names(page)[:3] == [BUSY, "task-0001", "task-0000"]
        page.get_by_label("Search tasks").fill("77")
        wanted = sum("77" in f"task-{number:04}" for number in range(TASKS))
        expect(page.get_by_text(f"{wanted} of 1,000 tasks")).to_be_visible()
        page.get_by_label("Search tasks").press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(BUSY)


def test_the_list_is_read_again_by_itself_and_stays_where_it_is(browser, server):
    with opened(browser, server.url) as page:
        expect(page.get_by_text("1,000 tasks, 1 needs attention")).to_be_visible()
        page.locator("#tasks").evaluate("box => { box.scrollTop = 5000 }")
        expect(page.locator("#tasks .title").filter(has_text="task-0070")).to_be_visible()
        with page.expect_request("**/v1/status*"):
            pass
        with page.expect_response("**/v1/status*"):
            page.get_by_role("button", name="Refresh").click()
        assert page.locator("#tasks").evaluate("box => box.scrollTop") == 5000
        expect(page.locator("#tasks .title").filter(has_text="task-0070")).to_be_visible()
