"""The layer of BERT: attention and MLP, each with a residual and a LayerNorm behind it.

Folding is exact algebra without dropout (decision 1). Activations between layers are kept without the bias of the
LayerNorm that made them; `prev` is that missing bias:

    b_q'  = b_q  + W_q  prev                      the key's bias cancels in the softmax, if scores turn no keys
    β     = b_m1 + W_m1 (b_v + W_v prev)          attention rows sum to 1, so the value's bias passes through
    b_m1' = β + prev
    b_m2' = b_m2 + W_m2 b_LN1
    b_m3' = b_m3 + b_LN1
    prev  = b_LN2                                 the last layer's goes into the head

A task's scale of a map's output multiplies the map's bias too: b_v + W_v prev, β, b_m2' and the b_m3 in b_m3'. The bias
that an adapter's input lacks (β, b_m3) goes into the adapter's first bias; the adapter's last bias goes into the row's
shift (b_m1', b_m3').
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from onebert_encoder.blocks.folding import FoldedLayer, LayerFolding
from onebert_encoder.blocks.running import LayerPass


class PostNorm:
    """BERT's layer; its native program is `Forward` (maths/forward.py).

    A row's shift is [3h + f]: b_q' b_m1' b_m3' (h each) and b_m2' (f); if keys are `turned`, b_k' behind b_q'. Branches
    read a product's input at its site, and the product's output, after dropout, at `after_m1` and `after_m3`.
    """

    products: Mapping[str, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "m1": ("m1",), "m2": ("m2",), "m3": ("m3",)}
    norms: tuple[str, ...] = ("LN1", "LN2")

    def __init__(self, turned: bool = False) -> None:
        self.turned = turned

    def shapes(self, hidden: int, intermediate: int) -> Mapping[str, tuple[int, ...]]:
        h, f = hidden, intermediate
        maps = {**dict.fromkeys(("q", "k", "v", "m1"), (h, h)), "m2": (f, h), "m3": (h, f)}
        return {
            **{f"b_{part}": (out,) for part, (out, _) in maps.items()},
            **{f"{kind}_{part}": (h,) for part in self.norms for kind in "bg"},
            **{f"W_{part}": shape for part, shape in maps.items()},
        }

    def fold_layer(self, own: LayerFolding, prev: Tensor) -> FoldedLayer:
        b_LN1 = own.param("b_LN1")
        b_v = own.scaled("v", own.param("b_v") + own.apply("v", prev))
        attention = [own.param("b_q") + own.apply("q", prev)]
        if self.turned:
            attention.append(own.scaled("k", own.param("b_k") + own.apply("k", prev)))
        b_m1 = own.scaled("m1", own.param("b_m1") + own.apply("m1", b_v))
        b_m2 = own.scaled("m2", own.param("b_m2") + own.apply("m2", b_LN1))
        b_m3 = own.scaled("m3", own.param("b_m3"))
        branches = own.branches(self.products) | own.adapters({"m1": b_m1, "m3": b_m3})
        shift = torch.cat([*attention, own.after("m1", b_m1) + prev, own.after("m3", b_m3) + b_LN1, b_m2])
        return FoldedLayer(shift, branches, own.param("b_LN2"))

    def encode_layer(self, own: LayerPass, x: Tensor) -> Tensor:
        """BitFit's equations 1 to 5, with folded vectors instead of the eight biases."""
        h, wide = x.shape[1], x.shape[1] * (1 + self.turned)
        b, b_m1, b_m3, b_m2 = torch.split(own.shift, [wide, h, h, own.shift.shape[1] - wide - 2 * h], dim=1)

        context = own.attend(_scale_keys_and_values(own, own.project("qkv", x)), b)
        y = own.scale("m1", own.project("m1", context))
        y = own.drop(y) if own.drops_attention_output else y
        x = own.add_norm("LN1", own.adapt("after_m1", y), x, b_m1)

        a = own.scale("inner", own.activate("m2", x, b_m2))
        y = own.drop(own.scale("m3", own.project("m3", a)))
        return own.add_norm("LN2", own.adapt("after_m3", y), x, b_m3)


def _scale_keys_and_values(own: LayerPass, qkv: Tensor) -> Tensor:
    if not {"k", "v"} & own.scales.keys():
        return qkv
    q, k, v = qkv.chunk(3, dim=1)
    return torch.cat([q, own.scale("k", k), own.scale("v", v)], dim=1)
