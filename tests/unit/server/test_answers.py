"""From texts to answers, in the engine's process and from a front end's side of the wire: the same in both."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event, current_thread, main_thread

import pytest

from bases import loaded
from directories import retire
from onebert_encoder.answering.asked import Asked
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.answering import answers, sizes, turn
from onebert_server.answering.answers import PART_NUMBERS, WORKERS
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.many import GO_ON, ask_many
from onebert_server.answering.plan import BlankText
from onebert_server.answering.reading import read_together
from onebert_server.observed import Observed
from onebert_server.remote import wire
from onebert_server.remote.unix import desk
from onebert_store.errors import (
    AnswerNotFinite,
    InvalidInput,
    OneBertError,
    TaskNotFound,
    TooLarge,
)
from onebert_store.registry.grants import Quotas
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.records import Alias
from onebert_store.registry.target import alone
from parts import Parts, assert_like, context, same


@pytest.mark.parametrize("count", [1, 60], ids=["on the loop", "in a worker"])
def test_every_answer_is_what_its_version_says_alone(parts, count):
    text, pair = "order late late late now now", ("what is late", "order is late " * 9)
    asked = [
        ("good", text),
        ("short", text),
        ("tags", text),
        ("spans", pair),
        ("good@1", pair),
        ("short", pair),
    ] * count
    answered = parts.answer([ref for ref, _ in asked], [text for _, text in asked])
    for (ref, text), answer in zip(asked, answered, strict=True):
        assert answer.facts.task == ref.partition("@")[0]
        assert_like(answer, parts.alone(ref, text))
    assert parts.unpinned()


@pytest.mark.parametrize("count", [1, 60], ids=["on the loop", "in a worker"])
def test_an_answer_that_is_no_number_touches_no_other_task(parts, count):
    answered = parts.answer(["bad", "good"] * count, ["it is late"] * 2 * count)
    for bad, good in zip(answered[::2], answered[1::2], strict=True):
        assert isinstance(bad.reading, AnswerNotFinite)
        assert "bad@1" in bad.reading.detail
        assert_like(good, parts.alone("good", "it is late"))
    assert parts.unpinned()


def test_what_a_task_does_not_take_is_refused_and_pins_nothing(parts):
    with pytest.raises(OneBertError, match="tags@1 is a token task and takes one text") as refused:
        parts.answer(["tags", "tags"], ["it is late", ("it", "is late")])
    assert (refused.value.status, refused.value.code) == (InvalidInput.status, InvalidInput.code)
    with pytest.raises(OneBertError, match="there is no task nobody") as refused:
        parts.answer(["good", "nobody"], ["it is late", "late"])
    assert (refused.value.status, refused.value.code) == (TaskNotFound.status, TaskNotFound.code)
    assert parts.unpinned()


def test_too_large_answers_are_not_computed(parts, monkeypatch):
    monkeypatch.setattr(sizes, "MAX_LOGITS", 100)
    assert len(parts.answer(["good"] * 40, ["it is late"] * 40)) == 40  # two labels each
    with pytest.raises(OneBertError, match="tokens by labels") as refused:
        parts.answer(["tags"] * 40, ["it is late"] * 40)
    assert refused.value.code == TooLarge.code
    monkeypatch.setattr(sizes, "MAX_ANSWER_BYTES", 100_000)
    parts.add("wide", labels=[f"{'label' * 40} {n}" for n in range(200)])
    monkeypatch.setattr(sizes, "MAX_LOGITS", 2**24)
    assert len(parts.answer(["wide"], ["it is late"])) == 1
    with pytest.raises(OneBertError, match="over 100000 bytes"):
        parts.answer(["wide"] * 3, ["it is late"])
    assert len(parts.answer(["wide"] * 60, ["it is late"], asked=Asked(2))) == 60
    assert parts.unpinned()


@pytest.mark.parametrize(("task", "beside"), [("good", False), ("tags", False), ("wide", True), ("manytags", True)])
def test_many_numbers_are_read_and_written_beside_the_event_loop(parts, task, beside, monkeypatch):
    """One text: its numbers count, not its rows."""
    parts.add("wide", labels=[f"label {n}" for n in range(4096)])
    parts.add("manytags", task_type="token", pooling="none", labels=[f"tag {n}" for n in range(512)])
    read, written = set(), []

    def reading(*given):
        read.add(current_thread())
        return read_together(*given)

    def show(*_):
        written.append(current_thread())

    for reader in (answers, turn):
        monkeypatch.setattr(reader, "read_together", reading)
    parts.run(lambda answerer: answerer.answer(context(), Wanted([task]), ["it is late"], show))
    assert set(written) == read
    assert (main_thread() not in read) == beside


@pytest.mark.parametrize("parts", [False], indirect=True)
def test_one_turn_wakes_the_engine_once(parts, monkeypatch):
    """Else the first is computed alone, while the others are still read, and each takes its turn with Python's lock."""
    scheduler, wake_ups = parts.engine._scheduler, []
    wake = scheduler._wake
    monkeypatch.setattr(scheduler, "_wake", lambda: wake_ups.append(1) or wake())

    async def ask(answerer):
        # A thread that still ends its last batch needs no waking.
        while not scheduler._idle:
            await asyncio.sleep(0)
        asked = (answerer.answer(context(), Wanted(["good"]), ["it is late"], same) for _ in range(20))
        return await asyncio.gather(*asked)

    for _ in range(2):  # of two event loops, one after the other
        wake_ups.clear()
        assert len(parts.run(ask)) == 20
        assert len(wake_ups) == 1


def test_what_waits_for_who_has_left_is_not_computed(parts):
    """While a batch holds the engine, a request behind it ends; its version is free at once, and it is never run."""

    async def ask(answerer):
        ask = partial(answerer.answer, context(), texts=["it is late"], show=same)
        parts.batches.opened.clear()
        running = asyncio.create_task(ask(Wanted(["good"])))
        await asyncio.to_thread(parts.batches.entered.wait, 60)
        leaving, staying = (asyncio.create_task(ask(Wanted([ref]))) for ref in ("short", "tags"))
        while parts.engine.queue.sequences < 2:
            await asyncio.sleep(0)
        resident = parts.bank.num_resident
        leaving.cancel()
        retire(parts.directory, "short", 1)
        async with asyncio.timeout(60):
            while parts.bank.num_resident == resident:
                await asyncio.sleep(0)
        parts.batches.opened.set()
        assert [answered[0].facts.task for answered in await asyncio.gather(running, staying)] == ["good", "tags"]

    parts.run(ask)
    del parts.rows["short", 1]
    parts.engine.close(60)  # an answer is given before its batch is counted
    assert sum(parts.batches.sequences) == 2
    assert parts.unpinned()


@pytest.mark.parametrize("parts", [True], indirect=True)
def test_a_front_end_keeps_as_many_versions_as_its_bound_allows(parts, monkeypatch):
    """Versions come and go; what is remembered of those that are gone stays within a bound in bytes."""
    monkeypatch.setattr(desk, "MAX_KNOWN_BYTES", 20_000)

    async def ask(answerer):
        for version in range(1, 31):
            parts.add("wide", version, labels=[f"label {version} {n}" for n in range(40)])
            first, again = await answerer.answer(
                context(), Wanted([f"wide@{version}", "good"]), ["it is late"] * 2, same
            )
            assert set(first.reading.answer.names) == {f"label {version} {n}" for n in range(40)}
            assert_like(again, parts.alone("good", "it is late"))
            retire(parts.directory, "wide", version)
            del parts.rows["wide", version]
            assert len(parts.transport._known) <= 20_000 // (40 * 64)
        assert "good@1" in [ref for ref, _ in parts.transport._known], "what is used again and again is kept"

    parts.run(ask)
    parts.engine.close(60)
    assert parts.unpinned()


@pytest.mark.parametrize("parts", [True], ids=["front end"], indirect=True)
def test_samples_that_nobody_keeps_fail_no_question(parts):
    def fail(*_):
        raise RuntimeError("a listener failed")

    async def ask(answerer):
        parts.desk._served = parts.desk._served._replace(keep=fail)
        asking = asyncio.create_task(answerer.answer(context(), Wanted(["good"]), ["it is late"], same))
        await asyncio.sleep(0)
        parts.transport.keep(wire.Samples([], 1))
        return [*await asking, *await answerer.answer(context(), Wanted(["good"]), ["it is late"], same)]

    for answered in parts.run(ask):
        assert_like(answered, parts.alone("good", "it is late"))


def test_a_text_is_tokenized_once_however_often_its_version_moves(parts, monkeypatch):
    """The version moves whenever the text is about to be submitted."""
    text, tokenized, moves = "late " * 2000, [], 9
    for name in ("ids", "split"):
        method = getattr(Tokenizer, name)
        monkeypatch.setattr(
            Tokenizer, name, lambda *given, _method=method, **named: tokenized.append(1) or _method(*given, **named)
        )
    for version in range(1, moves + 2):
        parts.add("turns", version, seed=version)

    async def ask(answerer):
        await answerer.answer(context(), Wanted(["turns"]), ["it is late"], same)
        tokenized.clear()
        gateway, moved = answerer._gateway, iter(range(1, moves + 1))
        submit = gateway.submit

        def late(block):
            if (version := next(moved, None)) is not None:
                parts.directory.show("turns", (), {"live": Alias(alone(version))}, ())
            submit(block)

        gateway.submit = late
        [answered] = await answerer.answer(context(), Wanted(["turns"]), [text], same)
        assert (answered.facts.version, len(tokenized)) == (moves, 1)
        assert_like(answered, parts.alone(f"turns@{moves}", text))

    parts.run(ask)


WIDE = 4096  # labels, of which a part of the reading holds a few answers


@pytest.fixture
def wide(parts):
    """With a task of as many labels as a task may have, and two workers: one reads, or writes, for whoever asks."""
    parts.add("wide", labels=[f"label {n}" for n in range(WIDE)])
    parts.workers.shutdown()
    parts.workers = ThreadPoolExecutor(WORKERS)
    return parts


def test_nothing_is_written_for_who_has_left(wide):
    """The writing is held at its first text until the request is given up; of 64 texts that part alone is written."""
    begun, given_up, written = Event(), Event(), []

    def show(index, _):
        begun.set()
        given_up.wait(600)
        written.append(index)

    async def ask(answerer):
        asking = asyncio.create_task(answerer.answer(context(), Wanted(["wide"] * 64), ["it is late"] * 64, show))
        await asyncio.to_thread(begun.wait, 60)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        given_up.set()
        # The next request of many numbers is read by the same place, behind the part that had begun.
        await answerer.answer(context(), Wanted(["wide"]), ["late"], same)

    wide.run(ask)
    wide.workers.shutdown()
    assert 1 <= len(written) <= PART_NUMBERS // WIDE
    assert wide.unpinned()


def test_who_has_much_written_takes_turns_with_others(wide):
    """Another principal's answer is written after the part that has begun, and not behind all 64."""
    begun, opened, order = Event(), Event(), []

    def show(index, _):
        begun.set()
        opened.wait(600)
        order.append(index)

    async def ask(answerer):
        much = asyncio.create_task(answerer.answer(context(), Wanted(["wide"] * 64), ["it is late"] * 64, show))
        await asyncio.to_thread(begun.wait, 60)
        little = asyncio.create_task(
            answerer.answer(context("another"), Wanted(["wide"]), ["late"], lambda *_: order.append("other"))
        )
        while not answerer.workers._places._waiting:
            await asyncio.sleep(0)
        opened.set()
        await asyncio.gather(much, little)

    wide.run(ask)
    assert order.index("other") <= PART_NUMBERS // WIDE
    assert [name for name in order if name != "other"] == list(range(64))


# The rest of each text has no token of the tiny base.
@pytest.mark.parametrize("rest", ["\u200b", "\u00ad \ufffd"])
@pytest.mark.parametrize("text", ["late{}", "it {} is late {}"])
def test_an_explanation_leaves_no_text_without_a_token(parts, text, rest):
    text = text.format(rest, rest)

    [answer] = parts.run(lambda answerer: answerer.answer_explained(context(), Wanted(["good"]), [text], same))
    words = [text[word.start : word.end] for word in answer.explanation.words]
    assert words == ([] if "it" not in text else ["it", "is", "late"])


BLANK = "\u200b"  # no token of the tiny base


def test_a_blank_text_is_refused_by_its_number(parts):
    for refs, texts, number in ((["good"], [BLANK], 1), (["good"] * 2, ["late", f" {BLANK}"], 2)):
        with pytest.raises(InvalidInput, match=f"text {number} of {len(texts)} must not be blank"):
            parts.answer(refs, texts)
    assert parts.batches.sequences == []
    assert parts.unpinned()


@pytest.mark.parametrize("remote", [False, True], ids=["one process", "front end"])
def test_a_text_is_blank_where_the_base_finds_no_token(base, tmp_path, remote):
    bytewise = loaded("roberta")
    with Parts(base, str(tmp_path / "engine"), remote, [bytewise]) as parts:
        parts.add("bytes", base=bytewise)
        of_bytes = parts.alone("bytes", BLANK)

        def run(method, refs, partial=False, **more):
            wanted = Wanted(refs, partial=partial)
            return parts.run(lambda answerer: getattr(answerer, method)(context(), wanted, texts, same, **more))

        texts = [BLANK]
        assert_like(*run("answer", ["bytes"]), of_bytes)
        assert [answered.facts.task for answered in run("answer", None)] == ["bytes"]
        for method in ("answer", "answer_explained"):
            with pytest.raises(BlankText, match="text 1 of 1 must not be blank"):
                run(method, ["good"])
        texts = [BLANK, BLANK, "it is late"]
        with pytest.raises(BlankText, match="text 2 of 3 must not be blank"):
            run("answer", ["bytes", "good", "good"])
        for answers in (
            run("answer", ["good", "bytes", "good"], blanks=True),
            run("answer", ["good", "bytes", "good"], partial=True),
        ):
            assert_like(answers[1], of_bytes)
            assert_like(answers[2], parts.alone("good", texts[2]))
            assert isinstance(answers[0].error, BlankText)
        assert parts.unpinned()


@pytest.mark.parametrize("remote", [False, True], ids=["one process", "front end"])
def test_many_texts_with_a_blank_one_count_as_one_request(base, tmp_path, remote):
    with Parts(base, str(tmp_path / "engine"), remote, [loaded("roberta")]) as parts:
        asking = context()
        # A second request would wait for a quarter of an hour.
        asking = replace(asking, principal=replace(asking.principal, quotas=Quotas(requests=0.001)))
        texts = [BLANK, "it is late", "now"]
        shown = parts.run(lambda answerer: ask_many(answerer, asking, ["good"] * 3, texts, same, GO_ON))
        assert isinstance(shown[0].error, BlankText)
        for at in (1, 2):
            assert_like(shown[at], parts.alone("good", texts[at]))


def test_samples_are_of_the_answers_that_clients_get(parts):
    told = []

    def take(samples):
        for sample in samples:
            told.append(
                (
                    sample.id,
                    sample.principal,
                    sample.texts,
                    sample.answer.task,
                    sample.answer.version,
                    sample.answer.labels,
                )
            )

    parts.directory.keepings = dict.fromkeys(("good", "tags"), Keeping(1.0, 1, 1))
    asked = replace(context(), observed=Observed(samples=take))
    asked.observed.answers_id = "an-id"
    texts = ["it is late", ("was it late", "yes, very late")]

    async def ask(answerer):
        plain = await answerer.answer(asked, Wanted(["good", "tags"]), [texts[0], "late"], same)
        await answerer.answer(asked, Wanted(["short"]), ["of a task that keeps nothing"], same)
        # The texts without a word that an explanation asks about are no client's.
        explained = await answerer.answer_explained(asked, Wanted(["good"]), texts[1:], same)
        return [*plain, *explained]

    answers = parts.run(ask)
    assert [sample[:5] for sample in told] == [
        (f"an-id/{index}", "somebody", given, task, 1)
        for index, given, task in [(0, (texts[0],), "good"), (1, ("late",), "tags"), (3, texts[1], "good")]
    ]
    assert [sample.facts.task for sample in answers] == [sample[3] for sample in told]
    assert told[0][5] == (answers[0].reading.answer.label,)
