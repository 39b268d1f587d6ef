"""A real Chromium for tests, and pages in it that note what the page at `/` must never do."""

import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
OPTIONS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]

# Milliseconds; a machine that does much else only takes longer.
PATIENCE = 180_000
WIDE, PHONE = {"width": 1200, "height": 800}, {"width": 360, "height": 740}

expect.set_options(timeout=PATIENCE)

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

# What the browser refuses for the policy is kept where a test finds it, also when the page does not notice.
VIOLATIONS = """
window.violations = [];
addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) => {
  violations.push(`${violatedDirective} ${blockedURI}`);
});
"""


@contextmanager
def chromium():
    """A running browser with a profile of its own."""
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS, timeout=PATIENCE)
        yield running
        running.close()


@contextmanager
def opened(browser, url, expected=(), **options):
    """A page of a profile of its own at a server's address.

    Where the block ends, nothing may have gone wrong that nobody sees: errors of scripts, what the policy refuses, and
    requests to other hosts. `expected` are beginnings of what the console may say.
    """
    context = browser.new_context(**{"viewport": WIDE} | options)
    context.set_default_timeout(PATIENCE)
    context.add_init_script(VIOLATIONS)
    page = context.new_page()
    faults, asked = [], []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: line.type in ("error", "warning") and faults.append(line.text))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    yield page
    assert page.evaluate("violations") == []
    assert {urlsplit(url).netloc for url in asked} == {urlsplit(url).netloc}
    assert [fault for fault in faults if not fault.startswith(tuple(expected))] == []
    context.close()


def assert_accessible(page, name=""):
    """Nothing that axe finds fault with, and nothing to scroll to at the side."""
    # What fades in has its colours only then.
    page.wait_for_function("document.getAnimations().every(({ playState }) => playState !== 'running')")
    violations = Axe().run(page).response["violations"]
    assert [(violation["id"], [node["html"] for node in violation["nodes"]]) for violation in violations] == [], name
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
