"""Computes a base's digest, which stays the same when a library or this package adds a field."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from onebert_encoder.base.config import EncoderConfig

if TYPE_CHECKING:  # a tokenizer is read without torch
    from torch import Tensor

# Keys that the `tokenizers` library wrote at our first release, for a tokenizer and for its model. A key of a later
# release enters the digest only with a non-empty value: an empty one changes no token.
_TOKENIZER_KEYS = frozenset("version added_tokens normalizer pre_tokenizer post_processor decoder model".split())
_WORD_PIECE = "type vocab unk_token continuing_subword_prefix max_input_chars_per_word"
_BPE, _UNIGRAM = "dropout end_of_word_suffix fuse_unk byte_fallback ignore_merges merges", "unk_id"
_MODEL_KEYS = frozenset(f"{_WORD_PIECE} {_BPE} {_UNIGRAM}".split())
# Excluded from the digest: OneBERT truncates texts itself and never pads.
_REPLACED = frozenset({"truncation", "padding"})


def base_digest(config: EncoderConfig, tokenizer: str, params: Mapping[str, "Tensor"]) -> str:
    """SHA-256 over configuration, tokenizer (`Tokenizer.to_str`) and weights: name, shape, float32 values."""
    form = [config_form(config), tokenizer_form(tokenizer)]
    hasher = hashlib.sha256(json.dumps(form, sort_keys=True, ensure_ascii=False).encode())
    for name in sorted(params):
        tensor = params[name]
        hasher.update(f"\n{name} {list(tensor.shape)}\n".encode())
        hasher.update(tensor.numpy().astype("<f4", copy=False).data)
    return f"sha256:{hasher.hexdigest()}"


def config_digest(config: EncoderConfig) -> str:
    """SHA-256 of the configuration in the digest's form, in hexadecimal."""
    return hashlib.sha256(json.dumps(config_form(config), sort_keys=True).encode()).hexdigest()


def config_form(config: EncoderConfig) -> dict[str, Any]:
    """The configuration in the digest's form.

    Dropout is left out, since serving turns it off. Fields at their defaults are left out: a new field needs a default,
    and then the digests of existing bases, which deltas refer to, stay the same.
    """
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if not field.name.endswith("dropout")
        if field.default is dataclasses.MISSING or getattr(config, field.name) != field.default
    }


def tokenizer_form(tokenizer: str) -> dict[str, Any]:
    """The tokenizer, as `Tokenizer.to_str` gives it, in the digest's form: equal for every release of `tokenizers`."""
    written = {key: value for key, value in json.loads(tokenizer).items() if key not in _REPLACED}
    model = _without_unused(written["model"], _MODEL_KEYS)
    if "merges" in model:
        # Releases before 0.20 wrote a pair as one string with a space.
        model["merges"] = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
    return {**_without_unused(written, _TOKENIZER_KEYS), "model": model}


def differing_parts(ours: str, theirs: str) -> str:
    """The parts of tokenizer.json in which two tokenizers (`Tokenizer.to_str`) may split a text differently."""
    forms = tokenizer_form(ours), tokenizer_form(theirs)
    parts = ("model", "normalizer", "pre_tokenizer", "added_tokens", "post_processor")
    return ", ".join(part for part in parts if forms[0].get(part) != forms[1].get(part))


def _without_unused(written: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in written.items() if key in known or value not in (None, False, "", [], {})}
