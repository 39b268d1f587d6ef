"""API keys: constant work, exact schemes, and loopback names where there are none."""

import hashlib
import hmac

import pytest
from starlette.datastructures import Headers

from onebert_server.auth import ApiKeys
from onebert_store.errors import Unauthorized


def _headers(*values):
    return Headers(raw=[(b"authorization", value) for value in values])


@pytest.fixture
def keys():
    return ApiKeys(hashlib.sha256(key).digest() for key in (b"one", b"two", "drei-ß".encode()))


@pytest.mark.parametrize("value", [b"Bearer one", b"bearer two", b"BEARER one ", "Bearer drei-ß".encode()])
def test_right_keys(keys, value):
    keys.check(_headers(value))


@pytest.mark.parametrize(
    "values", [(), (b"",), (b"one",), (b"Bearer",), (b"Bearer three",), (b"Bearer One",), (b"Bearer one",) * 2]
)
def test_wrong_keys(keys, values):
    with pytest.raises(Unauthorized):
        keys.check(_headers(*values))


@pytest.mark.parametrize("place", range(3))
def test_every_key_is_compared_whichever_matches(keys, place, monkeypatch):
    """The number of comparisons, and so the time, does not tell which key was right or whether one was."""
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(b) or compare(a, b))
    keys.check(_headers(b"Bearer " + (b"one", b"two", "drei-ß".encode())[place]))
    assert len(compared) == 3
