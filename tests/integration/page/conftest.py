"""One browser for each file of tests."""

import pytest

from browsers import chromium


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running
