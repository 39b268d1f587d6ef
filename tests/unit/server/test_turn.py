"""A turn of the event loop: what fails in it, and who waits for it."""

import asyncio

import pytest

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.answering import asking, turn
from onebert_server.answering.asking import Asking
from onebert_server.answering.gateway import Wanted
from onebert_server.engine.scheduler import Lane
from onebert_server.remote import wire
from onebert_store.errors import EngineFailed, QueueFull
from parts import assert_like, context, same


@pytest.mark.parametrize("parts", [False], indirect=True)
@pytest.mark.parametrize("first", [True, False], ids=["before anything is taken", "when it is taken"])
def test_what_cannot_be_submitted_fails_alone(parts, monkeypatch, first):
    """One request of a turn breaks the way to the engine; the others are answered, also those of later turns."""
    lane_submit = Lane.submit

    def submit(lane, block):
        broken = 7 in block.requests["sequences"]
        if not (broken and first):
            lane_submit(lane, block)
        if broken:
            raise MemoryError

    monkeypatch.setattr(Lane, "submit", submit)

    async def ask(answerer):
        def ask(texts):
            return answerer.answer(context(), Wanted(["good"] * texts), ["it is late"] * texts, same)

        for _ in range(2):
            before, broken, behind = await asyncio.gather(*map(ask, (1, 7, 2)), return_exceptions=True)
            assert isinstance(broken, MemoryError)
            assert (len(before), len(behind)) == (1, 2)

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


@pytest.mark.parametrize("parts", [False], indirect=True)
def test_a_request_that_fails_to_take_touches_no_other(parts, monkeypatch):
    take = Asking.take

    def fail(asking, *logits):
        if "now" in asking.texts:
            raise MemoryError
        take(asking, *logits)

    monkeypatch.setattr(Asking, "take", fail)

    async def ask(answerer):
        asking = [answerer.answer(context(), Wanted(["good"]), [text], same) for text in ("late", "now", "order")]
        return await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 20)

    before, broken, behind = parts.run(ask)
    assert isinstance(broken, MemoryError)
    assert_like(before[0], parts.alone("good", "late"))
    assert_like(behind[0], parts.alone("good", "order"))


@pytest.mark.parametrize("parts", [True], ids=["front end"], indirect=True)
def test_a_block_whose_requests_cannot_be_read_ends_its_front_end(parts):
    async def ask(_):
        lost = asyncio.Event()
        parts.transport._channel._lost = lost.set
        nothing = memoryview(b"")
        parts.transport.submit(wire.Block([], memoryview(b"half"), nothing, nothing, []))
        await asyncio.wait_for(lost.wait(), 20)

    parts.run(ask)


@pytest.mark.parametrize("parts", [False], indirect=True)
@pytest.mark.parametrize(("texts", "length"), [(1, 4000), (64, 1)], ids=["long texts", "short texts"])
def test_a_flood_of_one_turn_is_divided_and_delays_nobody_else(parts, monkeypatch, texts, length):
    """A turn takes little enough that the loop comes to others, and takes principals in turns."""
    blocks, submit = [], Lane.submit
    monkeypatch.setattr(Lane, "submit", lambda lane, block: blocks.append(block) or submit(lane, block))

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
        def one(principal):
            return answerer.answer(context(principal), Wanted(["short"]), ["x" * 84], same)

        flood, leaving = [one("flood") for _ in range(20)], asyncio.ensure_future(one("leaving"))
        light = asyncio.gather(*flood, one("light"), return_exceptions=True)
        await asyncio.sleep(0)
        leaving.cancel()
        *outcomes, answered = await light
        refused = [error for error in outcomes if isinstance(error, QueueFull)]
        assert len(refused) == 15
        assert len(answered) == 1
        assert answerer._turn._permits.total == 0
        return await one("flood")

    assert len(parts.run(ask)) == 1
