"""The attention and the MLP of a layer, which all kinds of layers share; post_norm.py and pre_norm.py join them.

Folding is exact algebra without dropout (decision 1). For a part X of a sublayer's input that folding has removed:

    b_q'  = b_q + W_q X                           likewise b_k', if scores turn keys; else it cancels in the softmax
    β     = b_m1 + W_m1 (b_v + W_v X)             attention rows sum to 1, so the value's bias passes through
    b_m2' = b_m2 + W_m2 X                         likewise b_mg'

A task's scale of a map's output multiplies the map's bias too: b_v + W_v X, β, b_m2' and b_m3. The bias that an
adapter's input lacks (β, b_m3) goes into the adapter's first bias; the adapter's last bias joins β and b_m3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from onebert_encoder.blocks.folding import LayerFolding
from onebert_encoder.blocks.running import LayerPass
from onebert_encoder.layout.branches import Branch

Branches = Mapping[str, tuple[Branch, ...]]


class Vectors(NamedTuple):
    """A row's additions in a layer: to queries and keys, behind both sublayers, before the activation."""

    attention: Tensor
    m1: Tensor
    m3: Tensor
    inner: Tensor


@dataclass(frozen=True)
class Sublayers:
    """A row's shift has the `Vectors` end to end: [3h + f], plus h for keys that are turned and f for a gate.

    Branches read a product's input at its site, and the product's output, after dropout, at `after_m1` and `after_m3`.

    Attributes:
        gated: the output of mg multiplies the activation of m2; one product computes both maps.
        turned: the scores turn queries and keys, so that the key's bias does not cancel.
    """

    gated: bool = False
    turned: bool = False

    @property
    def norms(self) -> tuple[str, ...]:
        return ("LN1", "LN2")

    @cached_property
    def products(self) -> Mapping[str, tuple[str, ...]]:
        inner = ("m2", "mg") if self.gated else ("m2",)
        return {"qkv": ("q", "k", "v"), "m1": ("m1",), "m2": inner, "m3": ("m3",)}

    def shapes_with(self, norm_kinds: str, h: int, f: int) -> Mapping[str, tuple[int, ...]]:
        """The shapes of a layer's parameters, with these kinds (b, g) of each LayerNorm."""
        maps = {
            **dict.fromkeys(("q", "k", "v", "m1"), (h, h)),
            **dict.fromkeys(self.products["m2"], (f, h)),
            "m3": (h, f),
        }
        return {
            **{f"b_{part}": (out,) for part, (out, _) in maps.items()},
            **{f"{kind}_{part}": (h,) for part in self.norms for kind in norm_kinds},
            **{f"W_{part}": shape for part, shape in maps.items()},
        }

    def fold(self, layer: LayerFolding, into: Tensor | None, between: Tensor | None) -> tuple[Vectors, Branches]:
        """Folds both sublayers; `into` and `between` are what the inputs of attention and MLP lack."""
        b_v = layer.bias("v", into)
        attention = [layer.bias(part, into) for part in ("qk" if self.turned else "q")]
        b_m1, b_m3 = layer.bias("m1", b_v), layer.bias("m3", None)
        inner = [layer.bias(part, between) for part in self.products["m2"]]
        branches = layer.branches(self.products) | layer.adapters({"m1": b_m1, "m3": b_m3})
        return Vectors(_joined(attention), layer.after("m1", b_m1), layer.after("m3", b_m3), _joined(inner)), branches

    def vectors(self, layer: LayerPass, h: int) -> Vectors:
        wide = h * (1 + self.turned)
        return Vectors(*torch.split(layer.shift, [wide, h, h, layer.shift.shape[1] - wide - 2 * h], dim=1))

    def attend(self, layer: LayerPass, x: Tensor, b: Tensor) -> Tensor:
        """The attention's output without its bias."""
        context = layer.attend(_scale_keys_and_values(layer, layer.project("qkv", x)), b)
        y = layer.scale("m1", layer.project("m1", context))
        return layer.adapt("after_m1", layer.drop(y) if layer.drops_attention_output else y)

    def transform(self, layer: LayerPass, x: Tensor, b: Tensor) -> Tensor:
        """The MLP's output without its bias."""
        a = layer.scale("inner", (layer.gate if self.gated else layer.activate)("m2", x, b))
        return layer.adapt("after_m3", layer.drop(layer.scale("m3", layer.project("m3", a))))


def _joined(vectors: list[Tensor]) -> Tensor:
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors)


def _scale_keys_and_values(layer: LayerPass, qkv: Tensor) -> Tensor:
    if not {"k", "v"} & layer.scales.keys():
        return qkv
    q, k, v = qkv.chunk(3, dim=1)
    return torch.cat([q, layer.scale("k", k), layer.scale("v", v)], dim=1)
