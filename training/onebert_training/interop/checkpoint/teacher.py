"""Reads a fine-tuned Hugging Face classifier of any architecture that transformers knows, to learn its answers."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from onebert_encoder.base.base import tokenizer_of
from onebert_encoder.base.sentence import read_length
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_store.errors import InvalidInput, OneBertError, TensorMismatch
from onebert_store.file.delta import listed
from onebert_store.file.manifest import MAX_LABELS
from onebert_store.file.strict_json import printable
from onebert_training.interop.beside import read_settings
from onebert_training.interop.checkpoint.finetuned import kind_named, load_model
from onebert_training.interop.heads import WithHead
from onebert_training.interop.sentence import read_modules

# Keys of config.json that say how a model is loaded, and the keys of its outputs.
_LEFT_OUT = {
    *("auto_map", "quantization_config", "transformers_weights", "dtype", "torch_dtype", "_name_or_path"),
    *("num_labels", "id2label", "label2id", "problem_type", "return_dict", "output_hidden_states", "use_cache"),
}
# Some classes number positions from the padding's id on, which takes two of them.
_BEFORE_FIRST = 2
_USUAL_LENGTH = 512
# Largest whole number of a configuration: more than any vocabulary or number of positions.
_MOST = 2**24


@dataclass(frozen=True)
class Teacher:
    """A classifier of whole texts in float32 and eager attention, with its own tokenizer.

    Attributes:
        max_length: its longest input in tokens.
        config: its config.json.
        digest: of its weight files.
    """

    model: Any
    tokenizer: Tokenizer
    max_length: int
    outputs: int
    config: Mapping[str, Any]
    digest: str
    weight_bytes: int


def read_teacher(folder: Path) -> Teacher:
    """Reads a `…ForSequenceClassification`, or an encoder with the sentence-transformers modules of a classifier.

    Code and pickled weights of the folder are never opened, and nothing is fetched.

    Raises:
        InvalidInput: transformers has no such architecture, the class answers no whole texts, or a file cannot be read.
        TensorMismatch: it lacks parameters, which transformers would fill with random numbers.
    """
    try:
        return _read(folder)
    except OneBertError as error:
        kind = TensorMismatch if isinstance(error, TensorMismatch) else InvalidInput
        raise kind(f"no delta can learn the checkpoint's answers: {error.detail}") from None


def _read(folder: Path) -> Teacher:
    raw = read_settings(folder)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING_NAMES:
        name = printable(str(model_type))
        raise InvalidInput(f"{name} is no architecture of transformers, and the code of a checkpoint is never run")
    if (kind := kind_named(folder, raw)) not in ("sequence", None):
        raise InvalidInput("its class answers tokens, and only answers to whole texts are learned")
    files = sorted(folder.glob("model*.safetensors"))
    if not files:
        raise InvalidInput("it has no model.safetensors; other weight formats are not read")
    pooling, layers = read_modules(folder) if kind is None else ("", [])
    outputs = len(layers[-1].bias) if layers else _outputs(raw)
    theirs = _config(raw, outputs)
    tokenizer, longest = tokenizer_of(
        folder, lambda: theirs, theirs.vocab_size, (getattr(theirs, "type_vocab_size", 0) or 0) > 1
    )
    model, missing = load_model(folder, theirs, kind)
    # A bare encoder's pooler has no part in the answers.
    if missing := {name for name in missing if kind or not name.startswith("pooler.")}:
        raise TensorMismatch(f"the checkpoint has no {listed(missing)}")
    positions = getattr(theirs, "max_position_embeddings", None)
    room = positions - _BEFORE_FIRST if isinstance(positions, int) and positions > _BEFORE_FIRST else _USUAL_LENGTH
    return Teacher(
        model=WithHead(model, layers, pooling) if layers else model,
        tokenizer=tokenizer,
        max_length=(read_length(folder) if layers else longest) or room,
        outputs=outputs,
        config=raw,
        digest=_digest(files),
        weight_bytes=sum(file.stat().st_size for file in files),
    )


def _outputs(raw: Mapping[str, Any]) -> int:
    names, number = raw.get("id2label"), raw.get("num_labels", 2)
    count = len(names) if isinstance(names, dict) else number
    if type(count) is not int or not 1 <= count <= MAX_LABELS:
        raise InvalidInput(f"the number of labels in config.json is not between 1 and {MAX_LABELS}")
    return count


def _config(raw: Mapping[str, Any], outputs: int) -> Any:
    """transformers' configuration, without the keys that would change how the model is loaded."""
    used = {key: value for key, value in raw.items() if key not in _LEFT_OUT}
    # A configuration makes a list with an item for each layer; `load_model` bounds the model.
    if max(_whole_numbers(used), default=0) > _MOST:
        raise InvalidInput(f"a number in its config.json is over {_MOST:,}")
    try:
        return AutoConfig.for_model(used.pop("model_type"), **used, num_labels=outputs)
    except Exception as error:  # transformers may raise anything for values of the wrong kind
        raise InvalidInput(f"its config.json cannot be read: {type(error).__name__}") from None


def _whole_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _whole_numbers(item)


def _digest(files: list[Path]) -> str:
    hasher = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            hashlib.file_digest(opened, lambda: hasher)
    return f"sha256:{hasher.hexdigest()}"
