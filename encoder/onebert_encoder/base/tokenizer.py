"""Loads a base's tokenizer without its weights, to measure texts; needs no torch if there is a tokenizer.json."""

from pathlib import Path

import tokenizers

from onebert_encoder.base.config import read_config, read_raw
from onebert_encoder.base.folder import own_tokenizer, read_own
from onebert_encoder.base.source import DEFAULT_BASE, MOST_BYTES, find_base
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_store.errors import UnsupportedBase


def load_tokenizer(name: str | None = None) -> tuple[Tokenizer, int]:
    """A base's tokenizer and its longest sequence in tokens; raises BaseNotFound, UnsupportedBase."""
    name = name or DEFAULT_BASE
    folder = find_base(name)
    try:
        if recorded := read_own(folder):
            return own_tokenizer(folder, recorded), recorded.config.max_length
        if loaded := _read_plainly(folder):
            return loaded
        from onebert_encoder.base.base import read_tokenizer  # noqa: PLC0415 - imports torch

        config, _ = read_config(folder)
        return read_tokenizer(folder, config)[0], config.max_length
    except UnsupportedBase as error:
        raise UnsupportedBase(f"base {name}: {error.detail}") from None


def _read_plainly(folder: Path) -> tuple[Tokenizer, int] | None:
    """Reads both from the files, without transformers (which imports torch); None if the files are incomplete."""
    raw, family = read_raw(folder)
    try:
        if (folder / "tokenizer.json").stat().st_size > MOST_BYTES:
            return None
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        max_length = raw["max_position_embeddings"] - (raw["pad_token_id"] + 1 if family.positions_after_padding else 0)
        fits = max_length > 0 and max(backend.get_vocab().values()) < raw["vocab_size"]
        has_types = "type" in family.outside and (raw.get("type_vocab_size") or 0) > 1
    except Exception:  # tokenizers raises a bare Exception; the base's own reader gives the reason
        return None
    return (Tokenizer(backend, has_types), max_length) if fits else None
