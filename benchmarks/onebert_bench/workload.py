"""Texts like everyday sentences, and random BitFit tasks as different from the base as trained ones."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.text.tokens import Tokens
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import parse_manifest

# Lengths in tokens of everyday sentences: normal around 24, cut to 6..96.
_MEAN_LENGTH, _SPREAD, _SHORTEST, _LONGEST = 24, 12, 6, 96
WORDS = """
the of and to in was he is for it with as his on be at by had not are but from or have an they which one you were her
all she there would their we him been has when who will more no if out so said what up its about into than them can
only other new some could time these two may then do first any my now such like our over man me even most made after
also did many before must
"""
# Size of random bias differences, which is about that of trained ones.
_BIAS_CHANGE = 0.02


def sentence_lengths(count: int, seed: int = 1) -> list[int]:
    """Lengths of `count` sentences in tokens."""
    drawn = np.random.default_rng(seed).normal(_MEAN_LENGTH, _SPREAD, count)
    return [int(length) for length in np.clip(drawn, _SHORTEST, _LONGEST)]


def sentences(base: Base, count: int, seed: int = 1) -> list[str]:
    """Texts of whole words that tokenize to about the lengths of `sentence_lengths`, special tokens included."""
    rng = np.random.default_rng(seed)
    words = whole_words(base)
    return [" ".join(rng.choice(words, max(1, length - 2))) for length in sentence_lengths(count, seed)]


def tokenized(base: Base, texts: Sequence[str]) -> list[Tokens]:
    """The texts as the server would tokenize them."""
    return base.tokenizer.encode(texts, max_length=128)


def bitfit_tensors(base: Base, seed: int, labels: int = 2) -> dict[str, Tensor]:
    """The tensors of a random BitFit task, by their names in a delta file."""
    generator = torch.Generator().manual_seed(seed)
    biases = [p for p in base.anatomy.parameters if p.symbol.startswith("b_") and p.symbol != "b_p"]
    tensors = {f"delta.{p.name}": _BIAS_CHANGE * torch.randn(p.shape, generator=generator) for p in biases}
    head = {"head.weight": torch.randn(labels, base.config.hidden_size, generator=generator)}
    moved = {name: tensor.to(base.device) for name, tensor in {**tensors, **head}.items()}
    return {**moved, "head.bias": torch.zeros(labels, device=base.device)}


def bitfit_delta(base: Base, seed: int) -> Delta:
    """The same task as a delta that a server takes."""
    spec = base.spec
    manifest = {
        "format": 1,
        "base": {"name": spec.name, "model_type": spec.model_type, "digest": spec.digest},
        "task_type": "single_label",
        "labels": ["no", "yes"],
        "pooling": "mean",
        "max_length": 128,
        "method": "bitfit",
    }
    tensors = {name: tensor.cpu().numpy() for name, tensor in bitfit_tensors(base, seed).items()}
    return Delta(parse_manifest(manifest), tensors)


def whole_words(base: Base) -> list[str]:
    """Words that are one token each."""
    candidates = WORDS.split()
    return [word for word in candidates if len(tokenized(base, [word])[0]) == 3]
