"""Bases, texts like everyday sentences, and random tasks as different from the base as trained ones."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import tokenizers
import torch
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from onebert_bench.mpnet import mpnet_folder
from onebert_encoder.base.base import Base
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.text.tokens import Tokens
from onebert_server.engine.banks.bank import Bank
from onebert_store.errors import BaseNotFound
from onebert_store.file.delta import HEAD_WEIGHT, Delta
from onebert_store.file.manifest import Pooling, parse_manifest
from onebert_training.fit.result import to_arrays
from onebert_training.methods.methods import parse_method
from onebert_training.methods.plan import Plan
from onebert_training.target_scale import TargetScale

MINILM, BERT_BASE, TINY = "MiniLM-L6", "BERT-base", "two tiny layers"
MPNET, MODERN_BERT = "MPNet-base", "ModernBERT-base"
# Shapes of bases with random weights; the tiny one takes next to no time, so that other costs show.
_SHAPES: Mapping[str, PreTrainedConfig] = {
    MINILM: BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    BERT_BASE: BertConfig(),
    MODERN_BERT: ModernBertConfig(),
    TINY: BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64),
}

# Lengths in tokens of everyday sentences: normal around 24, cut to 6..96.
_MEAN_LENGTH, _SPREAD, _SHORTEST, _LONGEST = 24, 12, 6, 96
WORDS = """
the of and to in was he is for it with as his on be at by had not are but from or have an they which one you were her
all she there would their we him been has when who will more no if out so said what up its about into than them can
only other new some could time these two may then do first any my now such like our over man me even most made after
also did many before must
"""
# Size of random differences: about that of trained ones. Head weights give logits of a few units, as trained heads do.
_CHANGE, _HEAD = 0.02, 0.3
LABELS = ("no", "yes")
LORA = "lora:r=8,alpha=8,targets=q,v"


def base_folder(name: str, work: Path) -> Path:
    """The folder of a base: MPNet's own, MiniLM-L6's where it is on this machine, else random weights, made once."""
    if name == MPNET:
        return mpnet_folder()
    folder = minilm_folder()
    if name == MINILM and folder is not None:
        return folder
    folder = work / f"{name.replace(' ', '-').lower()}-random"
    if not (folder / "tokenizer.json").exists():
        torch.manual_seed(0)
        AutoModel.from_config(_SHAPES[name]).save_pretrained(folder)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder) if folder else _tokenizer()
        tokenizer.save_pretrained(folder)
    return folder


def minilm_folder() -> Path | None:
    """The folder of MiniLM-L6; None where its files are not on this machine."""
    try:
        return find_base(DEFAULT_BASE)
    except BaseNotFound:
        return None


def sentence_lengths(count: int, seed: int = 1) -> list[int]:
    """Lengths of `count` sentences in tokens."""
    drawn = np.random.default_rng(seed).normal(_MEAN_LENGTH, _SPREAD, count)
    return [int(length) for length in np.clip(drawn, _SHORTEST, _LONGEST)]


def sentences(base: Base, count: int, seed: int = 1) -> list[str]:
    """Texts of whole words that tokenize to about the lengths of `sentence_lengths`, special tokens included."""
    rng = np.random.default_rng(seed)
    words = whole_words(base)
    return [" ".join(rng.choice(words, max(1, length - 2))) for length in sentence_lengths(count, seed)]


def whole_words(base: Base) -> list[str]:
    """Words that are one token each."""
    candidates = WORDS.split()
    return [word for word in candidates if len(tokenized(base, [word])[0]) == 3]


def tokenized(base: Base, texts: Sequence[str]) -> list[Tokens]:
    """The texts as the server would tokenize them."""
    return base.tokenizer.encode(texts, max_length=128)


def task_tensors(base: Base, method: str, seed: int, pooling: Pooling = "mean") -> dict[str, Tensor]:
    """The tensors of a random task, by their names in a delta file."""
    plan = _plan(base, method, pooling)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        values = plan.init(base, len(LABELS), seed)
        for name, value in values.items():
            if value.is_floating_point():
                noise = torch.randn(value.shape, generator=generator).to(value.device)
                value.add_(noise, alpha=_HEAD if name == HEAD_WEIGHT else _CHANGE)
        return {name: value.detach() for name, value in plan.tensors(values, TargetScale()).items()}


@cache
def _plan(base: Base, method: str, pooling: Pooling) -> Plan:
    return parse_method(method).plan(base.anatomy, pooling, base.spec.num_parameters)


def task_delta(base: Base, method: str, seed: int, pooling: Pooling = "mean", max_length: int = 128) -> Delta:
    """A random task as a delta that a server takes."""
    spec = base.spec
    manifest = {
        "format": 1,
        "base": {"name": spec.name, "model_type": spec.model_type, "digest": spec.digest},
        "task_type": "single_label",
        "labels": list(LABELS),
        "pooling": pooling,
        "max_length": max_length,
        "method": method,
    }
    return Delta(parse_manifest(manifest), to_arrays(task_tensors(base, method, seed, pooling)))


def bank_of(base: Base, method: str, count: int) -> tuple[Bank, list[int]]:
    """A bank with `count` random tasks of a method, and their slots."""
    bank = Bank(base)
    with torch.inference_mode():
        return bank, [bank.install(fold(base, task_tensors(base, method, seed))) for seed in range(count)]


def _tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer in which each word of the load is one token."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *dict.fromkeys(WORDS.split())]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = tokenizers.Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))  # noqa: S106 - a token of text
    backend.normalizer, backend.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")],
    )
    special = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast: Callable[..., PreTrainedTokenizerFast] = PreTrainedTokenizerFast
    return fast(tokenizer_object=backend, model_max_length=512, **special)
