"""Writes a head that no Hugging Face class has as modules of sentence-transformers, which load without code of ours."""

from collections.abc import Sequence
from pathlib import Path

from onebert_training.interop.folders import write_json, write_tensors
from onebert_training.interop.heads import Layer

LOADS_WITH = "SentenceTransformer"

# Names that every version of sentence-transformers reads.
_MODULE = "sentence_transformers.models."
_ACTIVATIONS = {True: "torch.nn.modules.activation.Tanh", False: "torch.nn.modules.linear.Identity"}


def write_modules(folder: Path, layers: Sequence[Layer], mean: bool, max_length: int) -> None:
    """Makes a plain encoder's folder one for `SentenceTransformer`, whose `encode` gives the logits.

    Args:
        folder: holds the encoder and its tokenizer.
        layers: of the head, from `head_layers`.
        mean: whether the head reads the mean of all tokens; else it reads the first.
        max_length: where longer texts are cut, in tokens.
    """
    names = ["Transformer", "Pooling", *("Dense" for _ in layers)]
    paths = ["", *(f"{place}_{name}" for place, name in enumerate(names) if place)]
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": _MODULE + name}
        for place, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    write_json(folder / "modules.json", modules)
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
        write_json(folder / path / "config.json", config | {"activation_function": _ACTIVATIONS[layer.tanh]})
        tensors = {"linear.weight": layer.weight, "linear.bias": layer.bias}
        write_tensors(folder / path / "model.safetensors", tensors)
