"""API keys: exact schemes, whose each is, and loopback names where there are none."""

import asyncio
import hashlib
import tracemalloc

import pytest

from onebert_server.access.key_poller import KeyPoller
from onebert_server.access.keys import Holder, KeyRing
from onebert_server.access.principal import Action, root
from onebert_server.fairness.rates import Attempts
from onebert_server.http.auth import ApiKeys
from onebert_server.http.head import HEAD, Head
from onebert_store.errors import StorageUnavailable, TooManyAttempts, Unauthorized
from onebert_store.registry.grants import Grant, Scope
from onebert_store.registry.keys import Keys
from onebert_store.registry.records import Actor
from onebert_store.registry.registry import Registry


def _headers(*values):
    return Head([(b"authorization", value) for value in values])


def known(keys, head):
    """The principal that a question with this head has without a closer check."""
    return keys.known({"state": {HEAD: head}, "client": (ADDRESS, 1)})


def check(keys, headers, address):
    return asyncio.run(keys.principal_of(headers, address))


@pytest.fixture
def keys():
    return ApiKeys(KeyRing({hashlib.sha256(key).digest(): key.hex() for key in (b"one", b"two", "drei-ß".encode())}))


ADDRESS = "192.0.2.7"


@pytest.mark.parametrize("key", ["voilà", "Å", "x\x85"])
def test_a_key_may_end_in_a_byte_that_unicode_calls_whitespace(key):
    raw = key.encode()
    keys = ApiKeys(KeyRing({hashlib.sha256(raw).digest(): "raw"}))
    assert check(keys, _headers(b"Bearer " + raw), ADDRESS)
    assert check(keys, _headers(b"Bearer \t" + raw + b" \t"), ADDRESS)


def test_each_key_is_a_principal_of_its_own_wherever_it_comes_from(keys):
    principals = {check(keys, _headers(value), ADDRESS) for value in (b"Bearer one", b"Bearer two")}
    assert len(principals) == 2
    assert check(keys, _headers(b"bearer one"), "192.0.2.8") in principals
    assert not any("one" in who.name or "two" in who.name for who in principals), "never the key itself"


def test_a_key_that_is_known_already_is_looked_up_each_time():
    ring, head = KeyRing({}, closed=True), _headers(b"Bearer one")
    keys, now = ApiKeys(ring), [1.0]
    ring._clock = lambda: now[0]
    assert known(keys, head) is None
    ring.replace({hashlib.sha256(b"one").digest(): Holder(root("first"), expires=2.0)})
    assert known(keys, head) is None, "not before it was checked"
    assert check(keys, head, ADDRESS) == known(keys, head) == root("first")
    assert known(keys, _headers(b"Bearer one", b"Bearer one")) is None, "two keys are none"
    now[0] = 2.0
    assert known(keys, head) is None
    ring.replace({hashlib.sha256(b"one").digest(): Holder(root("second"))})
    assert known(keys, head) == root("second")
    ring.replace({})
    assert known(keys, head) is None


def test_without_keys_the_address_is_the_principal():
    loopback, keys = Head([(b"host", b"localhost:8000")]), ApiKeys(KeyRing({}))
    assert check(keys, loopback, "127.0.0.1") != check(keys, loopback, "127.0.0.2")
    assert check(keys, loopback, "127.0.0.1").may(Action.ADMINISTER)
    assert known(keys, loopback) == check(keys, loopback, ADDRESS)
    for closer in ([(b"host", b"example.org")], [(b"host", b"localhost"), (b"authorization", b"Bearer one")]):
        assert known(keys, Head(closer)) is None


def test_a_server_whose_first_key_is_made_takes_nobody_without_one():
    ring = KeyRing({})
    ring.replace({hashlib.sha256(b"one").digest(): Holder(root("key:one"))})
    with pytest.raises(Unauthorized):
        check(ApiKeys(ring), Head([(b"host", b"localhost:8000")]), ADDRESS)
    assert check(ApiKeys(ring), _headers(b"Bearer one"), ADDRESS).name == "key:one"


def test_attempts_without_a_key_are_limited_by_address():
    attempts = Attempts()
    for _ in range(100):
        attempts.count("a", now=50.0)
    for _ in range(1000):
        with pytest.raises(TooManyAttempts) as refused:
            attempts.count("a", now=50.0)
    assert (refused.value.status, refused.value.retry_after) == (429, 1)
    attempts.count("b", now=50.0)
    for _ in range(10):
        attempts.count("a", now=51.0)
    with pytest.raises(TooManyAttempts):
        attempts.count("a", now=51.0)


def test_a_made_key_is_told_although_the_registry_fails_then(tmp_path, monkeypatch):
    def away(_):
        raise StorageUnavailable("the database does not answer")

    with Registry.open(tmp_path / "store") as registry, monkeypatch.context() as failing:
        ring = KeyRing({})
        poller = KeyPoller(registry.keys, ring)
        failing.setattr(Keys, "mark", away)
        record, key = poller.create(Grant("app", frozenset({Scope.ADMIN})), None, Actor("boss"))
        assert registry.keys.all() == [record]
        failing.undo()
        poller.poll()
        assert ring.find(hashlib.sha256(key.encode()).digest()).name == "key:app"


def test_a_key_for_a_server_without_keys_is_noted_once(caplog):
    keys = ApiKeys(KeyRing({}))
    check(keys, Head([(b"host", b"localhost")]), ADDRESS)
    assert not caplog.records
    for _ in range(3):
        check(keys, Head([(b"host", b"localhost"), (b"authorization", b"Bearer a-secret")]), ADDRESS)
    [record] = caplog.records
    assert "a server without keys" in record.getMessage()
    assert "a-secret" not in record.getMessage()


def test_addresses_that_come_and_go_are_not_kept():
    attempts = Attempts()
    tracemalloc.start()
    for number in range(50_000):
        attempts.count(str(number), now=0.0)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 5_000_000
