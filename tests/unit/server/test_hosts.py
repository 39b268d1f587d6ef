"""Two bases behind one answerer and one engine, of other families, widths and tokenizers."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from bases import loaded, tiny_base, wide_base
from onebert_encoder.answering.asked import Asked
from onebert_encoder.base.base import load_base
from onebert_server.answering.gateway import Wanted
from onebert_server.hosts import front_ends_for, load_only_host
from onebert_server.settings import Settings
from onebert_store.errors import EngineFailed, OneBertError
from onebert_store.registry.grants import Quotas
from parts import Parts, assert_like, context, same

# The tokenizers of the two bases make other numbers of tokens of it.
TEXT = "it is late"
# Only ends a test that fails.
WAIT = 600.0


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
