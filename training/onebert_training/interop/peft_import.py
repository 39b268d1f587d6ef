"""Converts a PEFT adapter folder to a delta with the same answers, or rejects it and names the unfit part."""

import math
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.base.base import Base, has_tokenizer, read_tokenizer
from onebert_encoder.base.digest import differing_parts
from onebert_store.errors import InvalidInput, TensorMismatch, UnsupportedBase
from onebert_store.file import delta
from onebert_store.file.delta import Delta, listed
from onebert_store.file.manifest import TaskType
from onebert_store.file.strict_json import printable
from onebert_training.fit.result import checked_delta
from onebert_training.fit.run import make_manifest
from onebert_training.interop import heads
from onebert_training.interop.fused import fused_maps, shared_rows, split_rows
from onebert_training.interop.heads import POOLER, Kind, Layout, TaskOptions, kind_of
from onebert_training.interop.peft_folder import Adapter, read_adapter

_NO_CONFIG = (
    "neither the folder nor the base has a config.json, which defines what the classifier reads: the pooling is "
    "assumed to be {}, as in transformers; put the model's config.json with its {} into the folder"
)
_REPEAT = re.compile(r"[*+{]")
_MOST_PATTERNS = 1000
_REPEATED_GROUP = re.compile(r"\)[*+{?]")

# (map that PEFT scales, 0 for its output or 1 for its input) -> the place of `PLACES` with the same effect. Scaling the
# query equals scaling the key. The input of attention's output map is a mean of values, so scaling it equals scaling
# the value.
SCALED_AS: Mapping[tuple[str, int], str] = {
    **{(symbol, side): place for place, (_, symbol, side) in delta.PLACES.items()},
    ("W_q", 0): "k",
    ("W_m1", 1): "v",
}


def import_adapter(
    folder: Path,
    base: Base,
    task_options: TaskOptions = TaskOptions(),  # noqa: B008 - frozen
    base_config: Mapping[str, Any] | None = None,
) -> Delta:
    """Reads a PEFT adapter as a delta for `base`; nothing that the folder names is opened or fetched.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors.
        base: must compute in float32.
        base_config: the base's config.json, which says what the head reads if the folder has no configuration.
        wanted: without labels, the folder's model configuration names the outputs, or `LABEL_0`, …; a single output
            without a problem type is `multi_label`, by the sigmoid.

    Raises:
        InvalidInput: the folder cannot be read, or a delta cannot hold its content.
        MalformedFile: a file is damaged.
        TensorMismatch: the tensors do not fit this base.
        InvalidManifest: labels, task type or length do not fit a manifest.
        NotFinite: a tensor or an answer contains NaN or infinity.
    """
    adapter = read_adapter(folder, base.anatomy.family.prefix)
    kind = _kind(adapter, task_options.task_type)
    _require_tokenizer(folder, base)
    layout = heads.layout_of(base.spec.model_type, kind)
    config = adapter.model_config or base_config or {}
    pooling = layout.pooling(config)
    tensors, pooling = Conversion(adapter, base, layout, pooling).run()
    outputs, warnings = heads.outputs_of(adapter.model_config, kind, len(tensors[delta.HEAD_BIAS]), task_options)
    if layout.kind == "sequence" and layout.head.pooling_key is not None and not config:
        warnings.append(_NO_CONFIG.format(pooling, layout.head.pooling_key))
    longest = base.spec.max_length if task_options.max_length is None else task_options.max_length
    version, method = printable(str(adapter.config.get("peft_version", ""))), adapter.config["peft_type"].lower()
    facts = {"imported_from": "peft", "peft_version": version, "warnings": warnings}
    activation = layout.activation(config) if delta.HEAD_DENSE_WEIGHT in tensors else "tanh"
    manifest = make_manifest(base.spec, outputs, pooling, longest, f"peft:{method}", facts, activation=activation)
    arrays = {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    try:
        return checked_delta(base, Delta(manifest, arrays), {}, heads.NOT_FINITE)
    except TensorMismatch as error:
        raise TensorMismatch(f"{error.detail}{made_for(adapter)}") from None


def _require_tokenizer(folder: Path, base: Base) -> None:
    """Rejects an adapter whose tokenizer may split a text differently from the base's, which will be used."""
    if not has_tokenizer(folder):
        return
    try:
        tokenizer, _ = read_tokenizer(folder, base.config)
    except UnsupportedBase as error:
        raise InvalidInput(f"the adapter's own tokenizer does not fit the base: {error.detail}") from None
    if parts := differing_parts(tokenizer.written, base.tokenizer.written):
        raise InvalidInput(
            f"the adapter's own tokenizer differs from the base's, which reads every task's texts, in its {parts}; "
            "where the adapter was trained with the base's, remove the tokenizer's files"
        )


def _kind(adapter: Adapter, task_type: TaskType | None) -> Kind:
    peft_task = adapter.config.get("task_type")
    if peft_task is None:
        return kind_of(task_type or "single_label")
    if not isinstance(peft_task, str) or peft_task not in heads.PEFT_TASKS:
        raise InvalidInput(
            f"a delta cannot hold a {printable(str(peft_task))} task; it holds {', '.join(heads.PEFT_TASKS)}"
        )
    if task_type is not None and kind_of(task_type) != heads.PEFT_TASKS[peft_task]:
        raise InvalidInput(f"the adapter is for {peft_task}, which is no {task_type} task")
    return heads.PEFT_TASKS[peft_task]


def made_for(adapter: Adapter) -> str:
    """A suffix for error messages: the base that the adapter names, or an empty string."""
    name = adapter.config.get("base_model_name_or_path")
    return f" (the adapter says that it was made for {printable(name)})" if isinstance(name, str) and name else ""


class Conversion:
    """Makes an adapter a delta; raises InvalidInput (parts a delta cannot hold), TensorMismatch (shapes)."""

    def __init__(self, adapter: Adapter, base: Base, layout: Layout, pooling: str) -> None:
        self.adapter, self.base, self.layout, self.pooling = adapter, base, layout, pooling
        self.fused = fused_maps(base.anatomy)
        self.fused_module = {part: module for module, parts in self.fused.items() for part in parts}
        self.values = dict(adapter.tensors["value"])
        self.low_rank = self._low_rank()
        # PEFT's `lora_bias` gives a low-rank map a bias; it becomes a difference of the module's bias.
        self.biases = {
            module: bias * self.scale_of(module, len(self.low_rank[module][0]))
            for module, bias in split_rows(adapter.tensors["B_bias"], self.fused).items()
        }
        self.factors = self._factors()

    def run(self) -> tuple[dict[str, Tensor], str]:
        """The tensors and the pooling of the equivalent delta."""
        head, pooling = self.head()
        tensors = {**head, **self.pairs(), **self.scales(), **self.differences(pooling)}
        return tensors, pooling

    def _low_rank(self) -> dict[str, tuple[Tensor, Tensor]]:
        A = shared_rows(self.adapter.tensors["A"], self.fused)
        B, B_bias = (split_rows(self.adapter.tensors[kind], self.fused) for kind in ("B", "B_bias"))
        if halves := (A.keys() ^ B.keys()) | (B_bias.keys() - B.keys()):
            raise InvalidInput(f"half of a low-rank pair: {listed(halves)}")
        shapes = {**self.base.spec.modules, POOLER: (self.base.spec.hidden_size,) * 2}
        self.refuse(A.keys() - shapes.keys())
        for module, (rows, columns) in ((module, shapes[module]) for module in A):
            self.require(f"{module}.lora_A", A[module], (len(A[module]), columns))
            self.require(f"{module}.lora_B", B[module], (rows, len(A[module])))
            if module in B_bias:
                self.require(f"{module}.lora_B.bias", B_bias[module], (rows,))
        return {module: (A[module], B[module] * self.scale_of(module, len(A[module]))) for module in A}

    def _factors(self) -> dict[str, Tensor]:
        """DoRA's factors of the outputs of W + BA, by module: m / ‖W + BA‖ (Liu et al. 2024, equation 5)."""
        magnitudes, factors = split_rows(self.adapter.tensors["magnitude"], self.fused), dict[str, Tensor]()
        normed = self.low_rank.keys() if self.adapter.config.get("use_dora") else set[str]()
        if halves := magnitudes.keys() ^ normed:
            raise InvalidInput(f"half of DoRA, a magnitude or a low-rank pair: {listed(halves)}")
        if both := self.biases.keys() & normed:
            raise InvalidInput(f"DoRA has no bias in B: {listed(both)}")
        self.refuse({module for module in normed if f"{module}.weight" not in self.base.params})
        for module, magnitude in magnitudes.items():
            (A, B), weight = self.low_rank[module], self.base.params[f"{module}.weight"]
            self.require(f"{module}.lora_magnitude_vector", magnitude, (len(weight),))
            lengths = (weight.double() + B.double() @ A.double()).norm(dim=1)
            factor = factors[module] = (magnitude.double() / lengths).float()
            if not (factor.isfinite() & (factor != 0)).all():
                raise InvalidInput(f"DoRA's magnitudes, or the rows that they divide, are zero in {printable(module)}")
        return factors

    def refuse(self, names: Set[str]) -> None:
        if names:
            raise InvalidInput(f"a delta cannot hold what the adapter has for {listed(names)}")

    def require(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != shape:
            raise TensorMismatch(f"{name} is {[*tensor.shape]}, not {[*shape]}{made_for(self.adapter)}")

    def scale_of(self, module: str, rank: int) -> float:
        """PEFT's factor of a low-rank product: alpha / r, or alpha / sqrt(r) with rank-stabilized LoRA."""
        r, alpha = self.option(module, "r", "rank_pattern"), self.option(module, "lora_alpha", "alpha_pattern")
        if r != rank:
            raise TensorMismatch(f"{printable(module)} has rank {rank}, {r:g} by its adapter_config.json")
        return alpha / (math.sqrt(r) if self.adapter.config.get("use_rslora") else r)

    def option(self, module: str, key: str, patterns: str) -> float:
        """An option for one module: the first pattern that matches the end of its name wins over the general value."""
        config, name = self.adapter.config, self.base.anatomy.family.prefix + self.fused_module.get(module, module)
        value = config.get(key)
        of_pattern = config.get(patterns) or {}
        # Every pattern is tried on the name of every module, twice.
        if not isinstance(of_pattern, dict) or len(of_pattern) > _MOST_PATTERNS:
            raise InvalidInput(f"adapter_config.json: {patterns} is an object of at most {_MOST_PATTERNS} patterns")
        for pattern, pattern_value in of_pattern.items():
            # The folder is untrusted: reject regular expressions that could take exponential time.
            if len(pattern) > 256 or len(_REPEAT.findall(pattern)) > 4 or _REPEATED_GROUP.search(pattern):
                raise InvalidInput(f"{patterns} has a pattern that is too intricate to follow")
            try:
                matches = re.match(rf"(.*\.)?({pattern})$", name)
            except re.error:
                raise InvalidInput(f"{patterns} has a pattern that is no regular expression") from None
            if matches:
                value = pattern_value
                break
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise InvalidInput(f"adapter_config.json: {key} is a number above 0")
        return value

    def head(self) -> tuple[dict[str, Tensor], str]:
        linear, dense = self.layout.linear, self.layout.dense
        head = {delta.HEAD_WEIGHT: self.saved(f"{linear}.weight"), delta.HEAD_BIAS: self.saved(f"{linear}.bias")}
        if (norm := self.layout.head.norm) is not None:
            head[delta.HEAD_NORM] = self.saved(f"{norm}.weight")
        if dense is None:
            return head, self.pooling
        if not self.layout.has_pooler:
            weight = self.saved(f"{dense}.weight")
            bias = self.saved(f"{dense}.bias") if self.layout.head.bias else torch.zeros(len(weight))
        elif "pooler" not in self.base.spec.poolings:
            raise InvalidInput("the base has no pooler, which the adapter's classifier reads")
        elif POOLER in self.low_rank or f"{POOLER}.weight" in self.values:
            weight, bias = self.pooler()
        else:
            return head, "pooler"
        return {**head, delta.HEAD_DENSE_WEIGHT: weight, delta.HEAD_DENSE_BIAS: bias}, self.pooling

    def saved(self, name: str) -> Tensor:
        try:
            return self.values.pop(name)
        except KeyError:
            raise InvalidInput(
                f"the adapter has no {name}: train it with modules_to_save={self.layout.saved!r}"
            ) from None

    def pooler(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the adapter's own pooler, which becomes the head's tanh layer on the first token."""
        weight = self.values.pop(f"{POOLER}.weight", self.base.param("W_p"))
        bias = self.values.pop(f"{POOLER}.bias", self.base.param("b_p"))
        if POOLER in self.low_rank:
            A, B = self.low_rank.pop(POOLER)
            weight = (weight + B @ A) * self.factors.pop(POOLER, torch.ones(1))[:, None]
        return weight, bias + self.biases.pop(POOLER, 0)

    def pairs(self) -> dict[str, Tensor]:
        pairs = {module: pair for module, pair in self.low_rank.items() if pair[1].any()}
        self.refuse(pairs.keys() & {POOLER})
        return {
            **{delta.LORA_A + module: A for module, (A, _) in pairs.items()},
            **{delta.LORA_B + module: B for module, (_, B) in pairs.items()},
        }

    def scales(self) -> dict[str, Tensor]:
        """Scales of (IA)3 and of DoRA."""
        self.refuse(self.factors.keys() & {POOLER})
        saved = self.adapter.tensors["scale"]
        # A scale [1, inputs] is of the input of a whole fused map, which no delta has: it is refused by its name.
        outputs = split_rows({module: scale for module, scale in saved.items() if scale.shape[1] == 1}, self.fused)
        unplaced = {module: scale for module, scale in saved.items() if scale.shape[1] != 1} | outputs
        unplaced |= {module: factor[:, None] for module, factor in self.factors.items()}
        scales: dict[str, Tensor] = {}
        for module in self.base.anatomy.modules:
            if (scale := unplaced.get(module.name)) is None:
                continue
            rows, columns = module.shape
            if tuple(scale.shape) not in ((rows, 1), (1, columns)):
                raise TensorMismatch(f"{module.name}.ia3_l is {[*scale.shape]}, not {[rows, 1]} or {[1, columns]}")
            side = 0 if tuple(scale.shape) == (rows, 1) else 1
            # Positions turn queries and keys: a scale of one in front of that is no scale of the other.
            turned = module.symbol == "W_q" and self.base.anatomy.family.scores == "rotary"
            if turned or (place := SCALED_AS.get((module.symbol, side))) is None:
                continue
            del unplaced[module.name]
            prefix, symbol, _ = delta.PLACES[place]
            name = prefix + self.base.anatomy.path(symbol.removeprefix("W_"), module.layer)
            scales[name] = scales.get(name, torch.ones(())) * scale.flatten()
        self.refuse(unplaced.keys())
        return scales

    def skip_tables(self) -> None:
        """Drops embedding tables that PEFT saved whole and unchanged; rejects tables of another size."""
        for name in [name for name in self.values if name.startswith("embeddings.") and name in self.base.params]:
            table, base_table = self.values[name], self.base.params[name]
            if len(table) != len(base_table):
                raise TensorMismatch(
                    f"the adapter's {name} has {len(table):,} rows and the base's {len(base_table):,}: a delta has no "
                    f"place for added tokens{made_for(self.adapter)}"
                )
            if torch.equal(table, base_table):
                del self.values[name]

    def differences(self, pooling: str) -> dict[str, Tensor]:
        """The differences of biases and LayerNorm gains, without unchanged parameters."""
        shapes = self.base.spec.parameters
        self.skip_tables()
        allowed = {name for name in shapes if pooling == "pooler" or not name.startswith(POOLER)}
        self.refuse(self.values.keys() - allowed)
        for name, value in self.values.items():
            self.require(name, value, shapes[name])
        differences = {name: value - self.base.params[name] for name, value in self.values.items()}
        for module, bias in self.biases.items():
            name = f"{module}.bias"
            differences[name] = differences.get(name, torch.zeros(())) + bias
        for module, factor in self.factors.items():
            # DoRA does not scale the bias, but a delta's scale does: divide it beforehand.
            base_bias = self.base.params[f"{module}.bias"]
            differences[f"{module}.bias"] = (
                base_bias + differences.get(f"{module}.bias", torch.zeros(()))
            ) / factor - base_bias
        return {delta.DELTA + name: difference for name, difference in differences.items() if difference.any()}
