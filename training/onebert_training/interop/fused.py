"""Maps of a class of transformers that hold several of ours: split for a delta, joined in an export."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from onebert_encoder.base.anatomy import Anatomy
from onebert_store.errors import InvalidInput, TensorMismatch
from onebert_store.file.delta import listed

Fused = Mapping[str, tuple[str, ...]]
"""Full module name in the class -> the full names of our maps in it, from the top."""

Pair = tuple[Tensor, Tensor]


def fused_maps(anatomy: Anatomy) -> Fused:
    """The fused maps of all layers in a family's class of transformers; empty for most families."""
    family = anatomy.family
    return {
        family.layer.format(layer) + module: tuple(anatomy.path(part, layer) for part in parts)
        for layer in range(anatomy.num_layers)
        for module, parts in family.fused.items()
        if all(family.parts[part].startswith(f"{module}.") for part in parts)
    }


def split_rows(by_module: Mapping[str, Tensor], fused: Fused) -> dict[str, Tensor]:
    """Tensors by our maps, from tensors with a row for each output by a checkpoint's; raises TensorMismatch."""
    by_part: dict[str, Tensor] = {}
    for module, tensor in by_module.items():
        parts = fused.get(module, (module,))
        if len(tensor) % len(parts):
            raise TensorMismatch(f"{module} has {len(tensor)} outputs for {len(parts)} maps")
        by_part |= zip(parts, tensor.chunk(len(parts)), strict=True)
    return by_part


def shared_rows(by_module: Mapping[str, Tensor], fused: Fused) -> dict[str, Tensor]:
    """Tensors by our maps, from tensors that all maps of a fused one share."""
    return {part: tensor for module, tensor in by_module.items() for part in fused.get(module, (module,))}


def to_checkpoint(anatomy: Anatomy, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters by a checkpoint's names; raises InvalidInput for a changed one that no checkpoint has."""
    if changed := [name for name, (value, _) in anatomy.constants.items() if (params[name] != value).any()]:
        raise InvalidInput(f"a checkpoint of this architecture has no {listed(changed)}, which the delta changes")
    joined = {name: tensor for name, tensor in params.items() if name not in anatomy.constants}
    for module, parts in fused_maps(anatomy).items():
        joined[f"{module}.weight"] = torch.cat([joined.pop(f"{part}.weight") for part in parts])
    return joined


def join_pairs(pairs: Mapping[str, Pair], shapes: Mapping[str, Sequence[int]], fused: Fused) -> dict[str, Pair]:
    """Low-rank pairs A, B by a checkpoint's maps: equal As shared, missing pairs zeros; `shapes` has our maps."""
    rest, joined = dict(pairs), dict[str, Pair]()
    for module, parts in fused.items():
        members = [rest.pop(part, None) for part in parts]
        present = [pair for pair in members if pair is not None]
        if not present:
            continue
        shared = all(torch.equal(A, present[0][0]) for A, _ in present)
        ranks = [0 if pair is None or shared else len(pair[0]) for pair in members]
        rows = []
        for i, (part, pair) in enumerate(zip(parts, members, strict=True)):
            rank = len(present[0][0]) if shared else ranks[i]
            B = torch.zeros(shapes[part][0], rank) if pair is None else pair[1]
            rows.append(torch.nn.functional.pad(B, (sum(ranks[:i]), sum(ranks[i + 1 :]))))
        joined[module] = present[0][0] if shared else torch.cat([A for A, _ in present]), torch.cat(rows)
    return rest | joined


def join_rows(
    by_part: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]], fused: Fused, fill: float
) -> dict[str, Tensor]:
    """Tensors [outputs, 1] by a checkpoint's maps; maps of a fused one that are not there are filled."""
    rest, joined = dict(by_part), dict[str, Tensor]()
    for module, parts in fused.items():
        if rest.keys() & set(parts):
            joined[module] = torch.cat([rest.pop(part, torch.full((shapes[part][0], 1), fill)) for part in parts])
    return rest | joined
