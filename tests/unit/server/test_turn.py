"""A turn of the event loop: what fails in it, and who waits for it."""

import asyncio
import time
from dataclasses import replace

import numpy as np
import pytest

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.answering import asking, turn
from onebert_server.answering.admission import Entry
from onebert_server.answering.asking import Asking
from onebert_server.answering.gateway import Wanted
from onebert_server.engine.block import REQUEST, SEQUENCE, Block
from onebert_server.remote import wire
from onebert_store.errors import EngineFailed, OneBertError, QueueFull
from onebert_store.registry.grants import Quotas
from parts import assert_like, context, same


@pytest.mark.parametrize("parts", [False], indirect=True)
@pytest.mark.parametrize(
    ("owner", "step", "after"),
    [(Entry, "submit", False), (Entry, "submit", True), (Asking, "take", False)],
    ids=["before the engine takes it", "when it is taken", "when it is answered"],
)
def test_what_breaks_on_its_way_fails_alone(parts, monkeypatch, owner, step, after):
    """One request of a turn breaks; the others are answered, also those of later turns."""
    real = getattr(owner, step)

    def run(owned, *given):
        broken = len(owned.texts) == 7 if owner is Asking else 7 in given[0].requests["sequences"]
        if after or not broken:
            real(owned, *given)
        if broken:
            raise MemoryError

    monkeypatch.setattr(owner, step, run)

    async def ask(answerer):
        def ask(texts):
            return answerer.answer(context(), Wanted(["good"] * texts), ["it is late"] * texts, same)

        for _ in range(2):
            before, broken, behind = await asyncio.gather(*map(ask, (1, 7, 2)), return_exceptions=True)
            assert isinstance(broken, MemoryError)
            for answered in (*before, *behind):
                assert_like(answered, parts.alone("good", "it is late"))

    async def in_time(answerer):
        await asyncio.wait_for(ask(answerer), 20)

    parts.run(in_time)
    parts.engine.close(60)
    assert parts.unpinned()


class Panic(BaseException):
    """As the tokenizers' library raises when its own code fails."""


@pytest.mark.parametrize("parts", [False], indirect=True)
def test_a_panic_of_a_tokenizer_ends_its_turn_and_no_later_one(parts, monkeypatch):
    ids = Tokenizer.ids

    def panic(tokenizer, texts):
        if "late" in texts:
            raise Panic
        return ids(tokenizer, texts)

    monkeypatch.setattr(Tokenizer, "ids", panic)

    async def ask(answerer):
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        with pytest.raises(EngineFailed):
            await asyncio.wait_for(answerer.answer(context(), Wanted(["good"]), ["late"], same), 20)
        return await answerer.answer(context(), Wanted(["good"]), ["it is now"], same)

    [answered] = parts.run(ask)
    assert_like(answered, parts.alone("good", "it is now"))
    assert parts.unpinned()


@pytest.mark.parametrize("parts", [True], ids=["front end"], indirect=True)
def test_a_block_whose_requests_cannot_be_read_ends_its_front_end(parts):
    async def ask(_):
        lost = asyncio.Event()
        parts.transport._channel._lost = lost.set
        nothing = memoryview(b"")
        parts.transport.submit(wire.BlockMessage([], memoryview(b"half"), nothing, nothing, []))
        await asyncio.wait_for(lost.wait(), 20)

    parts.run(ask)


@pytest.mark.parametrize("parts", [False], indirect=True)
@pytest.mark.parametrize(("texts", "length"), [(1, 4000), (64, 1)], ids=["long texts", "short texts"])
def test_a_flood_of_one_turn_is_divided_and_delays_nobody_else(parts, monkeypatch, texts, length):
    """A turn takes little enough that the loop comes to others, and takes principals in turns."""
    blocks, submit = [], Entry.submit
    monkeypatch.setattr(Entry, "submit", lambda entry, block: blocks.append(block) or submit(entry, block))

    async def ask(answerer):
        wanted, flood = Wanted(["short"] * texts), ["".join(["x"] * length)] * texts
        first = [answerer.answer(context("flood"), wanted, flood, same) for _ in range(30)]
        light = answerer.answer(context("light"), Wanted(["short"]), ["it is late"], same)
        await asyncio.gather(*first, light)
        assert answerer._turn._permits.total == 0

    parts.run(ask)
    assert "light" in [principal.name for principal in blocks[0].principals]
    assert max(len(block.sequences) for block in blocks) < 1000


@pytest.mark.parametrize("parts", [False], indirect=True)
def test_what_waits_for_turns_is_bounded_by_principal(parts, monkeypatch):
    monkeypatch.setattr(turn, "MAX_WAITING", 1000)
    for module in (asking, turn):
        monkeypatch.setattr(module, "TURN_CHARACTERS", 100)

    async def ask(answerer):
        def ask_one(principal):
            return answerer.answer(context(principal), Wanted(["short"]), ["x" * 84], same)

        flood, leaving = [ask_one("flood") for _ in range(20)], asyncio.ensure_future(ask_one("leaving"))
        light = asyncio.gather(*flood, ask_one("light"), return_exceptions=True)
        await asyncio.sleep(0)
        leaving.cancel()
        *outcomes, answered = await light
        refused = [error for error in outcomes if isinstance(error, QueueFull)]
        assert len(refused) == 15
        assert len(answered) == 1
        assert answerer._turn._permits.total == 0
        return await ask_one("flood")

    assert len(parts.run(ask)) == 1


def damaged(number: int, sequences: int) -> Block:
    """Of a principal with a quota: a request of a slot that no bank has."""
    requests, rows = np.zeros(1, REQUEST), np.zeros(1, SEQUENCE)
    requests["number"], requests["sequences"], requests["requests"] = number, sequences, 1
    requests["deadline"] = time.monotonic() + 60
    rows["slot"], rows["tokens"] = 999, 3
    limited = replace(context().principal, quotas=Quotas(requests=1.0, tokens=1.0))
    return Block([limited], requests, rows, np.ones(3, np.int32))


@pytest.mark.parametrize("parts", [True], ids=["front end"], indirect=True)
def test_a_damaged_block_costs_no_quota(parts):
    async def ask(answerer):
        gateway, came = parts.gateway, asyncio.get_running_loop().create_future()
        answered, gateway.answered = gateway.answered, came.set_result
        block = damaged(5, sequences=1)
        gateway.submit(block)
        ended = await asyncio.wait_for(came, 20)
        assert ended.requests["number"].tolist() == [5]
        assert [error.code for error in ended.errors] == [EngineFailed.code]
        entry = parts.desk._edge._entry
        entry.rates.require_quota(block.principals[0])
        assert not entry._counted
        gateway.answered = answered
        return await answerer.answer(context(), Wanted(["good"]), ["it is now"], same)

    [answered] = parts.run(ask)
    assert_like(answered, parts.alone("good", "it is now"))


@pytest.mark.parametrize("parts", [True], ids=["front end"], indirect=True)
def test_answers_that_cannot_be_sent_end_their_requests(parts, monkeypatch):
    message, broken = wire.EndedMessage.of, [True]

    def fail(ended, *more):
        if len(ended.logits) and broken.pop():
            raise MemoryError
        return message(ended, *more)

    monkeypatch.setattr(wire.EndedMessage, "of", fail)

    async def ask(answerer):
        with pytest.raises(OneBertError) as failed:
            await asyncio.wait_for(answerer.answer(context(), Wanted(["good"]), ["late"], same), 20)
        assert failed.value.code == EngineFailed.code
        broken.append(False)
        return await answerer.answer(context(), Wanted(["good"]), ["it is now"], same)

    [answered] = parts.run(ask)
    assert_like(answered, parts.alone("good", "it is now"))


@pytest.mark.parametrize("parts", [False], indirect=True)
def test_a_batch_that_cannot_be_counted_is_computed_once(parts, monkeypatch):
    """Its requests have ended, and their places may be those of others."""
    passes = []
    launch = parts.engine.launch
    monkeypatch.setattr(parts.engine, "launch", lambda *given, **named: passes.append(1) or launch(*given, **named))

    def fail(*_):
        raise RuntimeError("no metrics")

    monkeypatch.setattr(parts.batches, "observe_batch", fail)
    for text in ("it is late", "order now"):
        [answered] = parts.answer(["good"], [text])
        assert_like(answered, parts.alone("good", text))
    parts.engine.close(60)
    assert len(passes) == 2
    assert parts.unpinned()
