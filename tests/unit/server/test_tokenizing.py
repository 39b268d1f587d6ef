"""Texts are split once each, equal ones together; what waits for a worker is bounded and given back."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from bases import loaded
from onebert_server.answering import tokenizing
from onebert_server.answering.tokenizing import Splitter, Tokenizing
from onebert_store.errors import QueueFull


@pytest.fixture
def workers():
    with ThreadPoolExecutor(1) as threads:
        yield threads


@pytest.fixture
def splitting(workers):
    return Tokenizing({"base": Splitter(loaded().tokenizer, 60)}, workers)


@pytest.fixture
def small(workers, monkeypatch):
    """One that holds 4000 characters."""
    monkeypatch.setattr(tokenizing, "MAX_CHARACTERS", 4000)
    return Tokenizing({"base": Splitter(loaded().tokenizer, 60)}, workers)


async def split(tokenizing, principal, texts, **options):
    """The pieces of each text, by the only base."""
    return await tokenizing.split(principal, "base", texts, **options)


@pytest.mark.parametrize("count", [1, 200], ids=["on the loop", "in a worker"])
async def test_equal_texts_are_one_object_and_all_are_what_each_is_alone(splitting, count):
    texts = ["it is late " * count, ("it is", "late"), "it is late " * count, "late", ("it is", "late")]
    made = await split(splitting, "someone", texts)
    for text, pieces in zip(texts, made, strict=True):
        (alone,) = loaded().tokenizer.split([text], 60)
        assert (pieces.ids, pieces.lengths) == (alone.ids, alone.lengths)
    assert made[0] is made[2]
    assert made[1] is made[4]
    assert len({id(pieces) for pieces in made}) == 3


async def test_of_a_long_text_no_more_is_kept_than_the_base_takes(splitting):
    (pieces,) = await split(splitting, "someone", ["late " * 5000])
    placed = pieces.sources[0].placed
    # Where the next piece starts, marks behind the last one end.
    assert (pieces.lengths, len(pieces.ids[0]), len(placed.word_ids), len(placed.offsets)) == ((5000,), 60, 60, 61)


async def test_what_waits_to_be_tokenized_is_bounded_and_given_back(small, workers):
    opened = Event()

    workers.submit(opened.wait, 60)
    first = asyncio.create_task(split(small, "a", ["a" * 3000]))
    left = asyncio.create_task(split(small, "b", ["b" * 1000]))
    await asyncio.sleep(0)  # both take their permits
    with pytest.raises(QueueFull) as refused:
        await split(small, "c", ["c" * 600])
    assert refused.value.retry_after
    assert len(await split(small, "c", ["tiny"])) == 1, "what need not wait is not refused"
    left.cancel()
    await asyncio.wait([left])
    second = asyncio.create_task(split(small, "d", ["d" * 1000]))
    await asyncio.sleep(0)
    opened.set()
    assert [len(pieces) for pieces in await asyncio.gather(first, second)] == [1, 1]
    with pytest.raises(TypeError):
        await split(small, "d", ["\ud800" * 4000])
    assert len(await split(small, "d", ["e" * 4000])) == 1


async def test_who_has_much_tokenized_is_served_in_turns_with_others(workers, monkeypatch):
    """Texts for tasks that are not there are tokenized, too, and no queue of the engine counts them."""
    monkeypatch.setattr(tokenizing, "AT_ONCE", 1)
    splitting = Tokenizing({"base": Splitter(loaded().tokenizer, 60)}, workers)
    opened, ended = Event(), []

    async def ask(principal, texts):
        ended.append((principal, len(await split(splitting, principal, texts))))

    workers.submit(opened.wait, 60)
    large = [f"{number} " + "late " * 13000 for number in range(3)]
    flood = [asyncio.create_task(ask("flood", large)) for _ in range(4)]
    await asyncio.sleep(0)
    other = asyncio.create_task(ask("other", ["late " * 200]))
    left = asyncio.create_task(ask("left", ["late " * 300]))
    await asyncio.sleep(0)
    left.cancel()
    opened.set()
    await asyncio.gather(*flood, other)
    assert ended == [("other", 1), *[("flood", 3)] * 4]


@pytest.mark.parametrize("count", [1, 200], ids=["on the loop", "in a worker"])
async def test_ids_are_those_of_the_pieces(splitting, count):
    texts = ["it is late " * count, "late", "it is late " * count]
    made = await splitting.ids("someone", "base", texts)
    pieces = loaded().tokenizer.split(texts, 61)
    assert made == [piece.ids[0] for piece in pieces]
    assert made[0] is made[2]
