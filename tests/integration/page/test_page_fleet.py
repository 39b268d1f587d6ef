"""The fleet in a browser: what needs attention comes first, a thousand tasks are filtered, and nobody needs a mouse."""

import pytest
from playwright.sync_api import expect

from browsers import PHONE, assert_accessible, needs_chromium, opened
from onebert_store.file.format import loads
from onebert_store.registry.registry import Registry
from servers import Server, Task

pytestmark = [pytest.mark.nightly("browsers"), needs_chromium]

TASKS = 1000
# A file that is gone, of a task in the middle of the alphabet.
BROKEN, BUSY = "task-0500", "task-0777"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [{"width": 1200, "height": 800}, PHONE], ids=["wide", "phone"])
def test_what_needs_attention_comes_first_and_the_rest_by_traffic(browser, server, scheme, viewport):
    with opened(browser, f"{server.url}/#/fleet", color_scheme=scheme, viewport=viewport) as page:
        expect(page.get_by_text("1,000 tasks, 1 need attention")).to_be_visible()
        rows = page.get_by_role("region", name="Tasks of the fleet").locator("tbody tr")
        expect(rows).to_have_count(TASKS)
        assert [row.locator("th").inner_text() for row in rows.all()[:4]] == [BROKEN, BUSY, "task-0001", "task-0000"]
        expect(rows.first).to_contain_text("unavailable: 1")
        assert_accessible(page, f"{scheme} fleet")
        page.get_by_label("Filter by name").fill("77")
        wanted = sum("77" in f"task-{number:04}" for number in range(TASKS))
        expect(page.get_by_text(f"{wanted} of 1,000 tasks")).to_be_visible()
        expect(rows).to_have_count(wanted)
        page.get_by_label("Filter by name").press("Tab")
        for _ in range(2):
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text(BUSY)
