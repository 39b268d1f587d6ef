"""Blocks of requests: no damaged one reaches a row, or the ids, of somebody else."""

import numpy as np
import pytest

from bases import far_row, loaded, tiny_base
from onebert_encoder.base.base import load_base
from onebert_server.access.principal import root
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.block import REQUEST, SEQUENCE, Block, validate
from onebert_server.engine.host import Host

BASE = loaded()
VOCABULARY, LONGEST = BASE.config.vocab_size, BASE.config.max_length


@pytest.fixture(scope="module")
def hosts():
    made = [Host(base, Bank(base)) for base in (BASE, load_base(str(tiny_base("roberta"))))]
    made[0].bank.install(far_row(BASE, "bitfit", labels=2, seed=0))
    return made


def block():
    """Two requests, of two sequences and of one; the second base has no segments and one row."""
    requests, sequences = np.zeros(2, REQUEST), np.zeros(3, SEQUENCE)
    requests["number"], requests["host"], requests["sequences"] = (5, 6), (0, 1), (2, 1)
    sequences["slot"], sequences["tokens"], sequences["second"], sequences["text"] = (
        (1, 0, 0),
        (3, 2, 4),
        (1, 0, 0),
        (0, 1, 2),
    )
    ids = np.array([7, 8 | 1 << 24, VOCABULARY - 1, 5, 6, 1, 2, 3, 4], np.int32)
    return Block([root("someone")], requests, sequences, ids)


@pytest.mark.parametrize(
    ("array", "field", "place", "value"),
    [
        ("requests", "host", 0, 2),
        ("requests", "principal", 1, 1),
        ("requests", "sequences", 0, 3),
        ("requests", "sequences", 1, -1),
        ("sequences", "slot", 0, 10**6),
        ("sequences", "tokens", 1, 0),
        ("sequences", "tokens", 0, 2**31 - 1),
        ("sequences", "second", 0, 3),
        ("sequences", "text", 0, 3),
        ("ids", None, 0, VOCABULARY),
        ("ids", None, 0, 7 | 2 << 24),
        ("ids", None, 5, 1 | 1 << 24),
    ],
)
def test_an_index_outside_of_what_is_there_is_refused(hosts, array, field, place, value):
    damaged = block()
    numbers = getattr(damaged, array)
    (numbers if field is None else numbers[field])[place] = value
    with pytest.raises(ValueError, match="damaged"):
        validate(damaged, hosts)


@pytest.mark.parametrize(
    ("tokens", "second", "ids"),
    [((3, 5), (0, 0), 7), ((3, 3), (1, 2), 7), ((3, 3), (0, 0), 8)],
    ids=["lengths", "places of the second text", "ids"],
)
def test_two_texts_with_one_number_are_refused(hosts, tokens, second, ids):
    """A batch computes one of them, and would read the answers of the other there."""
    requests, sequences = np.zeros(1, REQUEST), np.zeros(2, SEQUENCE)
    requests["sequences"], sequences["tokens"], sequences["second"] = 2, tokens, second
    alike = Block([root("someone")], requests, sequences, np.full(sum(tokens), 7, np.int32))
    alike.ids[-1] = ids
    with pytest.raises(ValueError, match="damaged"):
        validate(alike, hosts)
    sequences["text"] = 0, 1
    validate(alike, hosts)


def test_a_text_is_no_longer_than_its_base_takes(hosts):
    requests, sequences = np.zeros(1, REQUEST), np.zeros(1, SEQUENCE)
    requests["sequences"], sequences["tokens"], sequences["second"] = 1, LONGEST + 1, LONGEST
    longer = Block([root("someone")], requests, sequences, np.full(LONGEST + 1, 7, np.int32))
    validate(longer, hosts)
    sequences["second"] = 0
    with pytest.raises(ValueError, match="damaged"):
        validate(longer, hosts)
