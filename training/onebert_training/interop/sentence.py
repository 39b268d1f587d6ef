"""Writes and reads heads without a Hugging Face class as modules of sentence-transformers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from onebert_encoder.base import sentence as modules
from onebert_encoder.base.sentence import MODULES
from onebert_encoder.base.source import read_json, read_weights
from onebert_store.errors import InvalidInput, MalformedFile
from onebert_store.file.manifest import Activation
from onebert_training.interop.beside import DENSE, refuse_others
from onebert_training.interop.folders import write_json, write_tensors
from onebert_training.interop.heads import Layer

LOADS_WITH = "SentenceTransformer"
SETFIT_HEAD = "model_head.pkl"

# Module names that every version of sentence-transformers reads.
_MODULE = "sentence_transformers.models."
_ACTIVATIONS: Mapping[Activation | None, str] = {
    "tanh": "torch.nn.modules.activation.Tanh",
    "gelu": "torch.nn.modules.activation.GELU",
    "relu": "torch.nn.modules.activation.ReLU",
    None: "torch.nn.modules.linear.Identity",
}


def write_modules(folder: Path, layers: Sequence[Layer], mean: bool, max_length: int) -> None:
    """Makes an encoder's folder one for `SentenceTransformer`, by `mean` or first token, cut at `max_length`."""
    names = ["Transformer", "Pooling", *("Dense" for _ in layers)]
    paths = ["", *(f"{place}_{name}" for place, name in enumerate(names) if place)]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": _MODULE + name}
        for place, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    write_json(folder / MODULES, modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    for path in paths[1:]:
        (folder / path).mkdir()
    pooling = {
        "word_embedding_dimension": layers[0].weight.shape[1],
        "pooling_mode_cls_token": not mean,
        "pooling_mode_mean_tokens": mean,
    }
    write_json(folder / paths[1] / "config.json", pooling)
    for path, layer in zip(paths[2:], layers, strict=True):
        outputs, inputs = layer.weight.shape
        config = {"in_features": inputs, "out_features": outputs, "bias": True}
        write_json(folder / path / "config.json", config | {"activation_function": _ACTIVATIONS[layer.activation]})
        tensors = {"linear.weight": layer.weight, "linear.bias": layer.bias}
        write_tensors(folder / path / "model.safetensors", tensors)


def read_modules(folder: Path) -> tuple[str, list[Layer]]:
    """Pooling and layers that `write_modules` wrote; raises InvalidInput, MalformedFile, UnsupportedBase."""
    kinds, paths = modules.read_modules(folder)
    if "Dense" not in kinds and (folder / SETFIT_HEAD).is_file():
        raise InvalidInput(
            f"the head of this SetFit model is a pickle, {SETFIT_HEAD}, which is never read: write its coef_ and "
            "intercept_ as a Dense module first, by the lines in docs/guide/interop.md"
        )
    if kinds[:2] != ["Transformer", "Pooling"] or kinds[2:] not in (["Dense"], ["Dense", "Dense"]):
        named = ", ".join(kinds) or "none"
        raise InvalidInput(f"the checkpoint has no head that a delta can hold: its modules are {named}")
    pooling, name = modules.read_pooling(folder / paths[1])
    if pooling is None:
        raise InvalidInput(f"a delta's head reads the mean of the tokens or the first one, and not {name}")
    layers = [_read_layer(folder / path) for path in paths[2:]]
    if [layer.activation is None for layer in layers] != [*(False for _ in layers[1:]), True]:
        raise InvalidInput("a delta's head is a linear map, or one behind a layer with an activation")
    return pooling, layers


def _read_layer(folder: Path) -> Layer:
    refuse_others(folder, "config.json", DENSE)
    activation, tensors = read_json(folder / "config.json").get("activation_function"), read_weights(folder, "linear.")
    ours = [key for key, name in _ACTIVATIONS.items() if name == activation]
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if not ours or weight is None or bias is None:
        raise InvalidInput(f"a delta's head cannot hold the layer {folder.name}")
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise MalformedFile(f"the weight and the bias of {folder.name} do not fit together")
    return Layer(weight, bias, ours[0])
