"""Bases and tasks to measure on, written once into the work folder, where all peers read them."""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from onebert_bench.suite.texts import MAX_LENGTH, texts
from onebert_encoder.base.base import DEFAULT_BASE, Base, load_base
from onebert_encoder.base.source import find_base
from onebert_encoder.text.tokens import Text, Tokens
from onebert_store.disk import write_whole
from onebert_store.file.delta import HEAD_WEIGHT, Delta
from onebert_store.file.format import dumps
from onebert_store.file.manifest import Pooling, parse_manifest
from onebert_training.methods.methods import parse_method
from onebert_training.target_scale import TargetScale

# Size of random differences: about that of trained biases, and of low-rank and sparse differences.
_CHANGE = 0.02
_HEAD = 0.3  # size of head weights; gives logits of a few units, as trained heads do
_LABELS = ("no", "yes")

MINILM, BERT_BASE, TINY = "MiniLM-L6", "BERT-base", "two tiny layers"

# Shapes of bases with random weights; the tiny one takes next to no time, so that other costs show.
_RANDOM: Mapping[str, BertConfig] = {
    BERT_BASE: BertConfig(),
    TINY: BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64),
}

# Name of a method -> number of layers of the base -> the method as users write it. SPAFIT freezes half of the layers.
METHODS: Mapping[str, Mapping[int, str]] = {
    "BitFit": dict.fromkeys((6, 12), "bitfit"),
    "LayerNorm": dict.fromkeys((6, 12), "layernorm"),
    "LoRA r=8 q, v": dict.fromkeys((6, 12), "lora:r=8,alpha=8,targets=q,v"),
    "SPAFIT, half": {6: "spafit:2-3-I,r=8,alpha=8", 12: "spafit:5-7-I,r=8,alpha=8"},
    "sparse 0.1 %": dict.fromkeys((6, 12), "random:0.1%"),
    "frozen": dict.fromkeys((6, 12), "frozen"),
}


class Workload:
    """One base with its tasks and texts.

    Args:
        name: `MINILM`, with its real weights, or a base with random weights.
        work: folder to which bases and deltas are written.
        data: folder of real texts; None makes texts up.
    """

    def __init__(self, name: str, work: Path, data: Path | None) -> None:
        self.folder = find_base(DEFAULT_BASE) if name == MINILM else _random_base(name, work)
        self._work = work
        self._data = data

    @cached_property
    def base(self) -> Base:
        """The base, for tokenizing and for the shapes of tasks."""
        return load_base(str(self.folder))

    def texts(self, mix: str, count: int) -> list[Text]:
        """Texts of a mix, the same ones at every call."""
        return texts(self.base, mix, count, self._data)

    def tokens(self, mix: str, count: int) -> list[Tokens]:
        """The same texts, tokenized and cut."""
        return self.base.tokenizer.encode(self.texts(mix, count), MAX_LENGTH)

    def files(self, method: str, count: int) -> list[Path]:
        """Delta files of `count` random tasks, as different from the base as trained ones."""
        return [self._file(method, seed) for seed in range(count)]

    def _file(self, method: str, seed: int) -> Path:
        what = (self.base.spec.digest, METHODS[method], seed, _CHANGE, _HEAD, _LABELS, MAX_LENGTH)
        key = hashlib.sha256(repr(what).encode()).hexdigest()[:20]
        file = self._work / "tasks" / f"{key}.safetensors"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, dumps(self._delta(method, seed)))
        return file

    def _delta(self, method: str, seed: int) -> Delta:
        """A random delta. The head of a frozen encoder reads the mean, as is usual; all others read BERT's pooler."""
        base, text = self.base, METHODS[method][self.base.config.num_layers]
        pooling: Pooling = "mean" if method == "frozen" else "pooler"
        plan = parse_method(text).plan(base.anatomy, pooling, base.spec.num_parameters)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            values = plan.init(base, len(_LABELS), seed)
            for name, value in values.items():
                if value.is_floating_point():
                    far = _HEAD if name == HEAD_WEIGHT else _CHANGE
                    value.add_(torch.randn(value.shape, generator=generator), alpha=far)
            tensors = {
                name: value.numpy() if value.is_floating_point() else value.int().numpy()
                for name, value in plan.tensors(values, TargetScale()).items()
            }
        manifest = {
            "format": 1,
            "base": {"name": base.spec.name, "model_type": base.spec.model_type, "digest": base.spec.digest},
            "task_type": "single_label",
            "labels": list(_LABELS),
            "pooling": pooling,
            "max_length": MAX_LENGTH,
            "method": text,
        }
        return Delta(parse_manifest(manifest), tensors)


def _random_base(name: str, work: Path) -> Path:
    """The folder of a base with random weights and the default base's tokenizer."""
    folder = work / f"{name.replace(' ', '-').lower()}-random"
    if not (folder / "tokenizer.json").exists():
        torch.manual_seed(0)
        BertModel(_RANDOM[name]).save_pretrained(folder)
        AutoTokenizer.from_pretrained(find_base(DEFAULT_BASE)).save_pretrained(folder)
    return folder
