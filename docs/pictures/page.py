"""Pictures of the page for README.md and docs/page.md: `python docs/pictures/page.py URL TASK "A text"`.

The server at URL has TASK with versions 1 and 3. Needs playwright and a Chromium; here the system has the font Inter.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent


def shoot(page: Page, name: str) -> None:
    """Writes one picture, of what a window shows."""
    # Drawn whole, with what comes a moment later.
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)
    page.screenshot(path=HERE / f"{name}.png")


def main(url: str, task: str, text: str) -> None:
    """Opens the views one after the other."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 860})
        page.goto(f"{url}/#/try?task={task}@3&beside={task}@1")
        page.get_by_label("Text", exact=True).fill(text)
        page.get_by_role("button", name="Classify").click()
        for _ in range(2):
            page.get_by_role("button", name="Which words mattered?").first.click()
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(1000)
        page.get_by_role("heading", name="Answer").scroll_into_view_if_needed()
        shoot(page, "page-try")
        page.emulate_media(color_scheme="dark")
        page.goto(f"{url}/#/tasks/{task}")
        page.locator(".heat").last.scroll_into_view_if_needed()
        shoot(page, "page-changes")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
