"""Work in parts: a thread keeps its place until it has ended."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from onebert_server.turns import PartByPart


def test_who_gives_up_keeps_the_place_of_a_thread_that_still_computes():
    entered, opened, done = Event(), Event(), []

    def long(_):
        entered.set()
        opened.wait(60)
        return done.append("long") or []

    async def ask(workers):
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

    with ThreadPoolExecutor(2) as workers:
        asyncio.run(ask(workers))
    assert done == ["long", "other"]


def test_a_part_that_fails_gives_its_place_back():
    async def ask(workers):
        parts = PartByPart(workers, at_once=1, most=1)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await parts.run("a", [1], lambda _: [1 / 0])
        assert await parts.run("a", [1, 1], lambda part: [part.start]) == [0, 1]

    with ThreadPoolExecutor(1) as workers:
        asyncio.run(ask(workers))
