"""Where the stores of these tests are: every test of a registry runs on each kind of database."""

import pytest

from onebert_store.registry.store import StoreAddress


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """A store that is not there yet; its blobs are in `tmp_path / "store" / "blobs"`."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgresql" else None
    return StoreAddress.within(tmp_path / "store", url)
