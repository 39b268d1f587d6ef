"""From texts to answers, in the engine's process and from a front end's side of the wire: the same in both."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event, current_thread, main_thread

import pytest

from bases import loaded
from directories import retire
from onebert_encoder.answering.asked import Asked, AskedWindow
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.access.principal import root
from onebert_server.answering import answers, sizes, turn
from onebert_server.answering.answers import PART_NUMBERS, WORKERS
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.many import GO_ON, ask_many
from onebert_server.answering.plan import BlankText, Questions
from onebert_server.answering.reading.logits import Unanswered, read_together
from onebert_server.observed import Observed
from onebert_server.remote import wire
from onebert_server.remote.unix import desk
from onebert_store.errors import (
    AnswerNotFinite,
    InvalidInput,
    OneBertError,
    OverQuota,
    TaskNotFound,
    TooLarge,
    VersionNotFound,
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
    for (ref, text), one in zip(asked, answered, strict=True):
        assert one.facts.task == ref.partition("@")[0]
        assert_like(one, parts.alone(ref, text))
    assert parts.unpinned()


def test_one_text_goes_to_every_task_that_takes_it(parts):
    answered = parts.answer(None, ["it is late"])
    assert [one.facts.task for one in answered] == ["bad", "good", "short", "tags"]
    assert [one.facts.task for one in parts.answer(None, [("it", "is late")], pair=True)] == [
        "bad",
        "good",
        "short",
        "spans",
    ]
    assert parts.unpinned()


@pytest.mark.parametrize("count", [1, 60], ids=["on the loop", "in a worker"])
def test_an_answer_that_is_no_number_names_its_task_and_touches_no_other(parts, count):
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


def test_more_tasks_than_a_fan_out_may_have_are_refused(parts, monkeypatch):
    monkeypatch.setattr("onebert_server.answering.resolver.MAX_FANOUT", 3)
    with pytest.raises(OneBertError, match="more than 3 tasks"):
        parts.answer(None, ["it is late"])
    assert parts.unpinned()


def test_answers_that_would_be_too_large_are_refused_before_they_are_computed(parts, monkeypatch):
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
def test_a_batch_wakes_the_event_loop_once(parts, monkeypatch):
    """Twenty requests of one batch, which ends while the loop is busy with something else."""
    wake_ups = []

    async def ask(answerer):
        loop = asyncio.get_running_loop()
        one = lambda: answerer.answer(context(), Wanted(["good"]), ["it is late"], same)  # noqa: E731
        parts.batches.opened.clear()
        running = asyncio.create_task(one())
        await asyncio.to_thread(parts.batches.entered.wait, 60)
        waiting = [asyncio.create_task(one()) for _ in range(20)]
        await running
        while parts.engine.queue.sequences < 20:
            await asyncio.sleep(0)
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(
            loop, "call_soon_threadsafe", lambda *call, **of: wake_ups.append(call) or wake(*call, **of)
        )
        parts.batches.entered.clear()
        parts.batches.opened.set()
        parts.batches.entered.wait(180)  # no `await`: the loop has no turn until the batch is done
        assert len(await asyncio.gather(*waiting)) == 20
        assert (parts.batches.sequences, len(wake_ups)) == ([1, 20], 1)

    parts.run(ask)


@pytest.mark.parametrize("parts", [False], indirect=True)
def test_what_is_asked_in_one_turn_of_the_loop_wakes_the_engine_once(parts, monkeypatch):
    """Else the first is computed alone, while the others are still read, and each takes its turn with Python's lock."""
    scheduler, wake_ups = parts.engine._scheduler, []
    wake = scheduler._wake
    monkeypatch.setattr(scheduler, "_wake", lambda: wake_ups.append(1) or wake())

    async def ask(answerer):
        one = lambda: answerer.answer(context(), Wanted(["good"]), ["it is late"], same)  # noqa: E731
        return await asyncio.gather(*(one() for _ in range(20)))

    for _ in range(2):  # of two event loops, one after the other
        wake_ups.clear()
        assert len(parts.run(ask)) == 20
        assert (
            len(wake_ups) == 1
        )  # how many still wait then is not said: a thread that was awake has taken some already


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
        assert [one[0].facts.task for one in await asyncio.gather(running, staying)] == ["good", "tags"]

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
def test_samples_that_nobody_can_keep_fail_no_question_of_their_front_end(parts):
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


def test_what_a_version_refuses_is_no_answer_of_the_one_that_follows_it(parts):
    """A version of spans takes pairs alone; an edge remembers the one before."""
    of_spans = {"task_type": "span", "pooling": "none", "labels": ["start", "end"]}
    pair, text = ("what is late", "it is late"), "it is late"

    async def ask(answerer):
        for version in range(1, 6):
            parts.add("turns", version, seed=version, **(of_spans if version % 2 else {}))
            if version % 2:
                with pytest.raises(InvalidInput, match=f"turns@{version} is a span task"):
                    await answerer.answer(context(), Wanted(["turns"]), [text], same)
            asked = pair if version % 2 else text
            [answered] = await answerer.answer(context(), Wanted(["turns"]), [asked], same)
            assert_like(answered, parts.alone(f"turns@{version}", asked))

    parts.run(ask)


@pytest.mark.parametrize(
    ("ref", "texts", "asked"),
    [
        ("good", ["\u200b"], Asked()),
        ("good", ["late " * 600], Asked(window=AskedWindow(8))),
        ("tags", ["late " * 600] * 9, Asked(window=AskedWindow(16, 8))),
        ("good", [f"{number} " + "late " * 600 for number in range(64)], Asked(window=AskedWindow(16, 8))),
        ("good", ["late " * 60] * 3, Asked(whole=True, window=AskedWindow(8))),
    ],
    ids=["blank", "too large", "of pieces", "most texts", "short"],
)
def test_what_is_refused_is_measured_once_cut_never_and_counted(parts, monkeypatch, ref, texts, asked):
    """Of a version that an edge remembers: it is resolved again, and only that."""
    monkeypatch.setattr(sizes, "MAX_SEQUENCES", 20)
    measured, cut = [], []
    measure = Questions.measure
    monkeypatch.setattr(Questions, "measure", lambda *given: measured.append(1) or measure(*given))
    # One request is left, and the next one would wait for a quarter of an hour.
    principal = replace(root("limited"), quotas=Quotas(requests=0.001))

    async def ask(answerer):
        for _ in range(2):
            await answerer.answer(context(), Wanted([ref]), ["it is late"], same)
        monkeypatch.setattr(Tokenizer, "cut", lambda *_: cut.append(1))
        for _ in range(2):
            measured.clear()
            limited = replace(context(), principal=principal)
            with pytest.raises((InvalidInput, TooLarge)):
                await answerer.answer(limited, Wanted([ref] * len(texts), asked=asked), texts, same)
            assert (len(measured), cut, limited.requests) == (1, [], [])
        while answerer._turn._under_way:
            await asyncio.sleep(0)
        monkeypatch.undo()
        with pytest.raises(OneBertError) as refused:
            await answerer.answer(replace(context(), principal=principal), Wanted([ref]), ["it is late"], same)
        assert refused.value.code == OverQuota.code

    parts.run(ask)


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


def test_a_number_that_a_restored_registry_gives_again_is_the_new_version(parts):
    text = "it is late"

    async def ask(answerer):
        for seed, labels in enumerate((["phish", "fine", "unsure"], ["no", "yes"])):
            parts.add("turns", labels=labels, seed=seed)
            for ref in ("turns", "turns@1"):
                answered, _ = await answerer.answer(context(), Wanted([ref, "good"]), [text] * 2, same)
                assert [*answered.reading.answer.names] == labels
                assert_like(answered, parts.alone(ref, text))

    parts.run(ask)


def test_a_version_that_goes_before_its_answer_is_explained_is_not_found(parts):
    """A batch holds the engine until the version is gone; its answer is computed all the same, and no more of it."""

    async def explained(answerer):
        parts.batches.opened.clear()
        running = asyncio.create_task(answerer.answer(context(), Wanted(["tags"]), ["it is late"], same))
        await asyncio.to_thread(parts.batches.entered.wait, 60)
        asking = asyncio.create_task(answerer.answer_explained(context(), Wanted(["good"]), ["it is late"], same))
        while parts.engine.queue.sequences < 1:
            await asyncio.sleep(0)
        retire(parts.directory, "good", 1)
        parts.batches.opened.set()
        await running
        await asking

    with pytest.raises(OneBertError) as refused:
        parts.run(explained)
    assert refused.value.code in (TaskNotFound.code, VersionNotFound.code)
    assert parts.unpinned()


def test_an_explanation_pins_nothing_for_good(parts):
    [one] = parts.run(lambda answerer: answerer.answer_explained(context(), Wanted(["short"]), ["it is late"], same))
    assert len(one.explanation.words) == 3
    assert parts.unpinned()


WIDE = 4096  # labels, of which a part of the reading holds a few answers


@pytest.fixture
def wide(parts):
    """With a task of as many labels as a task may have, and two workers: one reads, or writes, for whoever asks."""
    parts.add("wide", labels=[f"label {n}" for n in range(WIDE)])
    parts.workers.shutdown()
    parts.workers = ThreadPoolExecutor(WORKERS)
    return parts


def test_nothing_is_written_any_more_for_who_has_left_or_whose_time_is_over(wide):
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
        while not answerer._parts._places._waiting:
            await asyncio.sleep(0)
        opened.set()
        await asyncio.gather(much, little)

    wide.run(ask)
    assert order.index("other") <= PART_NUMBERS // WIDE
    assert [one for one in order if one != "other"] == list(range(64))


# The rest of each text has no token of the tiny base.
@pytest.mark.parametrize("rest", ["\u200b", "\ufffd", "\u00ad \ufffd"])
@pytest.mark.parametrize("text", ["late {}", "{} late", "late{}", "it {} is late {}"])
def test_an_explanation_leaves_no_text_without_a_token(parts, text, rest):
    text = text.format(rest, rest)

    [one] = parts.run(lambda answerer: answerer.answer_explained(context(), Wanted(["good"]), [text], same))
    words = [text[word.start : word.end] for word in one.explanation.words]
    assert words == ([] if "it" not in text else ["it", "is", "late"])


BLANK = "\u200b"  # no token of the tiny base


def test_a_text_without_a_token_is_refused_by_its_number_before_anything_is_computed(parts):
    for refs, texts, number in ((["good"], [BLANK], 1), (["good"] * 2, ["late", f" {BLANK}"], 2)):
        with pytest.raises(InvalidInput, match=f"text {number} of {len(texts)} must not be blank"):
            parts.answer(refs, texts)
    assert parts.batches.sequences == []
    assert parts.unpinned()


@pytest.mark.parametrize("remote", [False, True], ids=["one process", "front end"])
def test_a_text_is_blank_for_versions_whose_base_finds_no_token_in_it(base, tmp_path, remote):
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


def test_where_blank_texts_are_taken_only_the_others_are_computed(parts):
    texts = [BLANK, "it is late", "", "now", "\u00ad\u200d"]

    def shown(texts):
        wanted = Wanted(["good", "short", "bad", "good", "bad"])
        return parts.run(lambda answerer: answerer.answer(context(), wanted, texts, lambda *one: one, blanks=True))

    def blank(shown):
        return isinstance(shown[1], Unanswered) and isinstance(shown[1].error, BlankText)

    found = shown(texts)
    assert [(one[0], blank(one)) for one in found] == [(0, True), (1, False), (2, True), (3, False), (4, True)]
    assert_like(found[1][1], parts.alone("short", "it is late"))
    assert_like(found[3][1], parts.alone("good", "now"))
    assert all(map(blank, shown([BLANK] * 5)))
    parts.engine.close(60)
    assert sum(parts.batches.sequences) == 2
    assert parts.unpinned()


def test_samples_are_told_of_each_answer_that_a_client_gets_and_of_no_other(parts):
    told = []

    def take(kept):
        for one in kept:
            told.append((one.id, one.principal, one.texts, one.answer.task, one.answer.version, one.answer.labels))

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
    assert [one[:5] for one in told] == [
        (f"an-id/{index}", "somebody", given, task, 1)
        for index, given, task in [(0, (texts[0],), "good"), (1, ("late",), "tags"), (3, texts[1], "good")]
    ]
    assert [one.facts.task for one in answers] == [one[3] for one in told]
    assert told[0][5] == (answers[0].reading.answer.label,)


def test_without_a_listener_no_answer_is_chosen(parts):
    parts.sampled.clear()
    parts.directory.keepings = {"good": Keeping(1.0, 1, 1)}
    taken = []
    asked = replace(context(), observed=Observed(samples=taken.append))
    parts.run(lambda answerer: answerer.answer(asked, Wanted(["good"]), ["it is late"], same))
    assert (taken, asked.observed.any_kept) == ([], False)
