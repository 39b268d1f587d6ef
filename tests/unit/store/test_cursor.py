"""The cursor of a reader outside: one replica holds it at a time, and it never goes on without its holder."""

import pytest

from onebert_store.registry import replicas as module
from onebert_store.registry.replicas import Cursor
from stores import all_at_once
from tiny_delta import make_delta


def cursors(registry, *holders):
    made = [Cursor(registry.database, "reader", holder) for holder in holders]
    made[0].begin()
    return made


def test_a_cursor_begins_at_the_end_of_the_feed_once(registry):
    registry.add("a", make_delta(1))
    (cursor,) = cursors(registry, "one")
    assert not cursor.behind
    registry.add("b", make_delta(2))
    cursor.begin()
    assert cursor.behind
    with cursor.claimed() as at:
        assert at == 1
        assert cursor.advance(1, 2)
    assert not cursor.behind


def test_one_of_many_claims_a_cursor(registry):
    made = cursors(registry, *map(str, range(8)))
    claims = all_at_once(8, lambda n: (claim := made[n].claimed(), claim.__enter__()))
    (holder,) = [n for n, (_, at) in enumerate(claims) if at is not None]
    other = made[holder - 1]
    assert not other.advance(0, 5), "it does not hold the cursor"
    assert made[holder].advance(0, 3)
    assert not made[holder].advance(0, 4), "the cursor is not at 0 any more"
    claims[holder][0].__exit__(None, None, None)
    with other.claimed() as at:
        assert at == 3


@pytest.mark.parametrize("seconds", [-1.0, 3600.0])
def test_an_expired_lease_is_free(registry, monkeypatch, seconds):
    monkeypatch.setattr(module, "LEASE_SECONDS", seconds)
    dead, other = cursors(registry, "dead", "other")
    with dead.claimed() as at, other.claimed() as again:
        assert (at, again) == (0, 0 if seconds < 0 else None)
        assert dead.advance(0, 2) == (seconds > 0)
        assert other.advance(0, 1) == (seconds < 0)


def test_a_dead_holder_with_the_same_name_goes_on_at_once(registry):
    dead, alive = cursors(registry, "owner", "owner")
    dead.claimed().__enter__()
    with alive.claimed() as at:
        assert at == 0
