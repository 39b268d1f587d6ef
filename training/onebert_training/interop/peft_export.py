"""Writes a delta as a PEFT adapter folder, if one PEFT tuner can hold all of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.base.anatomy import Anatomy
from onebert_encoder.base.base import Base
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_encoder.maths.fold import expand_cores, to_tensors
from onebert_store.disk import whole_folder
from onebert_store.errors import InvalidInput
from onebert_store.file import delta as names
from onebert_store.file.delta import Delta
from onebert_training.interop import heads
from onebert_training.interop.folders import write_json, write_tensors
from onebert_training.interop.fused import fused_maps, join_pairs, join_rows
from onebert_training.interop.heads import AUTO_CLASSES, POOLER, Layout
from onebert_training.interop.merged import merge, model_config
from onebert_training.interop.peft_folder import CONFIG, TASK_CONFIG, WEIGHTS


@dataclass(frozen=True)
class Tuned:
    """A delta's encoder part as one PEFT tuner: configuration, tensors by PEFT's names, and `modules` saved whole."""

    config: Mapping[str, Any]
    state: Mapping[str, Tensor]
    modules: tuple[str, ...] = ()


def export_adapter(folder: Path, delta: Delta, base: Base, base_name: str | None) -> dict[str, Any]:
    """Writes a folder for `PeftModel.from_pretrained` atomically; returns its type and its Auto class.

    PEFT will load the base from `base_name`, a folder or Hub id; None is the default base.

    Raises:
        InvalidInput: PEFT has no tuner for the delta, or cannot hold its head.
        InvalidSettings: `folder` cannot be created, or is not empty.
        StorageFull: the disk refused a write; nothing is left behind.
    """
    encoder, head = heads.split_head(expand_cores(base, to_tensors(delta, base)))
    layout = heads.peft_layout(delta.manifest, head)
    _refuse(encoder)
    params = merge(base, encoder)
    tuned = _tuned(base.anatomy, layout, encoder, params)
    saved = [*layout.saved, *tuned.modules]
    state = heads.head_state(layout, heads.head_layers(delta.manifest, params, head))
    if layout.has_pooler and names.HEAD_DENSE_WEIGHT in head:
        saved.append("pooler")
    elif layout.has_pooler:
        # The pooler's weight is the base's, and its changed bias is written with the other biases.
        del state[f"{layout.dense}.weight"], state[f"{layout.dense}.bias"]
    prefix = base.anatomy.family.prefix
    state |= {prefix + name: tensor for name, tensor in tuned.state.items()}
    config = {
        "base_model_name_or_path": base_name or DEFAULT_BASE,
        "inference_mode": True,
        "modules_to_save": saved,
        "task_type": next(theirs for theirs, kind in heads.PEFT_TASKS.items() if kind == layout.kind),
        **tuned.config,
    }
    source, auto_class = find_base(base_name or DEFAULT_BASE), AUTO_CLASSES[layout.kind]
    with whole_folder(folder) as filling:
        write_tensors(filling / WEIGHTS, {f"base_model.model.{name}": tensor for name, tensor in state.items()})
        write_json(filling / CONFIG, config)
        # Not named config.json: transformers would look for a whole model in this folder.
        write_json(filling / TASK_CONFIG, model_config(source, delta.manifest, auto_class))
    return {"peft_type": config["peft_type"], "loads_with": auto_class}


def _refuse(encoder: Mapping[str, Tensor]) -> None:
    for prefix, description in ((names.SPARSE_INDEX, "sparse differences"), (names.ADAPTER_DOWN, "Houlsby adapters")):
        if any(name.startswith(prefix) for name in encoder):
            raise InvalidInput(f"PEFT has no tuner that loads {description}")
    scales = [name for name in encoder if name.startswith((names.SCALE, names.OUTPUT_SCALE))]
    if scales and len(scales) < len(encoder):
        raise InvalidInput("PEFT has no tuner that holds (IA)3 scales beside other differences")
    if any(
        name.startswith(names.SCALE) and names.OUTPUT_SCALE + name.removeprefix(names.SCALE) in encoder
        for name in scales
    ):
        raise InvalidInput("PEFT scales the input of a module or its output, not both")


def _tuned(anatomy: Anatomy, layout: Layout, encoder: Mapping[str, Tensor], params: Mapping[str, Tensor]) -> Tuned:
    # If the class's encoder has no pooler, the pooler's bias is part of the head.
    changed = {
        name.removeprefix(names.DELTA)
        for name in encoder
        if name.startswith(names.DELTA) and (layout.has_pooler or POOLER not in name)
    }
    of_norms = {parameter.name for parameter in anatomy.parameters if "_LN" in parameter.symbol}
    norms = {name.rpartition(".")[0] for name in changed & of_norms}
    if any(name.startswith((names.SCALE, names.OUTPUT_SCALE)) for name in encoder):
        return _ia3(anatomy, encoder)
    low_rank = any(name.startswith(names.LORA_A) for name in encoder)
    if norms and not low_rank and all(name.rpartition(".")[0] in norms for name in changed):
        return _ln_tuning(anatomy, norms, params)
    return _lora(anatomy, encoder, changed, params)


def _ln_tuning(anatomy: Anatomy, norms: set[str], params: Mapping[str, Tensor]) -> Tuned:
    state = {
        f"{norm}.ln_tuning_layers.{kind}": params[f"{norm}.{kind}"] for norm in norms for kind in _stored(anatomy, norm)
    }
    return Tuned({"peft_type": "LN_TUNING", "target_modules": _full(anatomy, norms)}, state)


def _ia3(anatomy: Anatomy, encoder: Mapping[str, Tensor]) -> Tuned:
    inputs, outputs = dict[str, Tensor](), dict[str, Tensor]()
    for module, (prefix, symbol, side) in product(anatomy.modules, names.PLACES.values()):
        scale = encoder.get(prefix + module.name)
        if symbol == module.symbol and scale is not None:
            (inputs if side else outputs)[module.name] = scale[None] if side else scale[:, None]
    scales = inputs | join_rows(outputs, _shapes(anatomy), fused_maps(anatomy), fill=1.0)
    config = {
        "peft_type": "IA3",
        "target_modules": _full(anatomy, set(scales)),
        "feedforward_modules": _full(anatomy, set(inputs)),
    }
    return Tuned(config, {f"{name}.ia3_l": scale for name, scale in scales.items()})


def _lora(anatomy: Anatomy, encoder: Mapping[str, Tensor], changed: set[str], params: Mapping[str, Tensor]) -> Tuned:
    pairs = {
        module.name: (encoder[names.LORA_A + module.name], encoder[names.LORA_B + module.name])
        for module in anatomy.modules
        if names.LORA_A + module.name in encoder
    }
    if not pairs:
        # PEFT has no tuner for biases alone, so a low-rank map of zeros accompanies them.
        first = anatomy.modules[0]
        pairs[first.name] = torch.zeros(1, first.shape[1]), torch.zeros(first.shape[0], 1)
    pairs = join_pairs(pairs, _shapes(anatomy), fused_maps(anatomy))
    norms = {name.removesuffix(".weight") for name in changed if name.endswith(".weight")}
    biases = {name for name in changed if name.endswith(".bias") and name.removesuffix(".bias") not in norms}
    state = {f"{norm}.{kind}": params[f"{norm}.{kind}"] for norm in norms for kind in _stored(anatomy, norm)}
    for name in biases:
        module = name.removesuffix(".bias")
        state[f"{module}.base_layer.bias" if module in pairs else name] = params[name]
    for name, (A, B) in pairs.items():
        state |= {f"{name}.lora_A.weight": A, f"{name}.lora_B.weight": B}
    rank = max(len(A) for A, _ in pairs.values())
    # A delta's B includes the scale; with alpha equal to the rank, PEFT multiplies by 1.
    ranks = {anatomy.family.prefix + name: len(A) for name, (A, _) in pairs.items() if len(A) != rank}
    config = {
        "peft_type": "LORA",
        "target_modules": _full(anatomy, set(pairs)),
        "bias": "all" if biases else "none",
        **{"r": rank, "lora_alpha": rank, "rank_pattern": ranks, "alpha_pattern": ranks},
    }
    return Tuned(config, state, tuple(_full(anatomy, norms)))


def _stored(anatomy: Anatomy, module: str) -> list[str]:
    """The parameters of a LayerNorm that the class of transformers has."""
    stored = {parameter.name for parameter in anatomy.parameters if parameter.stored}
    return [kind for kind in ("weight", "bias") if f"{module}.{kind}" in stored]


def _shapes(anatomy: Anatomy) -> dict[str, tuple[int, int]]:
    return {module.name: module.shape for module in anatomy.modules}


def _full(anatomy: Anatomy, modules: set[str]) -> list[str]:
    """Full names of modules: PEFT matches name endings, and a short name could match other modules as well."""
    return sorted(anatomy.family.prefix + module for module in modules)
