"""Reads a fine-tuned Hugging Face checkpoint: weights, model, tokenizer and configuration; and its own answers."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from torch import Tensor
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from onebert_encoder.answering.scores import Array
from onebert_encoder.base.base import Base, has_tokenizer, read_tokenizer
from onebert_encoder.base.config import EncoderConfig, library_config, read_config
from onebert_encoder.base.digest import config_form
from onebert_encoder.base.quiet import quiet
from onebert_encoder.base.sentence import MODULES, read_length
from onebert_encoder.base.source import read_parameters
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Tokens
from onebert_store.errors import InvalidInput, NotFinite, TensorMismatch, UnsupportedBase
from onebert_store.file.delta import listed
from onebert_store.file.manifest import Activation
from onebert_store.file.strict_json import printable
from onebert_training.interop.beside import read_settings
from onebert_training.interop.heads import AUTO_CLASSES, POOLER, Kind, Layer, WithHead, layout_of
from onebert_training.interop.merged import CLASS_NAMES
from onebert_training.interop.sentence import read_modules

_BATCH_TOKENS = 4096
# Most modules and numbers of a model: a few, and more for each tensor and each byte of its files. Activations have no
# tensors; transformers sets tied and loaded parameters twice; a pooler may be missing.
_ROOM, _EACH = (1000, 2**24), (10, 4)
_IMPORTED = "the checkpoint cannot be imported: {}"


class OutOfReach(InvalidInput):
    """A checkpoint that the base cannot become by a delta of low rank, but whose answers a delta may learn."""


@dataclass(frozen=True)
class Head:
    """A checkpoint's head: `linear` behind an optional `dense`; `layers`, in order, only of sentence-transformers."""

    kind: Kind
    linear: str
    dense: str | None
    pooling: str
    activation: Activation = "tanh"
    norm: str | None = None
    bias: bool = True
    layers: Sequence[Layer] = ()


@dataclass(frozen=True)
class FineTuned:
    """A checkpoint of the base's architecture, computed in float32.

    Attributes:
        params: every parameter by its Hugging Face name without prefix.
        tokenizer: its own, or else the base's.
        max_length: its tokenizer's limit in tokens; None if unknown.
        weight_bytes: size of its weight files.
    """

    head: Head
    model: Any
    params: Mapping[str, Tensor]
    tokenizer: Tokenizer
    max_length: int | None
    config: Mapping[str, Any]
    weight_bytes: int


def read_finetuned(folder: Path, base: Base) -> FineTuned:
    """Reads a checkpoint with safetensors weights, fine-tuned from the base or a model of the same shapes.

    Raises:
        OutOfReach: its architecture differs, or a delta cannot hold its head.
        InvalidInput: a file cannot be read.
        TensorMismatch: it lacks a base parameter, or has other shapes.
        NotFinite: a parameter contains NaN or infinity.
    """
    try:
        config, family = read_config(folder)
    except UnsupportedBase as error:
        raise OutOfReach(_IMPORTED.format(error.detail)) from None
    _require_same(config, base)
    try:
        constants = {name: base.params[name].cpu() for name in base.anatomy.constants}
        params = constants | read_parameters(folder, family)
        tokenizer, max_length = read_tokenizer(folder, config) if has_tokenizer(folder) else (base.tokenizer, None)
        raw = read_settings(folder)
        head = _head(folder, raw, family.prefix)
    except UnsupportedBase as error:
        raise InvalidInput(_IMPORTED.format(error.detail)) from None
    for name, layer in zip((head.linear, head.dense), reversed(head.layers), strict=False):
        params |= {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}
    if head.dense is not None and not head.bias:
        params.setdefault(f"{head.dense}.bias", torch.zeros(base.spec.hidden_size))
    _require_parameters(params, base, head)
    # transformers sizes the classifier by the number of labels.
    theirs = library_config(raw, config.model_type, num_labels=len(params[f"{head.linear}.bias"]))
    model, _ = load_model(folder, theirs, None if head.layers else head.kind)
    return FineTuned(
        head=head,
        model=WithHead(model, head.layers, head.pooling, config.eps) if head.layers else model,
        params=params,
        tokenizer=tokenizer,
        max_length=read_length(folder) if head.layers else max_length,
        config=raw,
        weight_bytes=sum(file.stat().st_size for file in folder.glob("model*.safetensors")),
    )


def _require_same(config: EncoderConfig, base: Base) -> None:
    ours, theirs = config_form(base.config), config_form(config)
    if differing := [name for name in ours | theirs if ours.get(name) != theirs.get(name)]:
        differences = ", ".join(f"{name} {theirs.get(name)} and not {ours.get(name)}" for name in differing)
        raise OutOfReach(f"the checkpoint has another architecture than the base {base.spec.name}: {differences}")


def _head(folder: Path, raw: Mapping[str, Any], prefix: str) -> Head:
    """The head of the class that the configuration names; for a plain encoder, the sentence-transformers modules."""
    if (kind := kind_named(folder, raw)) is not None:
        try:
            layout = layout_of(raw["model_type"], kind)
            pooling, activation = layout.pooling(raw), layout.activation(raw)
        except InvalidInput as error:
            raise OutOfReach(error.detail) from None
        dense = None if layout.dense is None else layout.dense.removeprefix(prefix)
        head = layout.head
        return Head(kind, head.linear, dense, pooling, activation, head.norm, head.bias)
    pooling, layers = read_modules(folder)
    dense = "head.dense" if len(layers) > 1 else None
    return Head("sequence", "head", dense, pooling, layers[0].activation or "tanh", layers=layers)


def kind_named(folder: Path, raw: Mapping[str, Any]) -> Kind | None:
    """The kind of a configuration's class, None for sentence-transformers modules; raises InvalidInput for others."""
    architectures = raw.get("architectures")
    named = [str(name) for name in architectures] if isinstance(architectures, list) else []
    known = {kind: CLASS_NAMES[auto].get(raw["model_type"]) for kind, auto in AUTO_CLASSES.items()}
    classes = {name: kind for kind, name in known.items() if name is not None}
    if (name := next((name for name in classes if name in named), None)) is not None:
        return classes[name]
    if (folder / MODULES).is_file():
        return None
    classes_named = ", ".join(printable(name) for name in named) or "no class"
    raise InvalidInput(f"the checkpoint is for {classes_named}; what is imported is {', '.join(classes)}")


def _require_parameters(params: Mapping[str, Tensor], base: Base, head: Head) -> None:
    """Rejects a checkpoint that lacks a parameter; transformers would fill it with random numbers."""
    config = base.config
    shapes = {
        name: shape
        for name, shape in base.anatomy.shapes(config.vocab_size, config.max_positions, config.type_vocab_size).items()
        if not name.startswith(POOLER)
    }
    h = base.spec.hidden_size
    if head.dense is not None:
        shapes |= {f"{head.dense}.weight": (h, h), f"{head.dense}.bias": (h,)}
    if head.norm is not None:
        shapes[f"{head.norm}.weight"] = (h,)
    if missing := (shapes.keys() | {f"{head.linear}.weight", f"{head.linear}.bias"}) - params.keys():
        raise TensorMismatch(f"the checkpoint has no {listed(missing)}")
    for name, shape in shapes.items():
        if tuple(params[name].shape) != shape:
            raise TensorMismatch(f"the checkpoint's {name} is {[*params[name].shape]}, not {[*shape]}")
    if bad := [name for name in shapes if not params[name].isfinite().all()]:
        raise NotFinite(f"not finite: {listed(bad)}")


def load_model(folder: Path, config: Any, kind: Kind | None) -> tuple[Any, set[str]]:
    """The plain model of transformers, and the parameters that the checkpoint lacks; `kind` None is a bare encoder."""
    try:
        with quiet(), _no_larger_than(folder):
            model, loading = getattr(transformers, AUTO_CLASSES[kind] if kind else "AutoModel").from_pretrained(
                str(folder),
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
    except InvalidInput:
        raise
    except Exception as error:  # a damaged folder can raise anything in transformers' loader
        raise InvalidInput(f"transformers does not load the checkpoint: {type(error).__name__}") from None
    return model.eval(), set(loading["missing_keys"])


@contextmanager
def _no_larger_than(folder: Path) -> Iterator[None]:
    """Ends the making of a model that is far larger than the weights in its folder."""
    modules, numbers = _ROOM
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, "pt") as weights:
            modules += _EACH[0] * len(weights.keys())
        numbers += _EACH[1] * file.stat().st_size
    made = {"modules": 0, "numbers": 0}

    def count(_: torch.nn.Module, __: str, part: torch.nn.Module | Tensor | None) -> None:
        made["modules"] += isinstance(part, torch.nn.Module)
        made["numbers"] += part.numel() if isinstance(part, Tensor) else 0
        if made["modules"] > modules or made["numbers"] > numbers:
            raise InvalidInput("its config.json describes a far larger model than it has weights for")

    hooks = (register_module_module_registration_hook(count), register_module_parameter_registration_hook(count))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def answer_all(model: Any, tokens: Sequence[Tokens]) -> list[Array]:
    """The logits of a Hugging Face model: [labels] for each text, or [tokens, labels] in a per-token task.

    Batches hold texts of one length, so that nothing is padded. Raises NotFinite for NaN or infinity.
    """
    logits: dict[int, Array] = {}
    for length, group in groupby(
        sorted(range(len(tokens)), key=lambda i: len(tokens[i])), key=lambda i: len(tokens[i])
    ):
        same, size = list(group), max(1, _BATCH_TOKENS // length)
        for chosen in (same[start : start + size] for start in range(0, len(same), size)):
            logits.update(zip(chosen, _logits(model, [tokens[i] for i in chosen]), strict=True))
    if not all(np.isfinite(answer).all() for answer in logits.values()):
        raise NotFinite("an answer of the checkpoint is not a finite number")
    return [logits[i] for i in range(len(tokens))]


def _logits(model: Any, texts: Sequence[Tokens]) -> Array:
    ids = torch.tensor([text.input_ids for text in texts])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if (getattr(model.config, "type_vocab_size", 0) or 0) > 1:
        inputs["token_type_ids"] = torch.tensor([text.type_ids for text in texts])
    try:
        out = model(**inputs)
    except Exception as error:  # a class that reads more than tokens, or a damaged configuration
        raise InvalidInput(f"transformers does not run the checkpoint: {type(error).__name__}") from None
    if not isinstance(out, Tensor):
        out = out.logits if "logits" in out else torch.stack([out.start_logits, out.end_logits], -1)
    logits: Array = out.float().numpy()
    return logits
