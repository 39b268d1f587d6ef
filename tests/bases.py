"""Small random bases of every family and size class, and the plain Hugging Face model to hold answers against."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers.models import BPE, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast
from transformers.utils import logging

from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import Row
from onebert_encoder.text.tokens import Tokens

WORDS = """
the a of to and in is it you that he was for on are with as his they be at one have this from or had by not
but what all were when we there can an your which their said if do will each about how up out them then she
many some so these would other into has more her two like him see time could no make than first been its who
now people my made over did down only way find use may water long little very after words called just where
most know good great bad refund parcel order invoice password screen late broken thanks please help ! ? . , '
- ##s ##ed ##ing ##ly ##er
""".split()

_SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
_BERT: dict[str, Any] = {**_SIZES, "max_position_embeddings": 66}
_ROBERTA: dict[str, Any] = {**_BERT, "type_vocab_size": 1}
# Without learned positions the number of positions costs nothing.
_ROTARY: dict[str, Any] = {**_SIZES, "max_position_embeddings": 600, "pad_token_id": 0}
_ROTARY |= {"bos_token_id": 2, "eos_token_id": 3}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "bert": _BERT,
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 66},
    "mpnet": _BERT,
    "electra": {**_BERT, "embedding_size": 16},
    "deberta-v2": {
        **_SIZES,
        **{"relative_attention": True, "share_att_key": True, "pos_att_type": ["p2c", "c2p"]},
        # Distances up to 8 have buckets of their own, those up to 599 share some.
        **{"norm_rel_ebd": "layer_norm", "position_buckets": 16, "max_position_embeddings": 600},
        **{"position_biased_input": False, "type_vocab_size": 0},
    },
    # The first layer attends globally, the others within 64 tokens.
    "modernbert": {**_ROTARY, "cls_token_id": 2, "sep_token_id": 3},
    "gte": _ROTARY,
    "nomic_bert": _ROTARY,
    "eurobert": {**_ROTARY, "mask_token_id": 4},
}

FAMILIES = tuple(CONFIGS)

ALIASES: Mapping[str, Mapping[str, Any]] = {
    "camembert": _ROBERTA,
    "data2vec-text": _ROBERTA,
    "ernie": _BERT,
    "rembert": {**_BERT, "input_embedding_size": 16},
}
"""Families with the modules of another one, under names of their own."""

_BYTES = ("roberta", "xlm-roberta", "mpnet", "camembert", "data2vec-text")


def write_base(family: str, folder: Path, seed: int = 0, **changes: Any) -> Path:
    """A random model of the family, maybe changed, with a small real tokenizer, saved the way the Hub has it."""
    tokenizer = _byte_tokenizer() if family in _BYTES else _word_tokenizer()
    torch.manual_seed(seed)
    config = {**{**CONFIGS, **ALIASES}[family], "vocab_size": tokenizer.get_vocab_size(), **changes}
    model = AutoModel.from_config(AutoConfig.for_model(family, **config))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Biases start at zero and gains at one; a base whose biases matter tests more.
            if name.endswith(".bias") or "orm.weight" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    # Else the bar stands on the standard error of whichever test is the first to ask for this base.
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    if bars:
        logging.enable_progress_bar()
    special = _SPECIAL["roberta" if family in _BYTES else "bert"]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **special).save_pretrained(folder)
    return folder


_SPECIAL = {
    "bert": {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"},
    "roberta": {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"},
}


def _word_tokenizer() -> tokenizers.Tokenizer:
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + list("0123456789")
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters), *WORDS]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = tokenizers.Tokenizer(WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    return tokenizer


def _byte_tokenizer() -> tokenizers.Tokenizer:
    alphabet = sorted(ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *alphabet])}
    tokenizer = tokenizers.Tokenizer(BPE(vocab, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


@cache
def tiny_base(family: str = "bert", **sizes: int) -> Path:
    """The family's random base, written once per test run into a folder of its own."""
    import atexit
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix=f"onebert-{family}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return write_base(family, folder, **sizes)


def wide_base() -> Path:
    """A base of another family, width, depth and tokenizer than the tiny one, for servers of both."""
    return tiny_base("roberta", hidden_size=48, num_hidden_layers=2)


@cache
def loaded(family: str = "bert", device: str = "cpu") -> Base:
    """The tiny base of a family, which all tests share and none changes."""
    with torch.inference_mode(False):
        return load_base(str(tiny_base(family)), device=device)


@cache
def _plain_model(folder: Path) -> Any:
    with torch.inference_mode(False):
        return opened(AutoModel.from_pretrained(folder, attn_implementation="eager")).eval()


class Reference:
    """The plain Hugging Face model that carries one task's weights: what every answer must equal.

    Args:
        folder: the base.
        tensors: the delta's tensors by their names in the file.
        pooling, activation: as in the manifest.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, np.ndarray], pooling: str, activation: str = "tanh") -> None:
        self.model = deepcopy(_plain_model(folder))
        self.tensors = torch_tensors({name: np.asarray(value) for name, value in tensors.items()})
        self.pooling, self.activation = pooling, {"tanh": torch.tanh, "gelu": F.gelu, "relu": F.relu}[activation]
        named = ("layer_norm_eps", "norm_eps", "rms_norm_eps")
        self.eps = next((getattr(self.model.config, name) for name in named if hasattr(self.model.config, name)), 1e-12)
        with torch.no_grad():
            parameters = dict(self.model.named_parameters())
            bare = {name: value.numpy().copy() for name, value in parameters.items()}
            # An adapter stands behind the scale of its map's output, and hooks run in the order of their registration.
            for name, value in sorted(self.tensors.items(), key=lambda item: item[0].startswith("adapter")):
                kind, _, target = name.partition(".")
                if kind == "delta":
                    parameters[target] += value
                elif kind == "lora_A":
                    parameters[f"{target}.weight"] += self.tensors[f"lora_B.{target}"] @ value
                elif kind == "lora_xs":
                    parameters[f"{target}.weight"] += singular_difference(bare[f"{target}.weight"], value)
                elif kind == "sparse_index":
                    parameters[f"{target}.weight"].view(-1)[value.long()] += self.tensors[f"sparse_value.{target}"]
                elif kind == "scale" and parameters[f"{target}.weight"].shape[0] < len(value):
                    self._scale_input(target, name)
                elif kind in ("scale", "output_scale"):
                    self._scale_output(target, name)
                elif kind == "adapter_up" and target.endswith(".bias"):
                    self._adapt(target.removesuffix(".bias"))

    def _scale_input(self, module: str, name: str) -> None:
        """Of `scale.*` only the last map of the MLP, the only one that narrows, has its input scaled."""
        scale = self.tensors[name]
        self.model.get_submodule(module).register_forward_pre_hook(lambda _, inputs: (inputs[0] * scale,))

    def _scale_output(self, module: str, name: str) -> None:
        scale = self.tensors[name]
        self.model.get_submodule(module).register_forward_hook(lambda _, __, y: y * scale)

    def _adapt(self, module: str) -> None:
        names = [f"adapter_{way}.{module}.{kind}" for way in ("down", "up") for kind in ("weight", "bias")]

        def adapted(_: Any, __: Any, y: Tensor) -> Tensor:
            D, c, U, u = (self.tensors[name].to(y.dtype) for name in names)
            return y + F.gelu(y @ D.T + c) @ U.T + u

        self.model.get_submodule(module).register_forward_hook(adapted)

    def in_float64(self) -> "Reference":
        """The same model, whose own rounding no longer counts."""
        self.model.double()
        self.tensors = {
            name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in self.tensors.items()
        }
        return self

    @torch.no_grad()
    def logits(self, input_ids: list[int], type_ids: list[int] | None = None, second: int = 0) -> Tensor:
        """[labels], or [tokens, labels] without pooling, for one sequence, alone, unpadded.

        With siamese pooling the second text begins at `second`, and each is a sequence of its own.
        """
        if self.pooling == "siamese":
            return self.differentiable_siamese_logits(input_ids[:second], input_ids[second:])
        return self.differentiable_logits(input_ids, type_ids)

    def differentiable_siamese_logits(self, *both: list[int]) -> Tensor:
        """[labels] of two sequences, with a gradient to the model's parameters."""
        means = [self.model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in both]
        u, v = (mean / mean.norm() for mean in means)
        read = torch.cat([0.3 * u, 0.3 * v, abs(u - v), u * v, torch.dot(u, v)[None]]) * len(u) ** 0.5
        return read @ self.tensors["head.weight"].T + self.tensors["head.bias"]

    def differentiable_logits(self, input_ids: list[int], type_ids: list[int] | None = None) -> Tensor:
        """The same, with a gradient to the model's parameters."""
        inputs = {
            "input_ids": torch.tensor([input_ids]),
            "attention_mask": torch.ones(1, len(input_ids), dtype=torch.long),
        }
        if type_ids is not None and self.model.config.model_type in ("bert", "electra", "nomic_bert"):
            inputs["token_type_ids"] = torch.tensor([type_ids])
        out = self.model(**inputs)
        hidden = out.last_hidden_state[0]
        pooled = {
            "cls": lambda: hidden[0],
            "mean": lambda: hidden.mean(0),
            "pooler": lambda: out.pooler_output[0],
            "none": lambda: hidden,
        }
        x = pooled[self.pooling]()
        if "head.dense.weight" in self.tensors:
            x = self.activation(x @ self.tensors["head.dense.weight"].T + self.tensors["head.dense.bias"])
        if "head.norm.weight" in self.tensors:
            x = torch.nn.functional.layer_norm(x, x.shape[-1:], self.tensors["head.norm.weight"], None, self.eps)
        return x @ self.tensors["head.weight"].T + self.tensors["head.bias"]


class SideBySide(torch.nn.Module):
    """A linear map as the named maps that it computes side by side, each with a bias."""

    def __init__(self, fused: torch.nn.Linear, names: tuple[str, ...]) -> None:
        super().__init__()
        for name, weight in zip(names, fused.weight.detach().chunk(len(names)), strict=True):
            linear = torch.nn.Linear(*reversed(weight.shape))
            linear.weight, linear.bias = (
                torch.nn.Parameter(weight.clone()),
                torch.nn.Parameter(torch.zeros(len(weight))),
            )
            self.add_module(name, linear)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([layer(x) for layer in self.children()], dim=-1)


_SIDE_BY_SIDE = {"Wqkv": ("q", "k", "v"), "Wi": ("input", "gate")}


def opened(model: Any) -> Any:
    """The same model, with its fused maps split and with biases of zero where it has none: a delta may change both."""
    for path, module in list(model.named_modules()):
        parent, name = model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
        if name in _SIDE_BY_SIDE:
            setattr(parent, name, SideBySide(module, _SIDE_BY_SIDE[name]))
        elif isinstance(module, torch.nn.Linear) or path in ("final_norm", "norm"):
            if not hasattr(module, "bias"):  # an RMSNorm
                module.register_forward_hook(lambda module, _, y: y + module.bias)
            if getattr(module, "bias", None) is None:
                module.bias = torch.nn.Parameter(torch.zeros(len(module.weight)))
    return model


def as_read(text: Tokens, pooling: str) -> Tokens:
    """Random tokens as a task with a pooling reads them: with siamese pooling as a pair, the same one every time."""
    return _in_two(text) if pooling == "siamese" else text


@cache
def _in_two(text: Tokens) -> Tokens:
    """A pair whose second text begins behind a third of the tokens; one token becomes two."""
    ids = text.input_ids if len(text) > 1 else text.input_ids * 2
    return Tokens(ids, [0] * len(ids), second=1 + len(ids) // 3)


def singular_difference(weight: np.ndarray, R: Tensor) -> Tensor:
    """U Σ R Vᵀ of the first singular directions of W, those of U with their largest number positive."""
    U, sizes, Vt = np.linalg.svd(weight.astype(np.float64))
    for i in range(len(R)):
        if U[np.abs(U[:, i]).argmax(), i] < 0:
            U[:, i], Vt[i] = -U[:, i], -Vt[i]
    return torch.from_numpy(U[:, : len(R)] @ np.diag(sizes[: len(R)]) @ R.numpy() @ Vt[: len(R)]).float()


def far_delta(spec: Any, kind: str, pooling: str, labels: int, seed: int) -> dict[str, np.ndarray]:
    """Random tensors of one kind, far from the base: differences as large as the parameters themselves.

    Args:
        kind: `bitfit`, `layernorm`, `gains`, `lora`, `lora-xs`, `spafit`, `sparse`, `adapter`, `scale`,
            `output-scale`, `frozen` or `everything`.
    """
    rng = np.random.default_rng(seed)
    h, half = spec.hidden_size, spec.num_layers // 2

    def layer_of(name: str) -> int:
        return next((int(part) for part in name.split(".") if part.isdigit()), 0)

    def wanted(name: str, symbol: str) -> bool:
        if symbol == "b_p" and pooling != "pooler":
            return False
        return {
            "frozen": False,
            "bitfit": symbol.startswith("b_"),
            "layernorm": "LN" in symbol,
            "gains": symbol.startswith("g_"),
            **dict.fromkeys(("lora", "lora-xs", "sparse", "adapter", "scale", "output-scale"), False),
            "spafit": symbol.startswith("b_") and layer_of(name) >= half and "LN0" not in symbol,
            "everything": True,
        }[kind]

    tensors: dict[str, np.ndarray] = {}
    for name, shape in spec.parameters.items():
        if wanted(name, spec.symbols[name]):
            tensors[f"delta.{name}"] = rng.normal(0, 0.3, shape).astype(np.float32)
    for name in spec.modules:
        if kind not in ("spafit", "everything") or layer_of(name) >= half:
            tensors |= _far_branches(spec, name, kind, rng)
    width = 4 * h + 1 if pooling == "siamese" else h
    tensors["head.weight"] = rng.normal(0, 0.3, (labels, width)).astype(np.float32)
    tensors["head.bias"] = rng.normal(0, 0.3, labels).astype(np.float32)
    if kind == "everything" and pooling != "siamese":
        tensors["head.dense.weight"] = rng.normal(0, 0.3, (h, h)).astype(np.float32)
        tensors["head.dense.bias"] = rng.normal(0, 0.3, h).astype(np.float32)
    return tensors


def _far_branches(spec: Any, name: str, kind: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Low-rank and sparse differences, adapters and scales of one module."""
    (out, into), symbol, h = spec.modules[name], spec.symbols[name], spec.hidden_size
    drawn: dict[str, np.ndarray] = {}
    if kind in ("spafit", "everything") or (kind == "lora" and symbol in ("W_q", "W_v")):
        rank = int(rng.integers(1, 5))
        drawn[f"lora_A.{name}"] = rng.normal(0, 0.3, (rank, into))
        drawn[f"lora_B.{name}"] = rng.normal(0, 0.3, (out, rank))
    if kind in ("lora-xs", "everything"):
        rank = int(rng.integers(1, 5))
        # The singular values of the random bases are about 0.2.
        drawn[f"lora_xs.{name}"] = rng.normal(0, 3, (rank, rank))
    if kind in ("sparse", "everything"):
        n = int(rng.integers(1, 60))
        drawn[f"sparse_index.{name}"] = np.sort(rng.choice(out * into, n, replace=False)).astype(np.int32)
        drawn[f"sparse_value.{name}"] = rng.normal(0, 0.5, n)
    if kind in ("adapter", "everything") and symbol in ("W_m1", "W_m3"):
        size = int(rng.integers(1, 7))
        for way, shapes in {"down": ((size, h), (size,)), "up": ((h, size), (h,))}.items():
            for part, shape in zip(("weight", "bias"), shapes, strict=True):
                drawn[f"adapter_{way}.{name}.{part}"] = rng.normal(0, 0.3, shape)
    if kind in ("scale", "everything") and symbol in ("W_k", "W_v", "W_m3"):
        drawn[f"scale.{name}"] = rng.normal(1, 0.5, into if symbol == "W_m3" else out)
    if kind in ("output-scale", "everything") and symbol in ("W_m1", "W_m2", "W_m3"):
        drawn[f"output_scale.{name}"] = rng.normal(1, 0.5, out)
    return {key: value if value.dtype == np.int32 else value.astype(np.float32) for key, value in drawn.items()}


def far_task(
    base: Base, kind: str, pooling: str = "mean", labels: int = 2, seed: int = 0
) -> tuple[Row, dict[str, np.ndarray]]:
    """A folded `far_delta` and its tensors."""
    tensors = far_delta(base.spec, kind, pooling, labels, seed)
    return fold(
        base, {name: torch_tensor.to(base.device) for name, torch_tensor in torch_tensors(tensors).items()}, pooling
    ), tensors


def far_row(base: Base, kind: str, pooling: str = "mean", labels: int = 2, seed: int = 0) -> Row:
    return far_task(base, kind, pooling, labels, seed)[0]


def random_texts(lengths: Iterable[int], seed: int = 0) -> list[Tokens]:
    rng = np.random.default_rng(seed)
    return [Tokens(rng.integers(5, 60, length).tolist(), [0] * length) for length in lengths]


def torch_tensors(values: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """What `fold` reads: float32, places as int64."""
    return {
        name: torch.from_numpy(value.astype(np.int64) if name.startswith("sparse_index") else value.astype(np.float32))
        for name, value in values.items()
    }


def manifest_for(spec: Any, pooling: str = "mean", labels: int = 2, **more: Any) -> dict[str, Any]:
    """A valid manifest for a base."""
    return {
        "format": 1,
        "base": {"name": spec.name, "model_type": spec.model_type, "digest": spec.digest},
        "task_type": "single_label",
        "labels": [f"label {i}" for i in range(labels)],
        "pooling": pooling,
        "max_length": 48,
        "method": "bitfit",
        **more,
    }
