"""Two bases behind one answerer and one engine, of other families, widths and tokenizers."""

import asyncio
import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from bases import far_row, loaded, tiny_base, wide_base
from lanes import Item, submit
from onebert_encoder.answering.asked import Asked
from onebert_encoder.base.base import load_base
from onebert_encoder.text.tokens import Tokens
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.reading.logits import Answered
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.banks.bank_bytes import BankBytes
from onebert_server.engine.engine import Engine, EngineLimits
from onebert_server.engine.host import Host
from onebert_server.engine.queue import QueueLimits
from onebert_server.hosts import front_ends_for, load_only_host
from onebert_server.settings import Settings
from onebert_store.errors import BankFull, EngineFailed, OneBertError, TooLarge
from onebert_store.registry.grants import Quotas
from parts import Batches, Parts, assert_like, context, same

# The tokenizers of the two bases make other numbers of tokens of it.
TEXT = "it is late"
# Only ends a test that fails.
WAIT = 600.0
KINDS = ("bitfit", "lora", "frozen", "everything")


@cache
def wide():
    return load_base(str(wide_base()))


@pytest.fixture(params=[False, True], ids=["one process", "front end"])
def parts(tmp_path, request):
    """Both bases with their tasks: of the second base `other` and `tagged`."""
    with Parts(loaded(), str(tmp_path / "engine"), request.param, others=[wide()]) as made:
        made.add("other", base=wide(), seed=2)
        made.add("tagged", base=wide(), task_type="token", pooling="none")
        yield made


@pytest.mark.parametrize("asked", [Asked(), Asked(whole=True)], ids=["cut", "whole"])
def test_each_task_of_a_request_reads_by_the_tokenizer_of_its_base(parts, asked):
    refs = ["other", "good", "tagged", "tags", "other", "short"]
    texts = [TEXT, TEXT, "screen", "please", "order", TEXT]
    assert parts.alone("good", TEXT)[1] != parts.alone("other", TEXT)[1]
    for ref, text, one in zip(refs, texts, parts.answer(refs, texts, asked=asked), strict=True):
        assert one.facts.task == ref
        if ref != "short":
            assert_like(one, parts.alone(ref, text))
    assert parts.unpinned()
    assert [host.bank.num_resident for host in parts.engine.hosts.values()] == [0, 0]


def test_a_text_for_every_task_reaches_those_of_each_base(parts):
    found = {one.facts.task: one for one in parts.answer(None, [TEXT])}
    assert {"good", "other", "tags", "tagged"} <= found.keys()
    for ref in ("good", "other", "tagged"):
        assert_like(found[ref], parts.alone(ref, TEXT))


def test_questions_that_fail_alone_may_be_of_several_bases(parts):
    refs, texts = ["other", "good", "gone"], [TEXT] * 3

    async def ask(answerer):
        return await answerer.answer(context(), Wanted(refs, partial=True), texts, same)

    other, good, gone = parts.run(ask)
    assert_like(other, parts.alone("other", TEXT))
    assert_like(good, parts.alone("good", TEXT))
    assert gone.error.code == "task-not-found"


def test_an_explanation_reads_by_the_base_that_answered(parts):
    async def ask(answerer):
        return await answerer.answer_explained(context(), Wanted(["other"]), [TEXT], same)

    [answered] = parts.run(ask)
    assert isinstance(answered, Answered)
    assert_like(answered, parts.alone("other", TEXT))
    assert answered.explanation is not None


def test_a_base_that_fails_fails_a_request_for_both_and_none_for_the_other(parts, monkeypatch):
    *_, host = parts.engine.hosts.values()

    def fail(*_):
        raise RuntimeError("a kernel")

    monkeypatch.setattr(host.passes, "launch", fail)
    with pytest.raises(OneBertError) as refused:
        parts.answer(["other", "good"], [TEXT] * 2)
    assert refused.value.code == EngineFailed.code
    assert_like(*parts.answer(["good"], [TEXT]), parts.alone("good", TEXT))
    assert parts.unpinned()


def test_of_a_question_to_both_bases_that_a_quota_refuses_nothing_is_computed(parts):
    limited = replace(context("limited").principal, quotas=Quotas(tokens=1e-6))

    async def ask(answerer):
        async def answer():
            wanted = Wanted(["good", "other"])
            return await answerer.answer(replace(context(), principal=limited), wanted, [TEXT] * 2, same)

        # The first one leaves a debt that lasts.
        await answer()
        with pytest.raises(OneBertError, match="tokens a second"):
            await answer()
        await answerer.answer(context(), Wanted(["good"]), [TEXT], same)

    parts.run(ask)
    parts.engine.close(WAIT)
    assert sum(parts.batches.sequences) == 2 + 1


@pytest.mark.parametrize("parts", [False], indirect=True)
def test_a_client_that_leaves_holds_no_version_of_either_base(parts):
    async def ask(answerer):
        parts.batches.opened.clear()
        holding = asyncio.create_task(answerer.answer(context(), Wanted(["good"]), [TEXT], same))
        await asyncio.to_thread(parts.batches.entered.wait, WAIT)
        leaving = asyncio.create_task(answerer.answer(context(), Wanted(["good", "other"]), [TEXT] * 2, same))
        while parts.engine.queue.sequences < 2:
            await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert parts.engine.queue.sequences == 0
        parts.batches.opened.set()
        await holding

    parts.run(ask)
    assert parts.unpinned()
    assert parts.engine.hosts[wide().spec.digest].bank.num_resident == 0


@cache
def hosts():
    """Both bases with a row of each kind, from slot 1 on; the same bits in every batch."""
    bound, made = BankBytes(2**26, 2), []
    for base in (loaded().with_batch_invariance(), wide().with_batch_invariance()):
        made.append(Host(base, Bank(base, bound)))
        for seed, kind in enumerate(KINDS):
            made[-1].install(far_row(base, kind, labels=3, seed=seed))
    return made


def started(hosts, observer, queue=None, **more):
    engine = Engine(hosts, EngineLimits(128, queue or QueueLimits(4096, 2**19)), observer, **more)
    engine.start()
    return engine


def items(host, seed):
    drawn = random.Random(seed)
    count = host.base.config.vocab_size
    texts = [[drawn.randrange(5, count) for _ in range(drawn.choice([1, 2, 8, 30, 60]))] for _ in range(3)]
    return [Item(Tokens(ids, [0] * len(ids)), drawn.randint(1, len(KINDS))) for ids in texts]


@pytest.mark.parametrize("overlaps", [False, True], ids=["one batch at a time", "overlapping"])
def test_mixed_load_gives_the_bits_of_each_base_alone(overlaps):
    observer = Batches()
    engine, asked, alone = started(hosts(), observer, overlaps=overlaps), {}, {}
    for seed in range(60):
        host = hosts()[seed % 2]
        asked[seed] = submit(engine, host, items(host, seed), context(f"principal {seed % 5}"))
    found = {seed: future.result(WAIT) for seed, future in asked.items()}
    engine.close(WAIT)
    assert len(observer.sequences) < sum(len(one) for one in found.values())
    for host in hosts():
        engine = started([host], Batches())
        for seed in asked:
            if hosts()[seed % 2] is host:
                alone[seed] = submit(engine, host, items(host, seed), context()).result(WAIT)
        engine.close(WAIT)
    for seed, logits in found.items():
        for here, there in zip(logits, alone[seed], strict=True):
            np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("parts", [False], indirect=True)
def test_nothing_waits_of_a_request_for_several_bases_that_is_refused_for_one(parts):
    refs = ["good", *["other"] * 4097]

    async def ask(answerer):
        parts.batches.opened.clear()
        holding = asyncio.create_task(answerer.answer(context(), Wanted(["good"]), [TEXT], same))
        await asyncio.to_thread(parts.batches.entered.wait, WAIT)
        with pytest.raises(TooLarge):
            await answerer.answer(context(), Wanted(refs), [TEXT] * len(refs), same)
        assert (parts.engine.queue.sequences, parts.engine.queue.tokens, parts.engine.queue.seconds) == (0, 0, 0)
        parts.batches.opened.set()
        await holding

    parts.run(ask)


def test_banks_share_one_bound_in_bytes():
    bound = BankBytes(2**30, 2)
    one, other = (Host(base, Bank(base, bound)) for base in (loaded(), wide()))
    empty = bound.total
    assert empty == bound.bare == one.bank.num_bytes + other.bank.num_bytes
    slots = [host.install(far_row(host.base, "everything", labels=3, seed=1)) for host in (one, other)]
    assert bound.total == one.bank.num_bytes + other.bank.num_bytes == empty + sum(slot.num_bytes for slot in slots)
    bound.most = bound.total
    small = far_row(one.base, "frozen", labels=2, seed=2)
    with pytest.raises(BankFull):
        one.install(small)
    slots[1].release()
    one.install(small)
    assert bound.total == one.bank.num_bytes + other.bank.num_bytes


def test_bfloat16_is_float32_where_it_would_be_slower(monkeypatch, caplog):
    monkeypatch.setattr("onebert_server.hosts.fast_dtype", lambda device: torch.float32)
    host = load_only_host(Settings(base=(str(tiny_base()),), dtype="bfloat16", device="cpu"))
    assert host.base.precision == torch.float32
    assert "does not multiply bfloat16" in caplog.text


@pytest.mark.parametrize(("cores", "beside"), [(1, 0), (2, 1), (16, 8), (192, 8), (None, 0)])
def test_front_ends_are_the_default_beside_a_gpu(cores, beside, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    by_default, gpu, cpu = Settings.model_construct(), torch.device("cuda"), torch.device("cpu")
    assert (front_ends_for(by_default, gpu), front_ends_for(by_default, cpu)) == (beside, 0)
    for count in (0, 3):
        chosen = Settings.model_construct(front_ends=count)
        assert front_ends_for(chosen, gpu) == front_ends_for(chosen, cpu) == count
