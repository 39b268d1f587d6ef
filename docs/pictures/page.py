"""Pictures of the page for README.md and docs/guide/page.md, in a minute or two: `python docs/pictures/page.py`.

Trains two versions of a task of the demo, serves them and looks at them. Needs playwright and a Chromium; here the
system has the font Inter. The pictures show latencies: nothing else should run on the machine.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from onebert_demo.tasks import TONE
from onebert_server.client import Client, ShadowShare, TargetFacts
from onebert_server.run.serving import serving
from onebert_store.command.process import record_of

HERE = Path(__file__).parent
TASK = TONE.name
TEXT = "The soup was cold and the waiter forgot us, but the dessert was lovely."
VERSIONS = (("bitfit", "--epochs", "8"), ("spafit:0-2-I", "--epochs", "8", "--learning-rate", "2e-3"))


@contextmanager
def served() -> Iterator[str]:
    """The address of a server that has answered before: the second version is live, the first one its shadow."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, (method, *options) in enumerate(VERSIONS, 1):
            out = ["--out", str(folder / f"{number}.safetensors")]
            recipe = ["--task", TASK, "--method", method, *options, "--data", str(TONE.folder)]
            record_of("train", *recipe, *out, report=print)
        with serving(folder / "data") as server, Client(server.url) as client:
            for number in range(1, len(VERSIONS) + 1):
                client.push(TASK, folder / f"{number}.safetensors")
            client.move_alias(TASK, "live", 2, expected=1)
            client.move_alias(TASK, "live", TargetFacts({"2": 100}, shadow=[ShadowShare(1, 20)]), expected=2)
            for _ in range(20):
                client.classify_items([(f"{TASK}@1", TEXT), (TASK, TEXT)])
            yield server.url


def shoot(page: Page, name: str) -> None:
    """Writes one picture, of what a window shows."""
    # Drawn whole, with what comes a moment later.
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)
    page.screenshot(path=HERE / f"{name}.png")


def look(page: Page, url: str) -> None:
    """Opens the views one after the other."""
    page.goto(f"{url}/#/try?task={TASK}@2&beside={TASK}@1")
    page.get_by_label("Text", exact=True).fill(TEXT)
    page.get_by_role("button", name="Classify").click()
    for number in (2, 1):
        card = page.get_by_role("article", name=f"{TASK} version {number}")
        card.get_by_role("button", name="Which words mattered?").click()
        card.locator(".mattered").wait_for()
    page.locator(".choice").evaluate("one => one.scrollIntoView()")
    shoot(page, "page-try")
    page.emulate_media(color_scheme="dark")
    page.goto(f"{url}/#/tasks/{TASK}")
    page.get_by_role("heading", name="Last moves").wait_for()
    shoot(page, "page-task")


def main() -> None:
    """Makes both pictures."""
    with served() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        look(browser.new_page(viewport={"width": 1100, "height": 860}), url)
        browser.close()


if __name__ == "__main__":
    main()
