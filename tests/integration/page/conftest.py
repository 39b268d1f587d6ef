"""One browser for each file of tests."""

import pytest

from browsers import chromium, opened


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def page(request, browser, server):
    """A page of the file's `server`, at the file's `VIEW`."""
    with opened(browser, server.url + getattr(request.module, "VIEW", "")) as opened_page:
        yield opened_page
