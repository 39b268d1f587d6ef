"""Two bases behind one answerer and one engine, of other families, widths and tokenizers."""

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
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.banks.uses import BankBytes
from onebert_server.engine.engine import Engine, EngineLimits
from onebert_server.engine.host import Host
from onebert_server.engine.queue import QueueLimits
from onebert_server.hosts import front_ends_for, load_only_host
from onebert_server.settings import Settings
from onebert_store.errors import EngineFailed, OneBertError
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
    for ref, text, answered in zip(refs, texts, parts.answer(refs, texts, asked=asked), strict=True):
        assert answered.facts.task == ref
        if ref != "short":
            assert_like(answered, parts.alone(ref, text))
    assert parts.unpinned()
    assert [host.bank.num_resident for host in parts.engine.hosts.values()] == [0, 0]


def test_a_failing_base_fails_no_request_for_the_other(parts, monkeypatch):
    *_, host = parts.engine.hosts.values()

    def fail(*_):
        raise RuntimeError("a kernel")

    monkeypatch.setattr(host.passes, "launch", fail)
    with pytest.raises(OneBertError) as refused:
        parts.answer(["other", "good"], [TEXT] * 2)
    assert refused.value.code == EngineFailed.code
    assert_like(*parts.answer(["good"], [TEXT]), parts.alone("good", TEXT))
    assert parts.unpinned()


def test_a_quota_refuses_both_bases_of_a_question(parts):
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
    answers = {seed: future.result(WAIT) for seed, future in asked.items()}
    engine.close(WAIT)
    assert len(observer.sequences) < sum(len(logits) for logits in answers.values())
    for host in hosts():
        engine = started([host], Batches())
        for seed in asked:
            if hosts()[seed % 2] is host:
                alone[seed] = submit(engine, host, items(host, seed), context()).result(WAIT)
        engine.close(WAIT)
    for seed, logits in answers.items():
        for here, there in zip(logits, alone[seed], strict=True):
            np.testing.assert_array_equal(here, there)


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
