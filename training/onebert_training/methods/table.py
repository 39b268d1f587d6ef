"""The methods as users write them. Imports no torch, so that `onebert methods` is quick."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One kind of method: its syntax, and its trained parts in words."""

    syntax: str
    trains: str


METHODS: Mapping[str, Entry] = {
    "frozen": Entry("frozen", "only the classifier head"),
    "head": Entry("head", "nothing: the head alone, found exactly without a step"),
    "bitfit": Entry("bitfit[:bq,bm2,…|:-bq,-bm2,…]", "every bias, the named ones, or all but those"),
    "init-bias": Entry("init-bias[:bq,…|:-bq,…]", "as bitfit, from biases that start at zero"),
    "random-bias": Entry("random-bias:0.04%", "bias numbers drawn at random, a share of the base"),
    "layernorm": Entry("layernorm", "gains and biases of every LayerNorm"),
    "gamma": Entry("gamma[:gLN1|gLN2]", "LayerNorm gains of the layers"),
    "random": Entry("random:0.1%", "weights of the layers drawn at random, a share of the base"),
    "random-rows": Entry("random-rows:0.09%", "whole rows of these weights"),
    "random-cols": Entry("random-cols:0.09%", "whole columns of these weights"),
    "lora": Entry(
        "lora[:I|II|r=8,alpha=16,targets=q,k,v[,o,m2,m3]|all]",
        "low-rank differences of attention maps: I is q, k, v, II also o; m2 and m3 are the MLP's",
    ),
    "lora-xs": Entry(
        "lora-xs[:r=16,targets=q,v,o,m3[,k,m2]|all]",
        "r by r matrices between the leading singular directions of the base's weights",
    ),
    "svd": Entry(
        "svd[:r=16,targets=q,k,v,o,m2,m3|all]",
        "whole matrices, of which the delta has the leading low-rank part",
    ),
    "spafit": Entry(
        "spafit:N1-N2-I|II[,r=8,alpha=16]",
        "nothing in layers 0 to N1, biases up to N2, above them low-rank q, k, v (II: and o) and the MLP's biases",
    ),
    "adapter": Entry("adapter:64", "Houlsby's bottlenecks of so many units, and every LayerNorm"),
    "ia3": Entry(
        "ia3[:k,v,o,m2,inner,m3|:-k,…]", "factors of keys, values and the MLP's inner units, or of the named outputs"
    ),
    "red": Entry("red", "factors and biases of what each layer's MLP gives"),
    "diff-pruning": Entry("diff-pruning:0.5%", "weights of the layers, pruned half way to a share of the base"),
    "full": Entry("full", "everything; the result is a checkpoint, because a delta cannot hold it"),
    "reinit": Entry("reinit+METHOD", "METHOD on a base without its pretraining; a checkpoint, too"),
}
