"""Writes a merged model as ONNX, for runtimes without PyTorch."""

import logging
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModel

from onebert_encoder.base.config import library_config, read_config
from onebert_encoder.base.source import read_json
from onebert_store.disk import whole_folder
from onebert_store.errors import InvalidSettings
from onebert_store.file.manifest import Manifest
from onebert_training.interop.heads import AUTO_CLASSES, POOLER, WithHead, head_layers, kind_of
from onebert_training.interop.merged import write_surroundings

MODEL = "model.onnx"

# An ONNX file is limited to 2 GiB; a larger model's weights go to a file beside it.
_MAX_BYTES = 2**31 - 2**24


def require_onnx() -> None:
    """Raises InvalidSettings before any work if the ONNX packages are missing."""
    if not all(map(find_spec, ("onnx", "onnxscript"))):
        raise InvalidSettings("--onnx needs onnx and onnxscript: pip install '.[onnx]' in the checkout")


def write_onnx(
    folder: Path, base: str | None, params: Mapping[str, Tensor], head: Mapping[str, Tensor], manifest: Manifest
) -> None:
    """Writes `model.onnx` with configuration and tokenizer atomically; arguments are as in `write_checkpoint`.

    Inputs are `input_ids`, `attention_mask` and, if the base has segments, `token_type_ids`, each int64 [batch, tokens]
    of any size. The output is `logits` [batch, labels], or [batch, tokens, labels] in a token task; a span task has
    `start_logits` and `end_logits`, each [batch, tokens]. Optimum and transformers.js use the same names.
    """
    kind = kind_of(manifest.task_type)
    with whole_folder(folder) as filling:
        write_surroundings(filling, base, manifest, AUTO_CLASSES[kind])
        config = library_config(read_json(filling / "config.json"), manifest.base.model_type)
        # The other attention implementations branch on their inputs, which a recorded graph cannot.
        encoder = AutoModel.from_config(config, attn_implementation="eager")
        # The class has a pooler even if the base has none; a task's pooler is among the head's layers.
        pooler = {name: tensor for name, tensor in encoder.state_dict().items() if name.startswith(POOLER)}
        encoder.load_state_dict(pooler | dict(params))
        layers = head_layers(manifest, params, head)
        model = WithHead(encoder, layers, manifest.pooling, read_config(filling)[0].eps, kind == "span").eval()
        outputs = ["start_logits", "end_logits"] if kind == "span" else ["logits"]
        segments = (getattr(config, "type_vocab_size", 0) or 0) > 1
        _record(model, filling / MODEL, segments, outputs)


def _record(model: nn.Module, path: Path, segments: bool, outputs: Sequence[str]) -> None:
    # Two sequences, one of them padded: a size of 1 or an all-ones mask would be recorded as a constant.
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 5:] = 0
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])]
    # Three distinct tensors: the same tensor given twice would be recorded as one input.
    inputs = [torch.ones_like(mask), mask, torch.zeros_like(mask)][: len(names)]
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    total = sum(parameter.nbytes for parameter in model.parameters())
    # It warns about its internals, and about missing packages that no text encoder needs.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            tuple(inputs),
            path,
            input_names=names,
            output_names=list(outputs),
            dynamic_shapes=(sizes,) * len(names),
            external_data=total > _MAX_BYTES,
            dynamo=True,
            verbose=False,
        )
