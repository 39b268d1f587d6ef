"""Versions that move, go and come back while they are asked, in one process and from a front end's side of the wire."""

import asyncio
import sys
from threading import Event, Thread

import numpy as np
import pytest

from bases import far_row
from directories import retire
from onebert_encoder.answering.asked import Asked
from onebert_server.answering.gateway import Wanted
from onebert_store.errors import OneBertError, VersionNotFound
from onebert_store.registry.records import Alias
from onebert_store.registry.target import alone
from parts import context, same

TEXT = "it is late"
NUMBERS = Asked(activation="none")


def move(parts, version, task="moving"):
    """Returns once the move is in effect, as a move's answer does."""
    parts.directory.show(task, (), {"live": Alias(alone(version))}, ())


def scores(answered):
    return answered.facts.version, answered.read().answer.scores


async def ask(answerer, ref="moving", text=TEXT):
    [answered] = await answerer.answer(context(), Wanted([ref], asked=NUMBERS), [text], same)
    return scores(answered)


async def refusal(asking):
    with pytest.raises(OneBertError) as refused:
        await asking
    return refused.value.code


def assert_of(parts, version, answered, task="moving"):
    """Whether an answer is what this version says alone."""
    expected, _, _ = parts.alone(f"{task}@{version}", TEXT, NUMBERS)
    np.testing.assert_allclose(answered, expected.scores, atol=1e-5)


@pytest.fixture
def moving(parts):
    """Parts with a task of two versions, which tell each other apart; the second one is live."""
    for version in (1, 2):
        parts.add("moving", version, seed=version, bias=float(version))
    return parts


def test_an_acknowledged_move_is_in_force(moving):
    """The follower's thread moves an alias from version to version, while several clients ask without a pause."""
    last = 40
    for version in range(3, last + 1):
        moving.add("moving", version, seed=version, bias=float(version))
    acknowledged, answered, ended = [1], Event(), Event()

    def follow():
        for version in range(2, last + 1):
            move(moving, version)
            acknowledged[0] = version
            if version % 3 == 0:
                answered.clear()
                answered.wait(600)
        ended.set()

    async def client(answerer):
        count = 0
        while not ended.is_set():
            before = acknowledged[0]
            version, scores_ = await ask(answerer)
            assert before <= version <= acknowledged[0] + 1
            assert_of(moving, version, scores_)
            count += 1
            answered.set()
        return count

    async def asked(answerer):
        following = Thread(target=follow)
        following.start()
        counts = await asyncio.gather(*(client(answerer) for _ in range(3)))
        following.join()
        assert all(counts)
        assert (await ask(answerer))[0] == last

    move(moving, 1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        moving.run(asked)
    finally:
        sys.setswitchinterval(interval)
    assert moving.unpinned()


def test_a_deleted_version_answers_what_waits_by_its_own_row(moving):
    """While a batch holds the engine the version is deleted, and others are installed: none in its place."""

    async def asked(answerer):
        moving.batches.opened.clear()
        holding = asyncio.create_task(ask(answerer, "good"))
        await asyncio.to_thread(moving.batches.entered.wait, 60)
        waiting = asyncio.create_task(ask(answerer, "moving@1"))
        while moving.engine.queue.sequences < 1:
            await asyncio.sleep(0)
        retire(moving.directory, "moving", 1)
        for seed in range(3):
            moving.host.install(far_row(moving.base, "bitfit", labels=2, seed=seed)).release()
        assert await refusal(ask(answerer, "moving@1")) == VersionNotFound.code
        moving.batches.opened.set()
        await holding
        version, answered = await waiting
        assert version == 1
        assert_of(moving, 1, answered)

    moving.run(asked)
    del moving.rows["moving", 1]
    assert moving.unpinned()
