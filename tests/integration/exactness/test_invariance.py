"""A batch-invariant base: the same text has the same bits alone and in any mixture, whatever the task."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bases import as_read, far_delta, tiny_base, torch_tensors
from batches import logits_of, packed
from lengths import examples
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.compute import plain
from onebert_encoder.compute.plain import PlainLinear
from onebert_encoder.maths.choose import rounds_alike
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import Rows, diverges_at, stack_rows
from onebert_encoder.text.tokens import Tokens
from servers import Server, Task
from stages import needs_kernels

KINDS = (
    *("frozen", "bitfit", "layernorm", "gains", "lora", "spafit", "sparse", "adapter", "scale", "output-scale"),
    "everything",
)
DTYPES = [torch.float32, torch.bfloat16, torch.int8]

pytestmark = [needs_kernels, pytest.mark.usefixtures("two_threads")]


@cache
def zoo(dtype: torch.dtype, family: str = "bert") -> tuple[Base, Rows, list[int]]:
    """Tasks of every kind and pooling, and the layers at which they leave the base; row 0 is the bare base."""
    base = load_base(str(tiny_base(family)), dtype=dtype, batch_invariant=True)
    assert rounds_alike(base)
    bare = fold(base, {})
    rows = [bare]
    for pooling in (*base.spec.poolings, "none"):
        for kind in KINDS:
            tensors = far_delta(base.spec, kind, pooling, labels=2 + len(rows) % 4, seed=len(rows))
            rows.append(fold(base, torch_tensors(tensors), pooling))
    return base, stack_rows(base, rows), [diverges_at(row, bare, base) for row in rows]


def answers(
    dtype: torch.dtype, texts: list[Tokens], rows: list[int], share: bool = False, family: str = "bert"
) -> list[Tensor]:
    base, stacked, parts = zoo(dtype, family)
    heads = [stacked.heads[row] for row in rows]
    texts = [as_read(text, head.pooling) if head else text for text, head in zip(texts, heads, strict=True)]
    with torch.inference_mode():
        return logits_of(base, stacked, packed(base, texts, rows, [parts[row] for row in rows] if share else None))


def random_texts(count: int, seed: int) -> list[Tokens]:
    rng = np.random.default_rng(seed)
    return [Tokens(rng.integers(5, 60, n).tolist(), [0] * n) for n in rng.integers(1, 61, count).tolist()]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 2**16), st.integers(1, 90))
def test_the_same_bits_alone_and_in_any_mixture(dtype: torch.dtype, seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    texts = random_texts(count, seed)
    rows = rng.integers(1, len(zoo(dtype)[2]), count).tolist()
    crowd = answers(dtype, texts, rows)
    for i in range(0, count, 4):
        (alone,) = answers(dtype, [texts[i]], [rows[i]])
        assert torch.equal(crowd[i], alone)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_where_plain_kernels_compute_attention(dtype: torch.dtype) -> None:
    texts, rng = random_texts(12, seed=5), np.random.default_rng(5)
    rows = rng.choice(len(zoo(dtype, "deberta-v2")[2]) - 1, len(texts)) + 1
    crowd = answers(dtype, texts, rows.tolist(), family="deberta-v2")
    for text, row, among in zip(texts, rows.tolist(), crowd, strict=True):
        assert torch.equal(among, answers(dtype, [text], [row], family="deberta-v2")[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bits_where_layers_are_shared(dtype: torch.dtype) -> None:
    (text,) = random_texts(1, seed=4)
    rows = list(range(1, len(zoo(dtype)[2])))
    shared = answers(dtype, [text] * len(rows), rows, share=True)
    for row, logits in zip(rows, shared, strict=True):
        assert torch.equal(logits, answers(dtype, [text], [row])[0])


def test_a_server_on_a_cpu_is_invariant_unless_told_otherwise(tmp_path: Path) -> None:
    tasks = {f"task-{seed}": Task(seed=seed) for seed in range(4)}
    with Server(tmp_path, dtype="bfloat16") as server, server.client() as client:
        assert client.base()["batch_invariant"] is True
        for name, task in tasks.items():
            client.push(name, task.file)
        items = [(name, f"{name} and {'more ' * i}") for i in range(8) for name in tasks]
        crowd = client.classify_items(items)
        alone = [client.classify_items([item])[0] for item in items]
    assert [answer["scores"] for answer in crowd] == [answer["scores"] for answer in alone]
    with Server(tmp_path, batch_invariant=False) as server, server.client() as client:
        assert client.base()["batch_invariant"] is False


@pytest.mark.parametrize("rows", [1, 8, 1000, 1024, 1025, 3000])
def test_products_in_pieces_are_the_product(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where products vary, as some machines' do: pieces of one shape."""
    x, weight = torch.randn(rows, 24), torch.randn(40, 24)
    want = x.double() @ weight.T.double()
    for varies in (False, True):
        monkeypatch.setattr(plain, "_varies", lambda *_, varies=varies: varies)
        with torch.no_grad():
            got = PlainLinear(weight, batch_invariant=True)(x)
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-4)
