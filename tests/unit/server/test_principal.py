"""What a principal may do, against the table of the scopes' meanings and Python's own globs."""

import sys
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_server.access.keys import Holder, KeyRing
from onebert_server.access.principal import Action, Principal, Scope, nobody
from onebert_store.errors import Forbidden, TaskNotFound

# Scope -> what it allows on its tasks, as docs/guide/keys.md says.
MEANINGS = {
    "classify": {"see", "classify", "measure"},
    "upload": {"see", "measure", "upload", "download"},
    "promote": {"see", "measure", "promote", "download"},
    "admin": {action.value for action in Action},
}
NAMES = st.text("ab-._1", min_size=1, max_size=6)
GLOBS = st.lists(st.text("ab-._1*", min_size=1, max_size=6), max_size=3).map(tuple)


@pytest.mark.parametrize("scopes", [(), *((meaning,) for meaning in MEANINGS), ("classify", "upload"), tuple(MEANINGS)])
@pytest.mark.parametrize("action", Action)
def test_scopes_allow_what_they_are_for(scopes, action):
    principal = Principal("someone", frozenset(map(Scope, scopes)), ("acme-*",))
    allowed = any(action.value in MEANINGS[scope] for scope in scopes)
    assert principal.may(action, "acme-tone") == allowed
    assert not principal.may(action, "other")
    assert not principal.may(action)
    if allowed:
        principal.require(action, "acme-tone")
        with pytest.raises(TaskNotFound, match="there is no task other"):
            principal.require(action, "other")
        with pytest.raises(Forbidden, match="for all tasks"):
            principal.require_all(action)
    else:
        with pytest.raises(Forbidden, match="scope"):
            principal.require(action, "acme-tone")
        with pytest.raises(Forbidden, match="scope"):
            principal.require(action, "other")


@given(globs=GLOBS, name=NAMES)
def test_a_glob_is_what_python_calls_one(globs, name):
    principal = Principal("someone", frozenset({Scope.CLASSIFY}), globs)
    assert principal.sees(name) == any(fnmatchcase(name, glob) for glob in globs)


def test_globs_of_many_stars_cost_what_they_are_long():
    """64 globs of 31 stars are what a key may have. Compiled as a regular expression they took 100 ms."""
    globs = (*(f"{letter}" + "*a" * 31 for letter in "bcdefghijklmnopqrstuvwxyz"), "*a" * 31, "*a" * 30 + "*b")
    principal = Principal("someone", frozenset({Scope.CLASSIFY}), globs)
    looks = 0

    def count(frame, event, what):
        nonlocal looks
        looks += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        seen = [principal.sees(name) for name in ("a" * 63, "a" * 62 + "c", "b" + "a" * 62)]
    finally:
        sys.setprofile(None)
    assert seen == [True, False, True]
    assert looks < 3 * sum(map(len, globs))


def test_a_ring_takes_keys_that_are_given_and_none_that_were():
    now = [100.0]
    ring = KeyRing({b"root": "root"}, clock=lambda: now[0])
    some = Principal("key:ci", frozenset({Scope.UPLOAD}), ("*",))
    ring.replace({b"one": Holder(some), b"two": Holder(some, expires=101.0)})
    assert ring.find(b"root").may(Action.ADMINISTER)
    assert (ring.find(b"one"), ring.find(b"two"), ring.find(b"three")) == (some, some, None)
    now[0] = 101.0
    assert (ring.find(b"one"), ring.find(b"two")) == (some, None)
    ring.replace({b"two": Holder(some)})
    assert (ring.find(b"one"), ring.find(b"two")) == (None, some)
    assert ring.find(b"root")


def test_a_key_of_the_environment_stays_root():
    ring = KeyRing({b"root": "root"})
    ring.replace({b"root": Holder(nobody("key:ci"), expires=0.0)})
    assert ring.find(b"root").may(Action.ADMINISTER)


def test_a_server_that_ever_had_a_key_is_never_open_again():
    ring = KeyRing({})
    assert ring.is_open
    ring.replace({}, is_open=True)
    assert ring.is_open
    ring.replace({}, is_open=False)
    assert not ring.is_open, "all that there are were revoked"
    ring.replace({}, is_open=True)
    assert not ring.is_open
    assert not KeyRing({}, closed=True).is_open
