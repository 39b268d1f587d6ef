"""Uses of slots against a count of who holds what: nothing out of date is held, and no row goes while it is used."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bases import far_row, loaded
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.banks.uses import BankBytes, Uses


def slots_of(*numbers):
    return np.array(numbers, np.int32)


def generations_of(*numbers):
    return np.array(numbers, np.int64)


def hold(uses, slot, generation):
    with uses.using:
        return bool(uses.hold(slots_of(slot), generations_of(generation))[0])


def let_go(uses, *slots):
    with uses.using:
        uses.let_go(slots_of(*slots))


def row(seed=1):
    return far_row(loaded(), "bitfit", labels=2, seed=seed)


@pytest.fixture
def bank():
    return Bank(loaded())


@given(slots=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20), generation=st.integers(-(2**63), 2**63 - 1))
def test_unknown_slots_and_generations_are_refused(slots, generation):
    uses = Uses(BankBytes(0), lambda _: None)
    uses.begin(3)
    known = int(uses.generation[3])
    with uses.using:
        held = uses.hold(slots_of(*slots), np.full(len(slots), generation, np.int64))
    assert held.tolist() == [slot == 3 and generation == known for slot in slots]
    assert uses.uses.sum() == held.sum()


@pytest.mark.parametrize("fresh", [True, False], ids=["a request", "a shadow"])
def test_a_shadows_use_keeps_no_row(bank, fresh):
    first, second = bank.install(row(1)), bank.install(row(2))
    bank.evictable[[first, second]] = True
    with bank.using:
        assert bank.hold(slots_of(first), bank.generation[[first]], fresh).all()
        bank.let_go(slots_of(first))
        assert bank.oldest()[1] == (second if fresh else first)


def test_a_held_row_is_never_overwritten(bank):
    """Whoever holds a slot reads its row while it is released, and no other row is written there meanwhile."""
    ended, torn = Event(), []
    slot = bank.install(row())
    current = [(slot, int(bank.generation[slot]))]

    def read():
        while not ended.is_set():
            slot, generation = current[0]
            if not hold(bank, slot, generation):
                continue
            before = bank.rows.shift[slot].clone()
            for _ in range(10):
                if not before.equal(bank.rows.shift[slot]):
                    torn.append(slot)
            let_go(bank, slot)

    with ThreadPoolExecutor(3) as threads:
        reading = [threads.submit(read) for _ in range(3)]
        try:
            for seed in range(60):
                slot = bank.install(row(seed))
                before, current[0] = current[0], (slot, int(bank.generation[slot]))
                bank.release(before[0])
        finally:
            ended.set()
        for future in reading:
            future.result()
    assert torn == []
    bank.release(current[0][0])
    assert (bank.num_resident, bank.uses.sum()) == (0, 0)
