"""From texts to answers: each text tokenized once, a bound on what waits to be, and answers that are no numbers."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Event

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bases import WORDS, far_delta, tiny_base
from onebert_encoder.base import load_base
from onebert_encoder.fold import fold
from onebert_server import answers
from onebert_server.admission import Admission
from onebert_server.answers import Answerer, tokenize
from onebert_server.bank import Bank
from onebert_server.directory import Directory, Resident
from onebert_server.engine import Engine, EngineLimits
from onebert_server.versions import Wanted
from onebert_store.errors import AnswerNotFinite, InvalidInput, QueueFull, TooLarge
from onebert_store.manifest import parse_manifest
from onebert_store.registry import Alias, VersionRecord
from tiny_delta import manifest_dict


@pytest.fixture(scope="module")
def base():
    return load_base(str(tiny_base()))


@pytest.fixture(scope="module")
def tokenizer(base):
    return base.tokenizer


sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=20).map(" ".join)
texts = sentences | st.tuples(sentences, sentences)


@given(st.lists(st.tuples(texts, st.integers(5, 30)), min_size=1, max_size=8), st.data())
def test_equal_to_each_alone_and_shared_where_uncut(tokenizer, wanted, data):
    wanted += data.draw(st.lists(st.tuples(st.sampled_from([text for text, _ in wanted]), st.integers(5, 30))))
    made = tokenize(tokenizer, [text for text, _ in wanted], [length for _, length in wanted])
    for (text, length), tokens in zip(wanted, made, strict=True):
        (alone,) = tokenizer.encode([text], length)
        assert (tokens.input_ids, tokens.type_ids, tokens.truncated) == (
            alone.input_ids,
            alone.type_ids,
            alone.truncated,
        )
    for i, (text, length) in enumerate(wanted):
        for j, (other, other_length) in enumerate(wanted):
            uncut = not made[i].truncated and not made[j].truncated
            assert (made[i] is made[j]) == (text == other and (length == other_length or uncut))


@given(st.lists(texts, min_size=1, max_size=6), st.data())
def test_only_texts_of_per_token_tasks_are_aligned_and_still_shared(tokenizer, wanted, data):
    aligned = set(data.draw(st.lists(st.sampled_from(wanted))))
    made = tokenize(tokenizer, wanted * 2, [30] * len(wanted) + [7] * len(wanted), aligned)
    for text, tokens in zip(wanted * 2, made, strict=True):
        assert (tokens.alignment is not None) == (text in aligned)
    for tokens, again in zip(
        made, tokenize(tokenizer, wanted * 2, [30] * len(wanted) + [7] * len(wanted)), strict=True
    ):
        assert tokens.input_ids == again.input_ids
    assert all((made[i] is made[i + len(wanted)]) == (len(made[i]) <= 7) for i in range(len(wanted)))


class Parts:
    """An answerer with a running engine, one worker, and the tasks `good`, `bad`, whose answers are NaN, and `tags`."""

    def __init__(self, base):
        self.bank = Bank(base)
        self.directory = Directory(self.bank.release)
        token = {"task_type": "token", "pooling": "none"}
        for name, head, manifest in (("good", 1.0, {}), ("bad", np.nan, {}), ("tags", 1.0, token)):
            record = VersionRecord(name, 1, name, 1, datetime.now(UTC), parse_manifest(manifest_dict(**manifest)))
            pooling = record.manifest.pooling
            tensors = far_delta(base.spec, "bitfit", pooling, labels=2, seed=1)
            tensors["head.bias"][:] = head
            slot = self.bank.install(fold(base, {n: torch.from_numpy(v) for n, v in tensors.items()}, pooling))
            self.directory.publish(Resident(record, slot), {"live": Alias(1)})
        self.engine = Engine(base, self.bank, EngineLimits(512, 4096, 2**19))
        self.engine.start()
        self.workers = ThreadPoolExecutor(1)
        self.answerer = Answerer(base.tokenizer, Admission(self.directory, self.engine), self.workers)

    async def answer(self, ref, *texts):
        return await self.answerer.answer(Wanted([ref] * len(texts)), texts, None)

    def unpinned(self):
        """Whether nobody holds a version: then its row leaves the bank with it."""
        for name in ("good", "bad", "tags"):
            self.directory.retire(name, 1)
        return self.bank.num_resident == 0


@pytest.fixture
def parts(base):
    made = Parts(base)
    yield made
    made.engine.close(60)
    made.workers.shutdown()


@pytest.mark.parametrize("count", [1, 40], ids=["on the loop", "in a worker"])
def test_an_answer_that_is_no_number_names_its_task_and_touches_no_other_request(parts, count):
    async def ask():
        bad, good = parts.answer("bad", *["it is late"] * count), parts.answer("good", *["it is late"] * count)
        return await asyncio.gather(bad, good, return_exceptions=True)

    failed, answered = asyncio.run(ask())
    assert isinstance(failed, AnswerNotFinite)
    assert failed.status == 500
    assert "bad@1" in failed.detail
    assert len(answered) == count
    assert all(np.isfinite(prediction.score) for _, prediction, _ in answered)
    assert parts.unpinned()


def test_more_numbers_than_a_request_may_have_are_refused_before_they_are_computed(parts, monkeypatch):
    monkeypatch.setattr(answers, "MAX_LOGITS", 100)
    assert len(asyncio.run(parts.answer("good", *["it is late"] * 40))) == 40  # two labels each
    with pytest.raises(TooLarge, match="tokens by labels"):
        asyncio.run(parts.answer("tags", *["it is late"] * 40))
    assert parts.unpinned()


@pytest.mark.parametrize("count", [1, 40], ids=["on the loop", "in a worker"])
def test_a_token_task_labels_every_word_of_its_own_text(parts, count):
    texts = [f"order {'late ' * (i % 5)}now" for i in range(count)]
    for text, (_, answered, _) in zip(texts, asyncio.run(parts.answer("tags", *texts)), strict=True):
        assert [text[word.start : word.end] for word in answered.words] == text.split()
    assert parts.unpinned()


def test_what_a_task_does_not_take_is_refused_and_pins_nothing(parts):
    with pytest.raises(InvalidInput, match="tags@1 is a token task and takes one text"):
        asyncio.run(parts.answer("tags", "it is late", ("it", "is late")))
    assert parts.unpinned()


def test_what_waits_to_be_tokenized_is_bounded_and_given_back(parts, monkeypatch):
    monkeypatch.setattr(answers, "MAX_CHARACTERS", 4000)
    opened = Event()

    async def ask():
        parts.workers.submit(opened.wait, 60)
        first = asyncio.create_task(parts.answer("good", "a" * 3000))
        left = asyncio.create_task(parts.answer("good", "b" * 1000))
        await asyncio.sleep(0)  # both take their permits
        with pytest.raises(QueueFull) as refused:
            await parts.answer("good", "c" * 600)
        assert refused.value.retry_after
        assert len(await parts.answer("good", "tiny")) == 1, "what need not wait is not refused"
        left.cancel()
        await asyncio.wait([left])
        second = asyncio.create_task(parts.answer("good", "d" * 1000))
        await asyncio.sleep(0)
        opened.set()
        assert [len(found) for found in await asyncio.gather(first, second)] == [1, 1]
        with pytest.raises(TypeError):
            await parts.answer("good", "\ud800" * 4000)
        assert len(await parts.answer("good", "e" * 4000)) == 1

    asyncio.run(ask())
    assert parts.unpinned()


def test_the_largest_request_always_fits_an_idle_server():
    assert answers.MAX_CHARACTERS >= 64 * 2 * 65536
