"""The tokenizer of a base without its weights, for measuring texts. No torch where the base has a tokenizer.json."""

from pathlib import Path

import tokenizers

from onebert_encoder.base.config import read_config, read_raw
from onebert_encoder.base.source import DEFAULT_BASE, MOST_BYTES, find_base
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_store.errors import UnsupportedBase


def load_tokenizer(name: str | None = None) -> tuple[Tokenizer, int]:
    """The tokenizer of a base, and the most tokens that the base takes.

    Args:
        name: folder or Hub id; None is the default base.

    Raises:
        BaseNotFound: nothing of that name can be had.
        UnsupportedBase: another architecture, or no tokenizer.
    """
    name = name or DEFAULT_BASE
    folder = find_base(name)
    try:
        return _read_plainly(folder) or _read_as_loaded(folder)
    except UnsupportedBase as error:
        raise UnsupportedBase(f"base {name}: {error.detail}") from None


def _read_plainly(folder: Path) -> tuple[Tokenizer, int] | None:
    """The two as the base's files have them, without transformers, which imports torch; None where these lack one."""
    raw, family = read_raw(folder)
    try:
        if (folder / "tokenizer.json").stat().st_size > MOST_BYTES:
            return None
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        most = raw["max_position_embeddings"] - (raw["pad_token_id"] + 1 if family.positions_after_padding else 0)
        fits = most > 0 and max(backend.get_vocab().values()) < raw["vocab_size"]
    except Exception:  # tokenizers raises it bare; the base's own reader says what is wrong
        return None
    return (Tokenizer(backend, has_types=raw.get("type_vocab_size", 0) > 1), most) if fits else None


def _read_as_loaded(folder: Path) -> tuple[Tokenizer, int]:
    from onebert_encoder.base.base import read_tokenizer  # noqa: PLC0415 - imports torch

    config, _ = read_config(folder)
    return read_tokenizer(folder, config)[0], config.max_length
