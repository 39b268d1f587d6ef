"""Which version of a split answers: Unleash's published hash, whose places stay while a share grows."""

from math import sqrt

import pytest

from onebert_server.versions.choice import at_random, chosen, murmur3, place_of
from onebert_store.registry.target import Target, alone

KEYS = [f"user-{number}".encode() for number in range(10_000)]


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        (b"", 0x0),
        (b"test", 0xBA6BD213),
        (b"hello", 0x248BFA47),
        (b"hello, world", 0x149BBB7F),
        (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
    ],
)
def test_the_hash_has_the_published_values(text, hashed):
    assert murmur3(text) == hashed


def test_places_are_those_of_unleash():
    """The values that its clients' own tests ask for."""
    assert (place_of("gr1", b"123"), place_of("groupX", b"999")) == (73, 25)


def answered(target, key, task="tone"):
    return chosen(target, task, lambda _: key)


def test_who_is_in_at_a_small_share_is_in_at_every_larger_one():
    before = set()
    for share in (1, 5, 20, 50, 80, 99):
        target = Target(((7, 100 - share), (8, share)), "principal")
        now = {key for key in KEYS if answered(target, key) == 8}
        assert before < now
        # Four standard errors of a share of 10,000 keys.
        assert abs(len(now) / len(KEYS) - share / 100) < 4 * sqrt(share * (100 - share) / 1e4 / len(KEYS))
        before = now
    assert {answered(alone(8), key) for key in KEYS} == {8}


def test_without_a_key_it_is_chance_by_the_same_shares():
    split, sticky = Target(((7, 80), (8, 20))), Target(((7, 80), (8, 20)), "header:X-User")
    for target in (split, sticky):
        share = sum(chosen(target, "tone", at_random) == 8 for _ in KEYS) / len(KEYS)
        # Six standard errors, since no seed is set: one run in a hundred million fails.
        assert abs(share - 0.2) < 6 * sqrt(0.16 / len(KEYS))
