"""Golden vectors of a base: last vectors of the plain Hugging Face model, which our encoder must give."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.base.quiet import quiet
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import stack_rows
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Text, Tokens, halves_of
from onebert_store.errors import UnsupportedBase

TOLERANCE = 1e-4
"""Largest difference from the plain model in float32, relative to its largest number (at least 1)."""

# The tokenizer must split these as the plain one does.
_TEXTS: tuple[Text, ...] = ("A naïve parcel: 包裹, 3 days late!", ("Is it here?", "Not yet."))
# Tokens of the random sequences: the third one is longer than a window of local attention.
_LENGTHS = (1, 17, 150, 512)
_SEED = 20261126


@dataclass(frozen=True)
class Golden:
    """Sequences, the texts' first, and their vectors [tokens, h] by the plain model."""

    tokens: Sequence[Tokens]
    vectors: Sequence[Tensor]

    def dumps(self) -> bytes:
        """The content of `golden.safetensors`."""
        tensors: dict[str, Tensor] = {}
        for i, (text, vectors) in enumerate(zip(self.tokens, self.vectors, strict=True)):
            tensors |= {f"ids.{i}": torch.tensor(text.input_ids), f"types.{i}": torch.tensor(text.type_ids)}
            tensors[f"vectors.{i}"] = vectors.contiguous()
        return save(tensors)

    @classmethod
    def loads(cls, content: bytes) -> "Golden":
        """Reads the content of a `golden.safetensors` whose digest has been compared."""
        tensors = load(content)
        indices = range(len(tensors) // 3)
        tokens = [Tokens(tensors[f"ids.{i}"].tolist(), tensors[f"types.{i}"].tolist()) for i in indices]
        return cls(tokens, [tensors[f"vectors.{i}"] for i in indices])


def plain_golden(folder: Path, base: Base) -> Golden:
    """Golden vectors of a Hugging Face folder, float32, eager; raises UnsupportedBase if transformers cannot."""
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415 - a server does without

    plain = {"local_files_only": True, "trust_remote_code": False}
    try:
        with quiet(), torch.inference_mode():
            tokenizer = AutoTokenizer.from_pretrained(str(folder), **plain)
            model = AutoModel.from_pretrained(
                str(folder), dtype=torch.float32, attn_implementation="eager", use_safetensors=True, **plain
            ).eval()
            tokens = [*(_by_plain(tokenizer, text, base) for text in _TEXTS), *_random(base)]
            vectors = [_vectors(model, text, base.config.type_vocab_size > 1) for text in tokens]
    except UnsupportedBase:
        raise
    except Exception as error:  # a third party's loader may raise anything
        raise UnsupportedBase(f"transformers does not run it: {type(error).__name__}") from None
    return Golden(tokens, vectors)


def check_golden(base: Base, golden: Golden) -> float:
    """The largest difference of our vectors from the golden ones; raises UnsupportedBase if over `TOLERANCE`."""
    encoded = base.tokenizer.encode(_TEXTS, base.config.max_length)
    if [text.input_ids for text in encoded] != [text.input_ids for text in golden.tokens[: len(encoded)]]:
        raise UnsupportedBase("its tokenizer does not give the token ids of the Hugging Face tokenizer")
    h = base.config.hidden_size
    head = {"head.weight": torch.eye(h), "head.bias": torch.zeros(h)}
    rows = stack_rows(base, [fold(base, head, "none")])
    with torch.inference_mode():
        batch = pack(base, Sequences.of(golden.tokens), [0] * len(golden.tokens))
        ours = compute_logits(base, rows, batch).split()
    pairs = list(zip(ours, golden.vectors, strict=True))
    error = max(float((got - want).abs().max()) for got, want in pairs)
    # `not <=` is true for NaN, too.
    if not error <= TOLERANCE * max(1.0, *(float(want.abs().max()) for _, want in pairs)):
        raise UnsupportedBase(f"its vectors and the plain model's differ by {error:.1e}, more than {TOLERANCE}")
    return error


def _by_plain(tokenizer: "object", text: Text, base: Base) -> Tokens:
    ids = tokenizer(*halves_of(text))["input_ids"]  # type: ignore[operator]
    [ours] = base.tokenizer.encode([text], base.config.max_length)
    # Generic tokenizer classes give no segments; ours come from the template.
    return Tokens(ids, ours.type_ids if len(ours) == len(ids) else [0] * len(ids))


def _random(base: Base) -> list[Tokens]:
    """Random sequences without the padding token, which plain models of some families place differently."""
    config, generator = base.config, np.random.default_rng(_SEED)
    lengths = dict.fromkeys(min(length, config.max_length) for length in _LENGTHS)
    ids = [i for i in range(config.vocab_size) if i != config.padding_id]
    drawn = [generator.choice(ids, length).tolist() for length in lengths]
    second = int(config.type_vocab_size > 1)
    return [Tokens(ids, [0] * (len(ids) // 2) + [second] * (len(ids) - len(ids) // 2)) for ids in drawn]


def _vectors(model: "torch.nn.Module", text: Tokens, has_types: bool) -> Tensor:
    ids = torch.tensor([text.input_ids])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if has_types:
        inputs["token_type_ids"] = torch.tensor([text.type_ids])
    vectors: Tensor = model(**inputs).last_hidden_state[0]
    return vectors
