"""Merges a delta into its base, and writes a checkpoint that loads without OneBERT, with the rules left to callers."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transformers.models.auto import modeling_auto

from onebert_encoder.answering.scores import own_activation
from onebert_encoder.base.base import TOKENIZER_FILES, Base
from onebert_encoder.base.families import family_of
from onebert_encoder.base.source import DEFAULT_BASE, find_base, read_json
from onebert_encoder.maths.fold import expand_cores
from onebert_store.disk import whole_folder
from onebert_store.errors import InvalidInput
from onebert_store.file import delta as names
from onebert_store.file.decision import Abstain
from onebert_store.file.delta import Delta, require_finite
from onebert_store.file.manifest import Manifest, format_for
from onebert_training.interop.folders import write_json, write_tensors
from onebert_training.interop.fused import to_checkpoint
from onebert_training.interop.heads import AUTO_CLASSES, POOLER, fitting_layout, head_layers, head_state, kind_of
from onebert_training.interop.sentence import LOADS_WITH, write_modules

_SETTINGS = "tokenizer_config.json"
IN_CONFIG = "decision"
"""The configuration key for rules that callers have to apply themselves."""

CLASS_NAMES: Mapping[str, Mapping[str, Any]] = {
    "AutoModel": modeling_auto.MODEL_MAPPING_NAMES,
    AUTO_CLASSES["sequence"]: modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    AUTO_CLASSES["token"]: modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    AUTO_CLASSES["span"]: modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
}


def merge(base: Base, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merged float32 encoder parameters by Hugging Face name, without the head; raises InvalidInput."""
    if any(name.startswith(names.ADAPTER_DOWN) for name in tensors):
        raise InvalidInput("adapters are layers of their own and cannot be merged into the base's weights")
    tensors = {name: tensor.cpu() for name, tensor in expand_cores(base, tensors).items()}
    params = {name: tensor.detach().cpu().clone() for name, tensor in base.params.items()}
    for name, tensor in tensors.items():
        if name.startswith(names.DELTA):
            params[name.removeprefix(names.DELTA)] += tensor
    for module in base.anatomy.modules:
        weight, bias = params[f"{module.name}.weight"], params[f"{module.name}.bias"]
        if (A := tensors.get(names.LORA_A + module.name)) is not None:
            weight += tensors[names.LORA_B + module.name] @ A
        if (index := tensors.get(names.SPARSE_INDEX + module.name)) is not None:
            weight.view(-1)[index.long()] += tensors[names.SPARSE_VALUE + module.name]
        for prefix, symbol, side in names.PLACES.values():
            if symbol == module.symbol and (scale := tensors.get(prefix + module.name)) is not None:
                # A scale applies to the map's input, or to its output including the bias.
                weight *= scale if side else scale[:, None]
                bias *= 1 if side else scale
    return to_checkpoint(base.anatomy, params)


def write_checkpoint(
    folder: Path, base: str | None, params: Mapping[str, Tensor], head: Mapping[str, Tensor], manifest: Manifest
) -> str:
    """Writes a loadable folder atomically; returns the name of the class that loads it.

    If no Hugging Face class has such a head (mean pooling, a layer with another activation), the folder is one of
    sentence-transformers: the plain encoder, with its pooling and the head's layers as modules.

    Args:
        folder: new or empty.
        base: folder or Hub id as for `load_base`; source of configuration and tokenizer.
        params: every encoder parameter by Hugging Face name without prefix.
        head: `head.*` tensors of the delta.
        manifest: its temperature must be folded into the head already.

    Raises:
        InvalidInput: the head reads every token through a layer that no class has, or has a LayerNorm.
        InvalidSettings: `folder` cannot be created, or is not empty.
        StorageFull: the disk refused a write; nothing is left behind.
    """
    layout = fitting_layout(manifest, head)
    if layout is None and manifest.per_token:
        raise InvalidInput("no class of transformers reads every token through such a layer: export with --onnx")
    auto_class = AUTO_CLASSES[layout.kind] if layout else "AutoModel"
    layers = head_layers(manifest, params, head)
    if layout is None and any(layer.norm is not None for layer in layers):
        raise InvalidInput("no class of transformers has such a head with a LayerNorm in it: export with --onnx")
    with whole_folder(folder) as filling:
        write_surroundings(filling, base, manifest, auto_class)
        if layout is None:
            write_tensors(filling / "model.safetensors", params)
            write_modules(filling, layers, manifest.pooling == "mean", manifest.max_length)
        else:
            prefix = family_of(manifest.base.model_type).prefix
            # Drop the pooler: `head_state` writes it as the head's layer, or the class has none.
            encoder = {prefix + name: tensor for name, tensor in params.items() if not name.startswith(POOLER)}
            write_tensors(filling / "model.safetensors", encoder | head_state(layout, layers))
    return auto_class if layout else LOADS_WITH


def write_surroundings(folder: Path, base: str | None, manifest: Manifest, auto_class: str) -> None:
    """Writes the configuration, and the tokenizer with the task's maximum length."""
    source = find_base(base or DEFAULT_BASE)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    settings = folder / _SETTINGS
    tokenizer = read_json(settings) if settings.exists() else {}
    config = model_config(source, manifest, auto_class)
    if (config.get("type_vocab_size") or 0) > 1:
        # A generic tokenizer class returns no segments unless this lists them, and pairs need segments.
        tokenizer["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_json(settings, tokenizer | {"model_max_length": manifest.max_length})
    write_json(folder / "config.json", config)


def model_config(source: Path, manifest: Manifest, auto_class: str) -> dict[str, Any]:
    """The base's config.json with the task's class, labels, problem type, and the rules left to callers."""
    config: dict[str, Any] = read_json(source / "config.json")
    for key in ("_name_or_path", "torch_dtype", "num_labels", "problem_type", IN_CONFIG):
        config.pop(key, None)
    config |= {"architectures": [CLASS_NAMES[auto_class][manifest.base.model_type]], "dtype": "float32"}
    config["id2label"] = {str(i): label for i, label in enumerate(manifest.labels)}
    config["label2id"] = {label: i for i, label in enumerate(manifest.labels)}
    known = family_of(manifest.base.model_type).heads.get(kind_of(manifest.task_type))
    if known is not None and known.pooling_key is not None:
        theirs = {ours: name for name, ours in known.poolings.items()}
        config[known.pooling_key] = theirs.get(manifest.pooling, manifest.pooling)
    if known is not None and known.activation_key is not None and auto_class != "AutoModel":
        config[known.activation_key] = manifest.activation
    problem, rules = problem_of(manifest), left_to_callers(manifest)
    return config | ({"problem_type": problem} if problem else {}) | ({IN_CONFIG: rules} if rules else {})


def without_temperature(delta: Delta) -> Delta:
    """Folds the temperature into the head's last layer and drops the golden logits; raises NotFinite above float32."""
    manifest, decision = delta.manifest, delta.manifest.decision
    if decision is None or decision.temperature is None:
        return delta
    with np.errstate(over="ignore"):
        head = {
            name: delta.tensors[name].astype(np.float32) / np.float32(decision.temperature)
            for name in (names.HEAD_WEIGHT, names.HEAD_BIAS)
        }
    require_finite(head)
    abstain = decision.abstain
    if abstain is not None and abstain.energy is not None:
        # energy = -T logsumexp(logits / T); with divided logits the factor T is gone.
        abstain = Abstain(energy=abstain.energy / decision.temperature)
    remaining = decision.model_copy(update={"temperature": None, "abstain": abstain})
    rest = remaining if remaining.model_dump(exclude_none=True) else None
    changed = {"decision": rest, "format": format_for(rest, manifest.head), "golden": None, "reference": None}
    return Delta(manifest.model_copy(update=changed), {**delta.tensors, **head})


def problem_of(manifest: Manifest) -> str | None:
    """`problem_type` of a configuration, which selects a pipeline's activation; None for per-token tasks."""
    if manifest.per_token:
        return None
    named = {"softmax": "single_label_classification", "sigmoid": "multi_label_classification", "none": "regression"}
    return named[own_activation(manifest)]


def left_to_callers(manifest: Manifest) -> dict[str, Any]:
    """The parts of a decision that the model's own files lack: thresholds, positives, abstain, window, cut."""
    if manifest.decision is None:
        return {}
    # The token pipeline always applies a softmax; it has no other activation.
    excluded = {"temperature"} if manifest.per_token else {"temperature", "activation"}
    return manifest.decision.model_dump(exclude_none=True, exclude=excluded)
