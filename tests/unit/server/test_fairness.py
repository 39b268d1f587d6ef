"""Fairness between principals: shares and turns against twins that walk everything, and their steps per operation."""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Event

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_server.access.principal import root
from onebert_server.engine.block import REQUEST, SEQUENCE, Block
from onebert_server.engine.queue import Queue, QueueLimits
from onebert_server.engine.request import requests_of
from onebert_server.fairness.places import PartByPart, RoundRobin
from onebert_server.fairness.shares import Permits
from onebert_store.errors import OneBertError, OverShare, QueueFull

MOST = 100
principals = st.sampled_from("abcdef")


def taken(permits, principal, amount):
    """What comes of an attempt: nothing, or the kind of the refusal."""
    try:
        permits.take(principal, amount)
    except OneBertError as error:
        return type(error)
    return None


@given(st.lists(st.tuples(principals, st.integers(0, 60), st.booleans()), max_size=60))
def test_permits_are_those_of_a_twin_that_walks_all_holders(asked):
    permits, plain, twin = Permits(MOST, "full", "over"), Permits(MOST, "full"), []
    for principal, amount, gives_back in asked:
        if gives_back and twin:
            entry, held = twin.pop(amount % len(twin))
            for each in (permits, plain):
                each.give_back(entry, held)
            continue
        of_principal = sum(held for entry, held in twin if entry == principal)
        total, holders = sum(held for _, held in twin), {entry for entry, held in twin if held}
        fits = of_principal + amount <= MOST - total
        refused = OverShare if of_principal * len(holders) > total else QueueFull
        assert taken(permits, principal, amount) is (None if fits else refused)
        assert taken(plain, principal, amount) is (None if fits else QueueFull)
        if fits:
            twin.append((principal, amount))
        assert permits.total == sum(held for _, held in twin) <= MOST
        assert permits.principals == len({entry for entry, held in twin if held})
        # One that holds less is refused only where every other one that holds more is refused, too.
        by_share = sorted("abcdef", key=permits.of)
        assert all(permits.fits(less, 1) >= permits.fits(more, 1) for less, more in pairwise(by_share))


@given(st.lists(st.tuples(principals, st.integers(0, 9)), max_size=60), st.sets(st.integers(0, 9)))
def test_things_are_taken_in_turns(asked, unwanted):
    """Round robin of a twin: a list of lists, of which each in turn gives its first one."""
    turns, twin = RoundRobin(), {}
    for principal, number in asked:
        turns.put((principal, number), principal)
        twin.setdefault(principal, {})[principal, number] = None
    assert sorted(turns) == sorted(thing for things in twin.values() for thing in things)
    left = {principal: [thing for thing in things if thing[1] not in unwanted] for principal, things in twin.items()}
    expected = [things[turn] for turn in range(10) for things in left.values() if turn < len(things)]
    order = []
    while (thing := turns.take(lambda thing: thing[1] not in unwanted)) is not None:
        order.append(thing)
    assert order == expected
    assert (bool(turns), list(turns)) == (False, [])


def steps_of(work):
    """Instructions of Python's that something takes."""
    count, before = 0, sys.gettrace()

    def step(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return step

    sys.settrace(step)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def put(queue, principal, tokens):
    requests, sequences = np.zeros(1, REQUEST), np.zeros(1, SEQUENCE)
    requests["sequences"], requests["deadline"], sequences["tokens"] = 1, 1e9, tokens
    block = Block([root(principal)], requests, sequences, np.zeros(tokens, np.int32))
    [request] = requests_of(None, block, [], 0)
    assert queue.put([request], 0.0) is None
    return request


class Crowd:
    """Many principals in every structure: each holds something, and has a sentence or a long text waiting."""

    def __init__(self, number):
        self.permits, self.turns = Permits(10**12, "full", "over"), RoundRobin()
        self.queue = Queue(QueueLimits(10**9, 10**12, 1e6))
        [line] = self.queue.lines
        line.seconds_per_token, line.batch_tokens, line.most_tokens = 0.001, 70, 70
        for principal in range(number):
            self.permits.take(str(principal), (23, 512)[principal % 2])
            self.turns.put(principal, str(principal))
            put(self.queue, str(principal), (23, 512)[principal % 2])


OPERATIONS = {
    "hold": lambda crowd: [crowd.permits.take("3", 5), crowd.permits.give_back("3", 5)],
    "refuse": lambda crowd: taken(crowd.permits, "3", 10**12),
    "wait for a turn": lambda crowd: crowd.turns.put("one more", "3"),
    "whose turn": lambda crowd: [crowd.turns.take(lambda thing: True) for _ in range(8)],
    "check": lambda crowd: crowd.queue.refusal("3"),
    "put": lambda crowd: put(crowd.queue, "one more", 10),
    "take": lambda crowd: crowd.queue.take(0.0),
    "drop": lambda crowd: crowd.queue.lines[0].drop(put(crowd.queue, "leaves", 10)),
}


def test_no_question_and_no_batch_walks_all_principals():
    """From 16 to 16,384 principals the steps of each operation grow no faster than the logarithm of their number."""
    few, *more = map(Crowd, (16, 512, 16_384))
    for name, operation in OPERATIONS.items():
        first = steps_of(lambda work=operation: work(few))
        for log2, crowd in zip((9, 14), more, strict=True):
            assert 0 < steps_of(lambda work=operation, crowd=crowd: work(crowd)) <= first * log2 / 4, name


async def test_a_thread_that_still_computes_keeps_its_place():
    entered, opened, done = Event(), Event(), []

    def long(_):
        entered.set()
        opened.wait(600)
        return done.append("long") or []

    with ThreadPoolExecutor(2) as workers:
        parts = PartByPart(workers, at_once=1, most=1)
        given_up = asyncio.create_task(parts.run("a", [1, 1], long))
        await asyncio.to_thread(entered.wait, 60)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        other = asyncio.create_task(parts.run("b", [1], lambda _: done.append("other") or []))
        await asyncio.sleep(0)
        assert parts._places._waiting
        opened.set()
        await other
    assert done == ["long", "other"]


async def test_a_part_that_fails_gives_its_place_back():
    with ThreadPoolExecutor(1) as workers:
        parts = PartByPart(workers, at_once=1, most=1)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await parts.run("a", [1], lambda _: [1 / 0])
        assert await parts.run("a", [1, 1], lambda part: [part.start]) == [0, 1]
