"""Uses of slots against a count of who holds what: nothing out of date is held, and no row goes while it is used."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bases import far_row, loaded
from lengths import examples
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.banks.uses import Uses


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
def test_slots_that_do_not_exist_and_generations_that_never_were_are_refused(slots, generation):
    uses = Uses(lock := threading.RLock(), threading.Condition(lock), lambda _: None)
    uses.begin(3)
    known = int(uses.generation[3])
    with lock:
        held = uses.hold(slots_of(*slots), np.full(len(slots), generation, np.int64))
    assert held.tolist() == [slot == 3 and generation == known for slot in slots]
    assert uses.uses.sum() == held.sum()


def test_a_row_that_is_released_while_another_one_is_installed_is_freed_after_both(bank, monkeypatch):
    """The last use ends while the lock of the bytes is taken, which takes as long as a large row's copies."""
    slot, copying, copied = bank.install(row()), Event(), Event()
    write = bank._shift.write

    def slow(at, shift):
        copying.set()
        assert copied.wait(600)
        write(at, shift)

    assert hold(bank, slot, bank.generation[slot])
    bank.release(slot)
    monkeypatch.setattr(bank._shift, "write", slow)
    with ThreadPoolExecutor(1) as threads:
        installing = threads.submit(bank.install, row(2))
        assert copying.wait(600)
        let_go(bank, slot)
        assert not installing.done()
        copied.set()
        other = installing.result()
    assert other != slot
    assert hold(bank, other, bank.generation[other])
    assert bank.install(row(3)) == slot


@pytest.mark.parametrize("fresh", [True, False], ids=["a request", "a shadow"])
def test_the_row_that_was_used_last_goes_last_unless_a_shadow_has_used_it(bank, fresh):
    first, second = bank.install(row(1)), bank.install(row(2))
    bank.evictable[[first, second]] = True
    with bank.using:
        assert bank.hold(slots_of(first), bank.generation[[first]], fresh).all()
        bank.let_go(slots_of(first))
        assert bank.oldest()[1] == (second if fresh else first)


def test_threads_that_hold_while_others_release_never_use_a_row_of_another_version(bank):
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
            for _ in range(20):
                if not before.equal(bank.rows.shift[slot]):
                    torn.append(slot)
            let_go(bank, slot)

    with ThreadPoolExecutor(3) as threads:
        reading = [threads.submit(read) for _ in range(3)]
        try:
            for seed in range(200):
                slot = bank.install(row(seed))
                before, current[0] = current[0], (slot, int(bank.generation[slot]))
                bank.release(before[0])
        finally:
            ended.set()
        for one in reading:
            one.result()
    assert torn == []
    bank.release(current[0][0])
    assert (bank.num_resident, bank.uses.sum()) == (0, 0)


class Held(RuleBasedStateMachine):
    """Rows that come and go, are renewed and used, against a dictionary."""

    def __init__(self):
        super().__init__()
        self.freed = []
        lock = threading.RLock()
        self.uses = Uses(lock, threading.Condition(lock), self.freed.append)
        self.rows, self.released, self.held = {}, set(), Counter()
        self.known, self.free, self.next = [], [], 0

    def slot(self, data):
        return data.draw(st.sampled_from(sorted(self.rows)))

    @rule(evictable=st.booleans())
    def begin(self, evictable):
        slot = self.free.pop() if self.free else self.next
        self.next = max(self.next, slot + 1)
        self.uses.begin(slot)
        self.uses.evictable[slot] = evictable
        self.rows[slot] = int(self.uses.generation[slot])
        self.known.append((slot, self.rows[slot]))

    @rule()
    def grow(self):
        self.next += 50

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def renew(self, data):
        slot = self.slot(data)
        self.uses.renew(slot)
        self.rows[slot] = int(self.uses.generation[slot])
        assert (slot, self.rows[slot]) not in self.known
        self.known.append((slot, self.rows[slot]))

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def end(self, data):
        slot = self.slot(data)
        del self.rows[slot]
        self.released.add(slot)
        self.uses.end(slot)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def hold(self, data):
        wanted = data.draw(st.lists(st.sampled_from(self.known), min_size=1, max_size=6))
        slots, generations = zip(*wanted, strict=True)
        with self.uses.using:
            held = self.uses.hold(slots_of(*slots), generations_of(*generations))
        assert held.tolist() == [self.rows.get(slot) == generation for slot, generation in wanted]
        self.held.update(slot for slot, right in zip(slots, held, strict=True) if right)

    @precondition(lambda self: self.held.total())
    @rule(data=st.data())
    def let_go(self, data):
        slots = data.draw(st.lists(st.sampled_from(sorted(self.held.elements())), min_size=1, max_size=6))
        slots = list((Counter(slots) & self.held).elements())
        self.held.subtract(slots)
        let_go(self.uses, *slots)

    @invariant()
    def rows_are_freed_once_and_after_their_last_use(self):
        gone = {slot for slot in self.released if not self.held[slot]}
        assert sorted(self.freed) == sorted(gone)
        self.freed.clear()
        self.released -= gone
        self.free += gone

    @invariant()
    def the_oldest_is_one_that_nobody_uses(self):
        with self.uses.using:
            found = self.uses.oldest()
        idle = [slot for slot in self.rows if self.uses.evictable[slot] and not self.held[slot]]
        assert (found is None) == (not idle)
        if found:
            assert found == (min(self.uses.used[slot] for slot in idle), found[1])
            assert found[1] in idle


Held.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestHeld = Held.TestCase
