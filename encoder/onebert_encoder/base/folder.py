"""A base folder of our own, as `onebert base add` writes it: read without transformers.

It holds `model.safetensors` (float32, with the names of `Anatomy.shapes`), `tokenizer.json`, `golden.safetensors`
(vectors of the plain Hugging Face model), and `base.json`: name, digest, configuration, size and SHA-256 of each file.
Copies of `config.json` and the tokenizer's other files lie beside them, for `onebert export`.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from onebert_encoder.base.config import EncoderConfig, check_config
from onebert_encoder.base.digest import config_digest
from onebert_encoder.base.families import family_of
from onebert_encoder.base.source import (
    DEFAULT_BASE,
    MOST_BYTES,
    RECORD,
    added_names,
    bases_folder,
    changed,
    is_own,
    packaged_folder,
    read_json,
)
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_store.errors import MalformedFile, UnsupportedBase

WEIGHTS, TOKENIZER, GOLDEN = "model.safetensors", "tokenizer.json", "golden.safetensors"
FILES = (WEIGHTS, TOKENIZER, GOLDEN)
_FORMAT = 1
# Type of a field of the configuration -> the types of its value.
_KINDS: Mapping[Any, tuple[type, ...]] = {int: (int,), float: (float, int), str: (str,), bool: (bool,)}


@dataclass(frozen=True)
class Recorded:
    """The content of `base.json`; `files` has the size and SHA-256 of each file."""

    name: str
    digest: str
    config: EncoderConfig
    files: Mapping[str, tuple[int, str]]

    def dumps(self) -> dict[str, Any]:
        """The JSON object of `base.json`."""
        files = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in self.files.items()}
        config = {"config": dataclasses.asdict(self.config), "config_sha256": config_digest(self.config)}
        return {"format": _FORMAT, "name": self.name, "digest": self.digest, **config, "files": files}


# The record of the package with the default base: a start that needs no transformers takes a second less.
PACKAGED = Recorded(
    DEFAULT_BASE,
    "sha256:3c398c3611c0d4f29cd07c5877e7024a913f3fbf0bdfe18311921a7bdb017e47",
    EncoderConfig(
        model_type="bert",
        hidden_size=384,
        embedding_size=384,
        num_layers=6,
        num_heads=12,
        intermediate_size=1536,
        activation="gelu",
        eps=1e-12,
        vocab_size=30522,
        max_positions=512,
        type_vocab_size=2,
        padding_id=0,
        first_position=0,
        hidden_dropout=0.1,
        attention_dropout=0.1,
    ),
    {
        WEIGHTS: (90868376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        TOKENIZER: (466247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    },
)


def read_own(folder: Path) -> Recorded | None:
    """Reads `base.json`, and compares with it the size of each file and the configuration.

    The package of the default base has no `base.json`; `PACKAGED` stands for it. Weights and tokenizer are compared
    with their digests as they are read.

    Returns None for a folder of another kind; raises UnsupportedBase if a file is missing or changed.
    """
    if not is_own(folder) and folder != packaged_folder():
        return None
    recorded = _read(folder) if is_own(folder) else PACKAGED
    _compare(folder, recorded)
    return recorded


def own_file(folder: Path, recorded: Recorded, name: str) -> bytes:
    """The content of a file of a folder of our own; raises UnsupportedBase if it has changed."""
    content = (folder / name).read_bytes()
    if hashlib.sha256(content).hexdigest() != recorded.files[name][1]:
        raise UnsupportedBase(changed(folder / name))
    return content


def own_tokenizer(folder: Path, recorded: Recorded) -> Tokenizer:
    """The tokenizer of a folder of our own; raises UnsupportedBase if it has changed or `tokenizers` cannot read it."""
    content = own_file(folder, recorded, TOKENIZER)
    try:
        backend = tokenizers.Tokenizer.from_buffer(content)
    except Exception as error:  # tokenizers raises a bare Exception
        raise UnsupportedBase(f"its tokenizer cannot be read: {type(error).__name__}") from None
    return Tokenizer(backend, has_types=recorded.config.type_vocab_size > 1)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal, read in parts."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listed() -> Iterator[dict[str, Any]]:
    """The added bases for people and scripts; `problem` in place of a digest if a folder cannot be served."""
    for name in added_names():
        folder = bases_folder() / name
        base = {"name": name, "folder": str(folder)}
        try:
            recorded = _read(folder)
            _compare(folder, recorded)
        except UnsupportedBase as error:
            yield base | {"problem": error.detail}
        else:
            size = sum(size for size, _ in recorded.files.values())
            yield base | {"architecture": recorded.config.model_type, "bytes": size, "digest": recorded.digest}


def _read(folder: Path) -> Recorded:
    try:
        raw = read_json(folder / RECORD)
        if raw["format"] != _FORMAT:
            raise UnsupportedBase(f"its {RECORD} has another format than {_FORMAT}, which this OneBERT reads")
        files = {name: (raw["files"][name]["bytes"], raw["files"][name]["sha256"]) for name in FILES}
        recorded = Recorded(raw["name"], raw["digest"], _config_of(raw["config"]), files)
        same = raw["config_sha256"] == config_digest(recorded.config)
        fits = isinstance(recorded.name, str) and isinstance(recorded.digest, str) and files[TOKENIZER][0] <= MOST_BYTES
    except (MalformedFile, KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise UnsupportedBase(f"its {RECORD} is damaged: remove the folder, and add the base again")
    if not same:
        raise UnsupportedBase(changed(folder / RECORD))
    return recorded


def _compare(folder: Path, recorded: Recorded) -> None:
    for name, (size, _) in recorded.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            raise UnsupportedBase(f"its {name} is missing or does not have the {size} bytes that it had")


def _config_of(raw: Mapping[str, Any]) -> EncoderConfig:
    """The configuration from JSON, whose lists are tuples here; raises ValueError or TypeError for other values."""
    config = EncoderConfig(**{name: _frozen(value) for name, value in raw.items()})
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type in _KINDS and type(value) not in _KINDS[field.type]:
            raise TypeError(field.name)
    if any([type(value) for value in layer] != [float, int] for layer in config.rotary):
        raise TypeError("rotary")
    family_of(config.model_type)
    try:
        check_config(config)
    except UnsupportedBase as error:
        raise ValueError(error.detail) from None
    return config


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
