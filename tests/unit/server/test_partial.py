"""Answers without the rest: what is wrong with one question, or late, is said of that one; in both kinds of process."""

import asyncio

import pytest

from loops import Clock
from onebert_server.answering import sizes
from onebert_server.answering.admission import Entry
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.reading import Unanswered
from onebert_server.answering.resolver import Resolver
from parts import assert_like, context, same


async def late(parts, asking):
    """What comes of a request whose time is over when the engine has computed one batch, and is held after it."""
    await asyncio.to_thread(parts.batches.entered.wait, 180)
    asyncio.get_running_loop().moved = 3600.0
    answers = await asking
    parts.batches.opened.set()
    return answers


def each(answerer, refs, texts):
    return answerer.answer(context(), Wanted(refs, partial=True), texts, same)


def asked(parts, refs, texts):
    return parts.run(lambda answerer: each(answerer, refs, texts))


def test_what_is_late_is_said_to_be_late(parts):
    """The engine is held by another's batch, so that nothing of the request is ever begun."""

    async def ask(answerer):
        parts.batches.opened.clear()
        holding = asyncio.create_task(answerer.answer(context(), Wanted(["good"]), ["it is late"], same))
        await asyncio.to_thread(parts.batches.entered.wait, 180)
        asking = asyncio.create_task(each(answerer, ["good", "nobody", "short"], ["late"] * 3))
        while parts.engine.queue.sequences < 2:
            await asyncio.sleep(0)
        answers = await late(parts, asking)
        await holding
        return answers

    output = parts.run(ask, loop_factory=Clock)
    assert [answer.error.code for answer in output] == ["deadline-exceeded", "task-not-found", "deadline-exceeded"]
    assert parts.unpinned()


@pytest.mark.parametrize("turns", range(5))
def test_a_request_that_ends_at_any_time_holds_no_version(parts, turns):
    """It ends after so many turns of the event loop: before its questions were resolved, or submitted, or later."""

    async def ask(answerer):
        asking = asyncio.create_task(each(answerer, ["good", "short"], ["late"] * 2))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        # Another one, of all that was asked, ends behind what is left of it.
        return await each(answerer, ["good", "short"], ["late"] * 2)

    assert [answer.facts.task for answer in parts.run(ask)] == ["good", "short"]
    assert parts.unpinned()


@pytest.mark.parametrize("count", [1, 1020])
def test_a_partial_fan_out_is_one_request(parts, monkeypatch, count):
    """Whatever goes wrong with some of its references."""
    resolved, submitted = [], []
    resolve, submit = Resolver.resolve, Entry.submit

    def submitting(entry, block):
        submitted.append((len(block.requests), len(asyncio.all_tasks()) < 10))
        submit(entry, block)

    monkeypatch.setattr(Resolver, "resolve", lambda *given: resolved.append(1) or resolve(*given))
    monkeypatch.setattr(Entry, "submit", submitting)
    answers = asked(parts, ["good", "nobody", "short", "spans", *["none"] * count], ["it is late"])
    assert [isinstance(answer, Unanswered) for answer in answers] == [False, True, False, True, *[True] * count]
    assert (len(resolved), submitted) == (1, [(1, True)])
    assert parts.unpinned()


def test_a_too_large_question_takes_no_room(parts, monkeypatch):
    parts.add("read", format=2, decision={"window": {"tokens": 8, "overlap": 2, "reduction": "max"}})
    monkeypatch.setattr(sizes, "MAX_SEQUENCES", 20)
    answers = asked(parts, ["read"] * 4, ["it is late", "late " * 400, "now " * 50, "order"])
    shown = [answer.error.code if isinstance(answer, Unanswered) else answer.facts.ref for answer in answers]
    assert shown == ["read@1", "too-large", "read@1", "read@1"]
    assert answers[2].reading.windows > 1
    assert_like(answers[3], parts.alone("read", "order"))
