"""A turn of the event loop: what fails in it, and who waits for it."""

import asyncio

import pytest

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.reading.results import Results
from onebert_server.engine.lane import Lane
from onebert_store.errors import EngineFailed
from parts import assert_like, context, same


@pytest.mark.parametrize("parts", [False], indirect=True)
@pytest.mark.parametrize("first", [True, False], ids=["before anything is taken", "when it is taken"])
def test_what_cannot_be_submitted_fails_at_once_and_nothing_beside_it(parts, monkeypatch, first):
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
def test_what_a_batch_has_ended_reaches_those_behind_a_request_that_cannot_take_it(parts, monkeypatch):
    add = Results.add

    def fail(results, questions, *logits):
        if "now" in questions.texts:
            raise MemoryError
        add(results, questions, *logits)

    monkeypatch.setattr(Results, "add", fail)

    async def ask(answerer):
        asking = [answerer.answer(context(), Wanted(["good"]), [text], same) for text in ("late", "now", "order")]
        return await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 20)

    before, broken, behind = parts.run(ask)
    assert isinstance(broken, MemoryError)
    assert_like(before[0], parts.alone("good", "late"))
    assert_like(behind[0], parts.alone("good", "order"))
