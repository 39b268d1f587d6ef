"""Reads a PEFT adapter folder strictly: runs no code, opens no pickle, rejects unknown options."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from onebert_encoder.base.source import read_json
from onebert_store.errors import InvalidInput, MalformedFile
from onebert_store.file.delta import listed
from onebert_store.file.strict_json import printable
from onebert_training.interop.beside import read_settings

CONFIG, WEIGHTS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
# The model's configuration with the task's labels: the usual file, and the one that `onebert export` writes.
MODEL_CONFIG, TASK_CONFIG = "config.json", "task_config.json"

# Options that are read, and options without effect on the model's output. Every other option must be off.
_READ = frozenset(
    {"peft_type", "task_type", "lora_alpha", "alpha_pattern", "r", "rank_pattern", "use_rslora", "use_dora"}
)
_HARMLESS = _READ | {
    *("auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying", "exclude_modules", "inference_mode"),
    *("layers_pattern", "layers_to_transform", "lora_bias", "lora_dropout", "megatron_core", "modules_to_save"),
    *("peft_version", "revision", "target_modules", "feedforward_modules", "init_ia3_weights", "init_lora_weights"),
    *("eva_config", "qalora_group_size"),
}
# Every other initialization changes the base's weights, and the folder does not hold those changes.
_INITIALIZATIONS = (True, False, None, "gaussian", "orthogonal", "eva")

# Ending of a tensor's name -> the kind of tensor, and the replacement of the ending.
_ENDINGS: Mapping[str, tuple[str, str]] = {
    ".lora_A.weight": ("A", ""),
    ".lora_B.weight": ("B", ""),
    ".lora_B.bias": ("B_bias", ""),
    ".lora_magnitude_vector": ("magnitude", ""),
    ".ia3_l": ("scale", ""),
    ".ln_tuning_layers.weight": ("value", ".weight"),
    ".ln_tuning_layers.bias": ("value", ".bias"),
    ".base_layer.bias": ("value", ".bias"),
}
# With bias="all" PEFT writes the head's biases a second time, under names that contain these.
_COPIES = (".modules_to_save.", ".original_module.")


@dataclass(frozen=True)
class Adapter:
    """The contents of a PEFT folder; `model_config` is config.json or task_config.json, or empty.

    `tensors` maps the kind of tensor (`A`, `B`, `B_bias`, `magnitude`, `scale`, `value`) to float32 tensors by the name
    of their module or parameter: encoder names without prefix, head names as in the whole model.
    """

    config: Mapping[str, Any]
    model_config: Mapping[str, Any]
    tensors: Mapping[str, dict[str, Tensor]]


def read_adapter(folder: Path, prefix: str) -> Adapter:
    """Reads a PEFT folder, names with `prefix`; raises InvalidInput (missing, not for a delta), MalformedFile."""
    if not (folder / CONFIG).exists():
        raise InvalidInput(
            "the folder has neither adapter_config.json nor config.json: it holds no PEFT adapter and no model"
        )
    config = read_json(folder / CONFIG)
    _check_config(config)
    if not (folder / WEIGHTS).is_file():
        pickled = (folder / PICKLE).is_file()
        why = f"; {PICKLE} is a pickle, which is never opened: save the adapter as safetensors" if pickled else ""
        raise InvalidInput(f"the folder has no {WEIGHTS}{why}")
    tensors: dict[str, dict[str, Tensor]] = {key: {} for key in ("A", "B", "B_bias", "magnitude", "scale", "value")}
    for name, tensor in _read_tensors(folder / WEIGHTS).items():
        plain = name.removeprefix("base_model.model.").removeprefix(prefix)
        ending = next((ending for ending in _ENDINGS if plain.endswith(ending)), "")
        kind, instead = _ENDINGS.get(ending, ("value", ""))
        tensors[kind][plain.removesuffix(ending) + instead] = tensor
    model_config = read_settings(folder)
    if not model_config and (folder / TASK_CONFIG).exists():
        model_config = read_json(folder / TASK_CONFIG)
    return Adapter(config, model_config, tensors)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        read = load(path.read_bytes())
        tensors = {name: tensor for name, tensor in read.items() if not any(copy in name for copy in _COPIES)}
    except (SafetensorError, OSError) as error:
        raise MalformedFile(f"{path.name} cannot be read: {type(error).__name__}") from None
    # The name of the adapter may stand behind `modules_to_save`.
    copies = {
        name: {re.sub(rf"\.modules_to_save\.{of}", ".", name) for of in ("", r"\w+\.")}
        for name in read
        if _COPIES[0] in name
    }
    if other := [
        name
        for name, plain in copies.items()
        if not any(read[name].equal(tensors[key]) for key in plain & tensors.keys())
    ]:
        raise InvalidInput(f"the adapter has two values of one part: {listed(other)}")
    if integers := [name for name, tensor in tensors.items() if not tensor.is_floating_point()]:
        raise InvalidInput(f"not floating point: {listed(integers)}")
    if odd := [name for name, tensor in tensors.items() if tensor.dim() not in (1, 2) or not tensor.numel()]:
        raise InvalidInput(f"neither vectors nor matrices: {listed(odd)}")
    return {name: tensor.float() for name, tensor in tensors.items()}


def _check_config(config: Mapping[str, Any]) -> None:
    peft_type = config.get("peft_type")
    if peft_type not in ("LORA", "LN_TUNING", "IA3"):
        raise InvalidInput(f"a delta cannot hold PEFT's {printable(str(peft_type))}; it holds LORA, LN_TUNING and IA3")
    on = [key for key, value in config.items() if key not in _HARMLESS and value]
    if on:
        raise InvalidInput(f"options that a delta cannot hold, or that are not known here: {listed(on)}")
    if odd := [key for key in ("use_rslora", "use_dora") if not isinstance(config.get(key), bool | None)]:
        raise InvalidInput(f"neither true nor false in adapter_config.json: {listed(odd)}")
    if (how := config.get("init_lora_weights")) not in _INITIALIZATIONS:
        raise InvalidInput(
            f"init_lora_weights {printable(str(how))} changes the base's weights; convert the adapter to LoRA first"
        )
