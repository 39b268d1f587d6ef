"""A registry on each kind of database, and `onebert store …` on the store of a test."""

from functools import partial

import pytest

from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
from tiny_delta import make_delta


@pytest.fixture
def registry(place):
    with Registry.open(place) as opened:
        yield opened


@pytest.fixture
def store(place):
    """The store of a registry in use, with one version, as another process sees it."""
    with Registry.open(place) as registry, join_store(place) as store:
        registry.add("spam", make_delta(1))
        yield store


@pytest.fixture
def onebert(onebert, monkeypatch, tmp_path):
    """Runs `onebert store …`, by default on the store of this test; exit code, standard output and error."""
    monkeypatch.setenv("ONEBERT_DATA_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "160")
    return partial(onebert, "store")
