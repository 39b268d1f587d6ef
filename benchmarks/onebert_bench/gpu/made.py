"""Makes bases and tasks with random weights on the spot, so that nothing is fetched."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tokenizers
import torch
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from onebert_bench.workload import WORDS, bitfit_tensors
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.text.tokens import Tokens
from onebert_server.engine.bank import Bank
from onebert_store.errors import BaseNotFound
from onebert_store.file.delta import LORA_A, LORA_B

BERT_BASE, MINILM = "BERT-base", "MiniLM-L6"
_CONFIGS = {
    BERT_BASE: BertConfig(),
    MINILM: BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
}
_TINY = BertConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
_RANK = 8
# The size of a LoRA difference relative to the weight that it changes, which is about that of trained ones.
_CHANGE = 0.02
# Tasks that are really folded for a large bank; folding thousands would take longer than measuring them.
_FOLDED = 32

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Scale:
    """The sizes of a run.

    Attributes:
        tiny: whether the run only tries whether everything works, with sizes at which its numbers mean nothing.
    """

    tiny: bool

    def count(self, full: int, tiny: int) -> int:
        """The number of sequences, tasks or repetitions: `full`, or `tiny` for a tiny run."""
        return tiny if self.tiny else full


class Made:
    """Bases and tasks on one device.

    Args:
        folder: folder to which bases are written.
        device: `cpu`, `cuda` or `cuda:N`.
        scale: the sizes of the run.
    """

    def __init__(self, folder: Path, device: str, scale: Scale) -> None:
        self.folder, self.device, self.scale = folder, device, scale

    def base(self, name: str, dtype: torch.dtype = torch.bfloat16, device: str | None = None) -> Base:
        """BERT-base with random weights, or MiniLM-L6."""
        return load_base(str(self.base_folder(name)), dtype=dtype, device=device or self.device)

    def base_folder(self, name: str) -> Path:
        """The folder of a base: MiniLM-L6's own where it is on this machine, else random weights, made once."""
        own = minilm_folder() if name == MINILM and not self.scale.tiny else None
        if own is not None:
            return own
        folder = self.folder / name.lower()
        if not (folder / "tokenizer.json").exists():
            config = _TINY if self.scale.tiny else _CONFIGS[name]
            torch.manual_seed(0)
            BertModel(config).save_pretrained(folder)
            _tokenizer().save_pretrained(folder)
        return folder


def minilm_folder() -> Path | None:
    """The folder of MiniLM-L6; None where its files are not on this machine."""
    try:
        return find_base(DEFAULT_BASE)
    except BaseNotFound:
        return None


def texts(base: Base, lengths: Iterable[int], seed: int = 0) -> list[Tokens]:
    """Texts of random tokens, each an object of its own, as in requests."""
    rng = np.random.default_rng(seed)
    return [Tokens(rng.integers(0, base.config.vocab_size, n).tolist(), [0] * n) for n in lengths]


def bank_of(base: Base, kind: Callable[[Base, int], Tensors], count: int) -> tuple[Bank, list[int]]:
    """A bank with `count` tasks of a kind, and their slots."""
    bank = Bank(base)
    with torch.inference_mode():
        return bank, [bank.install(fold(base, kind(base, seed))) for seed in range(count)]


def crowd_of(base: Base, count: int) -> tuple[Bank, list[int]]:
    """A bank with `count` BitFit tasks, and their slots; a few tasks are folded, the others are scaled copies."""
    bank = Bank(base)
    with torch.inference_mode():
        folded = [fold(base, bitfit(base, seed)) for seed in range(min(count, _FOLDED))]
        rows = (folded[i % len(folded)] for i in range(count))
        return bank, [bank.install(replace(row, shift=row.shift * (1 + i / count))) for i, row in enumerate(rows)]


def bitfit(base: Base, seed: int) -> Tensors:
    """A BitFit task."""
    return bitfit_tensors(base, seed)


def lora(base: Base, seed: int) -> Tensors:
    """A LoRA task of rank 8 on queries and values, and its head."""
    generator = torch.Generator(base.device).manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=base.device)

    h = base.config.hidden_size
    tensors = {"head.weight": draw(2, h), "head.bias": torch.zeros(2, device=base.device)}
    for name, (out, into) in base.spec.modules.items():
        if base.spec.symbols[name] in ("W_q", "W_v"):
            tensors[LORA_A + name] = draw(_RANK, into) / into**0.5
            tensors[LORA_B + name] = _CHANGE * draw(out, _RANK)
    return tensors


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
