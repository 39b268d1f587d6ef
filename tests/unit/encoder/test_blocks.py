"""A second block and second scores are one class and one entry each: toys, against the same mathematics spelled out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bases import loaded, tiny_base
from batches import logits_of, packed
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.base.families import FAMILIES
from onebert_encoder.base.family import Family
from onebert_encoder.base.params import Params
from onebert_encoder.blocks.block import BLOCKS
from onebert_encoder.blocks.folding import FoldedLayer, LayerFolding
from onebert_encoder.blocks.running import LayerPass
from onebert_encoder.blocks.scores import SCORES, Kind
from onebert_encoder.compute.scores import RowScores, Scores
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import diverges_at, stack_rows
from onebert_encoder.text.tokens import Tokens
from onebert_store.errors import UnsupportedBase

TEXT = Tokens([5, 9, 17, 6], [0] * 4)
BARE = load_base(str(tiny_base("bert")))
H = BARE.config.hidden_size


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def base_of(family: Family, params: Mapping[str, Tensor]) -> Base:
    return replace(BARE, anatomy=replace(BARE.anatomy, family=family), params=Params(params))


def embedded(base: Base) -> Tensor:
    words, positions = base.embeddings.word[TEXT.input_ids], base.embeddings.position[: len(TEXT)]
    return F.layer_norm(words + positions, (H,), base.param("g_LN0"), base.param("b_LN0"), base.config.eps)


class PreNorm:
    """x + W_m LN(x): bias-free, with the LayerNorm in front."""

    products: Mapping[str, tuple[str, ...]] = {"mix": ("m",)}
    norms: tuple[str, ...] = ("LN1",)

    def shapes(self, hidden: int, intermediate: int) -> Mapping[str, tuple[int, ...]]:
        return {"g_LN1": (hidden,), "W_m": (hidden, hidden)}

    def fold_layer(self, own: LayerFolding, prev: Tensor) -> FoldedLayer:
        return FoldedLayer(prev, own.branches(self.products), prev)

    def encode_layer(self, own: LayerPass, x: Tensor) -> Tensor:
        return x + own.project("mix", own.add_norm("LN1", torch.zeros_like(x), x, own.shift))


def test_a_block_of_another_kind_is_folded_and_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BLOCKS, "toy", PreNorm())
    family = replace(FAMILIES["bert"], block="toy", layer="blocks.{}.", parts={"m": "mix", "LN1": "norm"})
    layers = range(BARE.config.num_layers)
    own = {f"blocks.{i}.mix.weight": drawn(H, H, seed=i) / H**0.5 for i in layers}
    own |= {f"blocks.{i}.norm.weight": 1 + drawn(H, seed=i) / 9 for i in layers}
    outside = {name: value for name, value in BARE.params.items() if not name.startswith("encoder.")}
    base = base_of(family, outside | own)
    assert set(base.anatomy.weights) == base.params.keys()
    A, B, changed = drawn(2, H), drawn(H, 2, seed=1) / H, drawn(H) / 9
    weight, bias = drawn(3, H, seed=2), drawn(3)
    tensors = {"lora_A.blocks.1.mix": A, "lora_B.blocks.1.mix": B, "head.weight": weight, "head.bias": bias}
    row = fold(base, {**tensors, "delta.blocks.1.norm.weight": changed})
    assert diverges_at(row, fold(base, {}), base) == 1
    with torch.inference_mode():
        [got] = logits_of(base, stack_rows(base, [row]), packed(base, [TEXT], [0]))
    x = embedded(base)
    for i in layers:
        W, g = own[f"blocks.{i}.mix.weight"], own[f"blocks.{i}.norm.weight"]
        W, g = (W + B @ A, g + changed) if i == 1 else (W, g)
        x = x + F.layer_norm(x, (H,), g, None, base.config.eps) @ W.T
    torch.testing.assert_close(got, weight @ x.mean(0) + bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["modernbert", "eurobert"])
def test_a_delta_of_the_final_norm_alone_shares_all_layers(family: str) -> None:
    base = loaded(family)
    names = {one.symbol: one.name for one in base.anatomy.parameters if one.layer is None}
    head = {"head.weight": drawn(3, H), "head.bias": drawn(3)}
    changed = {f"delta.{names[symbol]}": drawn(H, seed=i) for i, symbol in enumerate(("b_LNf", "g_LNf"))}
    bare, row = fold(base, {}), fold(base, {**changed, **head})
    assert diverges_at(row, bare, base) == base.config.num_layers
    assert (row.gain, row.g_LN0) == (None, None)


class Near(Scores):
    """Turns the queries around, and lowers the scores of tokens by their distance."""

    def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return -q, k

    def added(self, q: Tensor, k: Tensor, own: Sequence[RowScores]) -> Tensor:
        at = torch.arange(q.shape[2])
        return -(at[:, None] - at).abs().float()


def test_scores_of_another_kind_are_computed_by_the_plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCORES, "near", Kind(lambda *_: Near()))
    base = base_of(replace(FAMILIES["bert"], scores="near"), BARE.params)
    # Beside a shorter text, so that padding is masked as well.
    rows, batch = stack_rows(base, [fold(base, {})]), packed(base, [TEXT, Tokens([7], [0])], [0, 0])
    with torch.inference_mode():
        [got, _] = batch.of_inputs(encode(base, rows, batch))
    heads = base.config.num_heads
    x = embedded(base)
    for layer in range(base.config.num_layers):

        def linear(part: str, x: Tensor, layer: int = layer) -> Tensor:
            return F.linear(x, base.param(f"W_{part}", layer), base.param(f"b_{part}", layer))

        def norm(part: str, x: Tensor, layer: int = layer) -> Tensor:
            gain, bias = base.param(f"g_{part}", layer), base.param(f"b_{part}", layer)
            return F.layer_norm(x, (H,), gain, bias, base.config.eps)

        q, k, v = (linear(part, x).view(len(x), heads, -1).transpose(0, 1) for part in "qkv")
        q, k = Near().turn(q[None], k[None])
        scores = (q @ k.mT / q.shape[-1] ** 0.5 + Near().added(q, k, []))[0]
        x = norm("LN1", x + linear("m1", (scores.softmax(-1) @ v).transpose(0, 1).reshape(len(x), H)))
        x = norm("LN2", x + linear("m3", F.gelu(linear("m2", x))))
    torch.testing.assert_close(got + base.param("b_LN2", layer), x, rtol=1e-4, atol=1e-4)


def test_scores_that_nothing_computes_are_refused_at_load() -> None:
    said = "attention scores 'far' are not computed; computed: none, relative, rotary"
    with pytest.raises(UnsupportedBase, match=said):
        base_of(replace(FAMILIES["bert"], scores="far"), BARE.params)
