"""The picture of a report in docs/guide/training.md, in a minute: `python docs/pictures/report.py`.

Trains a task of the demo and measures it on its test rows. Needs playwright and a Chromium; here the system has the
font Inter.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from onebert_demo.tasks import ROUTING
from onebert_store.command.process import ONEBERT, record_of

PICTURE = Path(__file__).with_name("report.png")


def write_report(folder: Path) -> Path:
    """The page that `onebert evaluate --report` writes of a task that is trained with the defaults."""
    delta, report = folder / f"{ROUTING.name}.safetensors", folder / "report.html"
    record_of("train", "--task", ROUTING.name, "--data", str(ROUTING.folder), "--out", str(delta), report=print)
    evaluate = ["evaluate", str(delta), "--data", str(ROUTING.folder), "--report", str(report)]
    subprocess.run([*ONEBERT, *evaluate], check=True)  # noqa: S603 - our own command, no shell
    return report


def main() -> None:
    """Makes the picture, of what a window shows."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        report = write_report(Path(name))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 1500})
        page.goto(report.as_uri())
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
