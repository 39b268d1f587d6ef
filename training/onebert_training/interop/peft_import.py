"""Converts a PEFT adapter folder to a delta that gives the same answers, or refuses it by naming what does not fit."""

import math
import re
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import compute_golden
from onebert_store.errors import InvalidInput, NotFinite, TensorMismatch
from onebert_store.file.delta import (
    DELTA,
    HEAD_BIAS,
    HEAD_DENSE_BIAS,
    HEAD_DENSE_WEIGHT,
    HEAD_WEIGHT,
    LORA_A,
    LORA_B,
    PLACES,
    Delta,
    check,
    listed,
)
from onebert_store.file.manifest import TaskType, parse_manifest
from onebert_store.file.strict_json import shown
from onebert_training.interop.heads import PEFT_TASKS, POOLER, PROBLEMS, Kind, Layout, kind_of, layout_of
from onebert_training.interop.peft_folder import Adapter, read_adapter

_REPEAT = re.compile(r"[*+{]")
_REPEATED_GROUP = re.compile(r"\)[*+{?]")

# (map that PEFT scales, 0 for its output or 1 for its input) -> the place of `PLACES` whose scale has the same effect.
# Scaling the query has the effect of scaling the key. The input of attention's output map is a mean of values, so
# scaling it has the effect of scaling the value.
SCALED_AS: Mapping[tuple[str, int], str] = {
    **{(symbol, side): place for place, (_, symbol, side) in PLACES.items()},
    ("W_q", 0): "k",
    ("W_m1", 1): "v",
}


def import_adapter(
    folder: Path,
    base: Base,
    labels: list[str] | None = None,
    task_type: TaskType | None = None,
    max_length: int | None = None,
) -> Delta:
    """Reads a PEFT adapter as a delta for `base`; nothing that the folder names is opened or fetched.

    Args:
        folder: a folder with adapter_config.json and adapter_model.safetensors.
        base: a base that computes in float32.
        labels: names of the outputs; None takes those of the folder's model configuration, or `LABEL_0`, …
        task_type: None reads it from the folder: a problem type, the adapter's task, or the number of outputs.
        max_length: longest input in tokens; None is the base's own.

    Raises:
        InvalidInput: the folder cannot be read, or holds something that a delta cannot.
        MalformedFile: one of its files is damaged.
        TensorMismatch: the tensors do not fit this base.
        InvalidManifest: labels, a task type or a length that a manifest cannot hold.
        NotFinite: a tensor or an answer contains NaN or infinity.
    """
    adapter = read_adapter(folder, base.anatomy.family.prefix)
    kind = _kind(adapter, task_type)
    tensors, pooling = _Conversion(adapter, base, layout_of(base.spec.model_type, kind)).run()
    count = len(tensors[HEAD_BIAS])
    names = labels or _labels(adapter, kind, count)
    if len(names) != count:
        raise InvalidInput(f"{len(names)} labels for a classifier of {count} outputs")
    spec, peft_type = base.spec, str(adapter.config["peft_type"])
    manifest = {
        "format": 1,
        "base": {"name": spec.name, "model_type": spec.model_type, "digest": spec.digest},
        "task_type": task_type or _task_type(adapter, kind, count),
        "labels": names,
        "pooling": pooling,
        "max_length": spec.max_length if max_length is None else max_length,
        "method": f"peft:{peft_type.lower()}",
        "training": {"imported_from": "peft", "peft_version": str(adapter.config.get("peft_version", ""))},
    }
    return _with_golden(base, tensors, manifest, adapter)


def _with_golden(base: Base, tensors: dict[str, Tensor], manifest: dict[str, Any], adapter: Adapter) -> Delta:
    """The delta, checked, with golden logits computed on this base."""
    arrays = {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    plain = parse_manifest(manifest)
    try:
        check(Delta(plain, arrays), base.spec)
    except TensorMismatch as error:
        raise TensorMismatch(f"{error.detail}{_made_for(adapter)}") from None
    with torch.no_grad():
        row = fold(base, tensors, plain.pooling)
        try:
            golden = compute_golden(base, row, plain.max_length)
        except ValidationError:
            raise NotFinite("the answers of the imported task are not numbers") from None
    return Delta(parse_manifest({**plain.model_dump(), "golden": golden.model_dump()}), arrays)


def _made_for(adapter: Adapter) -> str:
    name = adapter.config.get("base_model_name_or_path")
    return f" (the adapter says that it was made for {shown(name)})" if isinstance(name, str) and name else ""


class _Conversion:
    """Converts an adapter's tensors to a delta's; a tensor that cannot be used is refused."""

    def __init__(self, adapter: Adapter, base: Base, layout: Layout) -> None:
        self.adapter, self.base, self.layout = adapter, base, layout
        self.values = dict(adapter.found["value"])
        self.low_rank = self._low_rank()
        # With PEFT's `lora_bias` a low-rank map has a bias, which becomes a difference of the module's bias.
        self.biases = {
            module: bias * self.scale_of(module, len(self.low_rank[module][0]))
            for module, bias in adapter.found["B_bias"].items()
        }

    def run(self) -> tuple[dict[str, Tensor], str]:
        """The delta's tensors and its pooling."""
        head, pooling = self.head()
        tensors = {**head, **self.pairs(), **self.scales(), **self.differences(pooling)}
        return tensors, pooling

    def _low_rank(self) -> dict[str, tuple[Tensor, Tensor]]:
        A, B, B_bias = (self.adapter.found[what] for what in ("A", "B", "B_bias"))
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

    def refuse(self, names: Set[str]) -> None:
        if names:
            raise InvalidInput(f"a delta cannot hold what the adapter has for {listed(names)}")

    def require(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        if tuple(tensor.shape) != shape:
            raise TensorMismatch(f"{name} is {[*tensor.shape]}, not {[*shape]}{_made_for(self.adapter)}")

    def scale_of(self, module: str, rank: int) -> float:
        """PEFT's factor of a low-rank product: alpha / r, or alpha / sqrt(r) with rank-stabilized LoRA."""
        r, alpha = self.option(module, "r", "rank_pattern"), self.option(module, "lora_alpha", "alpha_pattern")
        if r != rank:
            raise TensorMismatch(f"{shown(module)} has rank {rank}, {r:g} by its adapter_config.json")
        return alpha / (math.sqrt(r) if self.adapter.config.get("use_rslora") else r)

    def option(self, module: str, key: str, patterns: str) -> float:
        """An option for one module: of the first pattern that matches the end of its name, else the general one."""
        config, name = self.adapter.config, self.base.anatomy.family.prefix + module
        value = config.get(key)
        of_pattern = config.get(patterns) or {}
        if not isinstance(of_pattern, dict):
            raise InvalidInput(f"adapter_config.json: {patterns} is an object")
        for pattern, own in of_pattern.items():
            # The folder may be anybody's, so a regular expression that could take exponential time is refused.
            if len(pattern) > 256 or len(_REPEAT.findall(pattern)) > 4 or _REPEATED_GROUP.search(pattern):
                raise InvalidInput(f"{patterns} has a pattern that is too intricate to follow")
            try:
                matches = re.match(rf"(.*\.)?({pattern})$", name)
            except re.error:
                raise InvalidInput(f"{patterns} has a pattern that is no regular expression") from None
            if matches:
                value = own
                break
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise InvalidInput(f"adapter_config.json: {key} is a number above 0")
        return value

    def head(self) -> tuple[dict[str, Tensor], str]:
        linear, dense = self.layout.linear, self.layout.dense
        head = {HEAD_WEIGHT: self.saved(f"{linear}.weight"), HEAD_BIAS: self.saved(f"{linear}.bias")}
        if dense is None:
            return head, "none"
        if not self.layout.has_pooler:
            weight, bias = self.saved(f"{dense}.weight"), self.saved(f"{dense}.bias")
        elif "pooler" not in self.base.spec.poolings:
            raise InvalidInput("the base has no pooler, which the adapter's classifier reads")
        elif POOLER in self.low_rank or f"{POOLER}.weight" in self.values:
            weight, bias = self.pooler()
        else:
            return head, "pooler"
        return {**head, HEAD_DENSE_WEIGHT: weight, HEAD_DENSE_BIAS: bias}, "cls"

    def saved(self, name: str) -> Tensor:
        try:
            return self.values.pop(name)
        except KeyError:
            raise InvalidInput(
                f"the adapter has no {name}: train it with modules_to_save=[{self.layout.saved!r}]"
            ) from None

    def pooler(self) -> tuple[Tensor, Tensor]:
        """Weight and bias of the adapter's own pooler, which becomes the head's tanh layer on the first token."""
        weight = self.values.pop(f"{POOLER}.weight", self.base.param("W_p"))
        bias = self.values.pop(f"{POOLER}.bias", self.base.param("b_p"))
        if POOLER in self.low_rank:
            A, B = self.low_rank.pop(POOLER)
            weight = weight + B @ A
        return weight, bias + self.biases.pop(POOLER, 0)

    def pairs(self) -> dict[str, Tensor]:
        found = {module: pair for module, pair in self.low_rank.items() if pair[1].any()}
        self.refuse(found.keys() & {POOLER})
        return {
            **{LORA_A + module: A for module, (A, _) in found.items()},
            **{LORA_B + module: B for module, (_, B) in found.items()},
        }

    def scales(self) -> dict[str, Tensor]:
        found, scales = dict(self.adapter.found["scale"]), dict[str, Tensor]()
        for module in self.base.anatomy.modules:
            if (scale := found.get(module.name)) is None:
                continue
            rows, columns = module.shape
            if tuple(scale.shape) not in ((rows, 1), (1, columns)):
                raise TensorMismatch(f"{module.name}.ia3_l is {[*scale.shape]}, not {[rows, 1]} or {[1, columns]}")
            side = 0 if tuple(scale.shape) == (rows, 1) else 1
            if (place := SCALED_AS.get((module.symbol, side))) is None:
                continue
            del found[module.name]
            prefix, symbol, _ = PLACES[place]
            name = prefix + self.base.anatomy.path(symbol.removeprefix("W_"), module.layer)
            scales[name] = scales.get(name, torch.ones(())) * scale.flatten()
        self.refuse(found.keys())
        return scales

    def differences(self, pooling: str) -> dict[str, Tensor]:
        """The differences of biases and LayerNorm gains; parameters equal to the base's are left out."""
        shapes = self.base.spec.parameters
        allowed = {name for name in shapes if pooling == "pooler" or not name.startswith(POOLER)}
        self.refuse(self.values.keys() - allowed)
        for name, value in self.values.items():
            self.require(name, value, shapes[name])
        found = {name: value - self.base.params[name] for name, value in self.values.items()}
        for module, bias in self.biases.items():
            name = f"{module}.bias"
            found[name] = found.get(name, torch.zeros(())) + bias
        return {DELTA + name: difference for name, difference in found.items() if difference.any()}


def _kind(adapter: Adapter, task_type: TaskType | None) -> Kind:
    said = adapter.config.get("task_type")
    if said is None:
        return kind_of(task_type or "single_label")
    if not isinstance(said, str) or said not in PEFT_TASKS:
        raise InvalidInput(f"a delta cannot hold a {shown(str(said))} task; it holds {', '.join(PEFT_TASKS)}")
    if task_type is not None and kind_of(task_type) != PEFT_TASKS[said]:
        raise InvalidInput(f"the adapter is for {said}, which is no {task_type} task")
    return PEFT_TASKS[said]


def _task_type(adapter: Adapter, kind: Kind, count: int) -> str:
    if kind != "sequence":
        return kind
    problem = adapter.model_config.get("problem_type")
    of_problem = {theirs: ours for ours, theirs in PROBLEMS.items()}
    return of_problem.get(str(problem)) or ("regression" if count == 1 else "single_label")


def _labels(adapter: Adapter, kind: Kind, count: int) -> list[str]:
    if kind == "span":
        return ["start", "end"]
    names = adapter.model_config.get("id2label")
    if not isinstance(names, dict):
        return [f"LABEL_{i}" for i in range(count)]
    if set(names) != {str(i) for i in range(count)}:
        raise InvalidInput(
            f"id2label of the folder's configuration does not name the classifier's {count} outputs; give the labels"
        )
    return [str(names[str(i)]) for i in range(count)]
