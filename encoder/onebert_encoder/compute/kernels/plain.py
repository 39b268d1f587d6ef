"""The operations between a layer's products in PyTorch's own: every device, differentiable, with dropout."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.compute.plain import Linear
from onebert_encoder.compute.scores import PLAIN_SCORES, RowScores, Scores
from onebert_encoder.layout.branches import Branch, Branches, Core, Directions, Joined, LayerSite, join, merged
from onebert_encoder.layout.dropout import NO_DROPOUT, Dropout
from onebert_encoder.layout.stage import Bucket, Stage

# Up to this length two matrix products beat fused attention on a CPU; beyond it the scores take too much memory.
_PLAIN_ATTENTION_LENGTH = 256


@dataclass(frozen=True)
class Gain:
    """A LayerNorm's gain: `shared` [h]; `table` [gains, h], the base's first; `of_token` [tokens] or None."""

    shared: Tensor
    table: Tensor
    of_token: Tensor | None


class PlainKernels:
    """The operations of a layer between its matrix products; each may overwrite its first argument.

    These do so even under autograd, since no gradient needs the old values. `description` adds the choices made for
    this machine to `name`; `batch_invariant` kernels give a sequence the same bits alone and in every batch.
    """

    name = "plain"
    # Attention and branches take one sequence at a time, without gradients: the shapes of products, on which their
    # rounding depends, are then the same in every batch.
    apart = False

    def __init__(
        self, activation: Callable[[Tensor], Tensor], dropout: Dropout = NO_DROPOUT, centered: bool = True
    ) -> None:
        self._activation, self._dropout, self._centered = activation, dropout, centered

    @property
    def description(self) -> str:
        return self.name

    @property
    def batch_invariant(self) -> bool:
        return False

    def attend(
        self,
        qkv: Tensor,
        b_q: Tensor,
        stage: Stage,
        num_heads: int,
        scores: Scores = PLAIN_SCORES,
        by_row: Sequence[RowScores] = (),
    ) -> Tensor:
        """Attention in each sequence of `qkv` [tokens, 3h] plus `b_q` [rows, h]: [tokens, h], undefined for filling.

        Scores that turn keys take [rows, 2h], the biases of queries and keys. `by_row` has each row's numbers for
        scores that are not plain. Pads every sequence to the longest of its bucket. `choose.py` keeps scores from
        kernels that do not compute them.
        """
        h = qkv.shape[1] // 3
        qkv[:, : b_q.shape[1]] += b_q.index_select(0, stage.row_of_token)
        buckets = stage.alone if self.apart else stage.buckets
        parts = [self._attend_bucket(qkv[each.start : each.stop], each, num_heads, scores, by_row) for each in buckets]
        return torch.cat([*parts, qkv.new_zeros(stage.filling, h)])

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage, gain: Gain, eps: float) -> Tensor:
        """LayerNorm without bias of y + x + b: [tokens, h]; `b` is [rows, h], and each token takes its row's."""
        return self.norm(self.add(y, x, b, stage), gain, eps)

    def norm(self, x: Tensor, gain: Gain, eps: float) -> Tensor:
        """LayerNorm without bias, or RMSNorm, of `x` [tokens, h], which stays as it is."""
        if self.apart and gain.of_token is None:
            # Rounded between norm and gain, as it is beside rows with gains of their own.
            return unscaled(x, eps, self._centered) * gain.shared
        return normalize(x, gain, eps, self._centered)

    def add(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """y + x + b: [tokens, h]; `b` as for `add_norm`."""
        y += x
        y += b.index_select(0, stage.row_of_token)
        return y

    def add_activate(self, z: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """The activation of z + b: [tokens, f]; `b` is [rows, f], and each token takes its row's."""
        z += b.index_select(0, stage.row_of_token)
        return self._activation(z)

    def add_gate(self, z: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """The activation of the first half of z + b [tokens, 2f], times the second half: [tokens, f]."""
        z += b.index_select(0, stage.row_of_token)
        inner, gate = z.chunk(2, dim=1)
        return self._activation(inner) * gate

    def drop(self, x: Tensor, stage: Stage) -> Tensor:
        """`x` [tokens, h] with a training step's dropout."""
        return self._dropout.on_tokens(x, stage)

    def project_activate(self, linear: Linear, x: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """The activation of linear(x) + b: [tokens, h] -> [tokens, f]; `b` as for `add_activate`."""
        return self.add_activate(linear(x), b, stage)

    def join(self, branches: Sequence[Branches], stage: Stage) -> Mapping[LayerSite, Any]:
        """Prepares the branches of a stage's rows for `add_branches`, by site, once for all layers."""
        return join(branches.__getitem__, stage.spans)

    def add_branches(self, y: Tensor, x: Tensor, joined: Any) -> Tensor:
        """`y` [tokens, out] plus, in every span, its branches of `x` [tokens, in]; in place without gradients."""
        if torch.is_grad_enabled():
            return _add_apart(y, x, joined)
        for group in [[span] for span in joined] if self.apart else [joined]:
            add_in_place(y, x, group)
        return y

    def _attend_bucket(
        self, qkv: Tensor, bucket: Bucket, num_heads: int, scores: Scores, by_row: Sequence[RowScores]
    ) -> Tensor:
        h = qkv.shape[1] // 3
        d, slots = h // num_heads, bucket.count * bucket.length
        if bucket.slots is not None:
            qkv = qkv.new_zeros(slots, 3 * h).index_copy(0, bucket.slots, qkv)
        q, k, v = qkv.view(bucket.count, bucket.length, 3, num_heads, d).permute(2, 0, 3, 1, 4)
        q, k = scores.turn(q, k)
        added = scores.added(q, k, [by_row[row] for row in bucket.rows.tolist()] if by_row else [])
        mask = bucket.mask
        if added is not None:
            mask = added if mask is None else mask + added
        # Fused attention's own dropout draws for the whole batch, not from each row's generator.
        if not self._dropout.attention and (qkv.device.type != "cpu" or bucket.length > _PLAIN_ATTENTION_LENGTH):
            context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            products = (q * d**-0.5) @ k.transpose(-1, -2)
            if mask is not None:
                products += mask
            context = self._dropout.on_attention(products.softmax(-1), bucket) @ v
        context = context.transpose(1, 2).reshape(slots, h)
        return context if bucket.slots is None else context.index_select(0, bucket.slots)


def normalize(x: Tensor, gain: Gain, eps: float, centered: bool = True) -> Tensor:
    """LayerNorm without bias, or RMSNorm: [tokens, h] -> [tokens, h]."""
    if gain.of_token is None:
        return (F.layer_norm if centered else F.rms_norm)(x, gain.shared.shape, gain.shared, eps=eps)
    return unscaled(x, eps, centered) * gain.table.index_select(0, gain.of_token)


def unscaled(x: Tensor, eps: float, centered: bool) -> Tensor:
    """LayerNorm or RMSNorm without gain and bias."""
    return (F.layer_norm if centered else F.rms_norm)(x, x.shape[1:], eps=eps)


def add_in_place(y: Tensor, x: Tensor, joined: Sequence[Joined]) -> Tensor:
    """Adds the branches to `y` itself, without gradients."""
    for i, added in _added_by_cores([x[start:stop] for start, stop, _ in joined], joined):
        start, stop, _ = joined[i]
        y[start:stop] += added
    for start, stop, branches in joined:
        for branch in _apart(branches):
            y[start:stop] += branch(x[start:stop])
    return y


def _add_apart(y: Tensor, x: Tensor, joined: Sequence[Joined]) -> Tensor:
    """Splits `y` into spans, adds the branches and joins the spans, for gradients no larger than a span."""
    joined = merged(joined)
    edges = [0, *(edge for start, stop, _ in joined for edge in (start, stop)), len(y)]
    lengths = [stop - start for start, stop in pairwise(edges)]
    # Parts 1, 3, 5, ... are the spans with branches; the others, which may be empty, lie between them.
    parts, own_x = list(torch.split(y, lengths)), torch.split(x, lengths)[1::2]
    for i, added in _added_by_cores(own_x, joined):
        parts[2 * i + 1] = parts[2 * i + 1] + added
    for i, (_, _, branches) in enumerate(joined):
        for branch in _apart(branches):
            parts[2 * i + 1] = parts[2 * i + 1] + branch(own_x[i])
    return torch.cat(parts)


def _apart(branches: Sequence[Branch]) -> list[Branch]:
    return [branch for branch in branches if not isinstance(branch, Core)]


def _added_by_cores(x: Sequence[Tensor], joined: Sequence[Joined]) -> Iterator[tuple[int, Tensor]]:
    """By span, the output of its cores for its tokens `x`; two products for all spans that share directions."""
    sharing: defaultdict[Directions, list[tuple[int, Tensor]]] = defaultdict(list)
    for i, (_, _, branches) in enumerate(joined):
        for branch in branches:
            if isinstance(branch, Core):
                sharing[branch.shared].append((i, branch.R))
    for shared, members in sharing.items():
        rank = max(len(R) for _, R in members)
        lengths = [len(x[i]) for i, _ in members]
        low = (torch.cat([x[i] for i, _ in members]) @ shared.down[:rank].T).split(lengths)
        # A row of a smaller rank has zeros along the remaining directions.
        high = [F.pad(part[:, : len(R)] @ R.T, (0, rank - len(R))) for part, (_, R) in zip(low, members, strict=True)]
        added = torch.cat(high) @ shared.up[:, :rank].T
        yield from zip((i for i, _ in members), added.split(lengths), strict=True)
