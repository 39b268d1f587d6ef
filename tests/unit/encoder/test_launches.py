"""Counts the launches on a GPU for a batch: many tasks need as many as two.

Counted on a CPU: PyTorch's operations that compute or copy, and the programs, which are not run.
"""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bases import far_delta, tiny_base, torch_tensors
from onebert_encoder.base.base import load_base
from onebert_encoder.compute import linear
from onebert_encoder.compute.kernels.gpu.attention import TritonAttention
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels
from onebert_encoder.maths import encode as encoder
from onebert_encoder.maths import predict
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.gpu_heads import GpuHeads
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import stack_rows
from onebert_encoder.text.tokens import Tokens

pytest.importorskip("triton", reason="Triton exists for Linux alone")

LAYERS = 3
# A layer's four products, attention, two sums with LayerNorm, one with the activation.
OF_A_LAYER = 4 + 1 + 2 + 1
# Two lookups and their sum with LayerNorm, pooling, classifiers.
AROUND = 3 + 2
MAKES_NO_LAUNCH = {"empty", "new_empty", "empty_like", "empty_strided", "detach", "lift_fresh"}


class Launches(TorchDispatchMode):
    """By name."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = function._schema.name.partition("::")[2]
        if not function.is_view and name not in MAKES_NO_LAUNCH:
            self.counted[name] += 1
        return function(*args, **(kwargs or {}))

    def kernels(self) -> tuple[GpuKernels, GpuHeads]:
        kernels, heads = GpuKernels(), GpuHeads()
        kernels.programs = self._programs("attend", "add_norm", "add_activate")
        kernels.attention = TritonAttention(kernels.programs)
        kernels._branches = self._programs("shrink", "expand")
        heads._programs = self._programs("pool", "classify")
        return kernels, heads

    def _programs(self, *names: str) -> Any:
        return SimpleNamespace(**{name: Program(name, self.counted) for name in names})


class Program:
    """Counts calls in place of a Triton program: `program[grid](...)`."""

    def __init__(self, name: str, counted: Counter[str]) -> None:
        self._name, self._counted = name, counted

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(size > 0 for size in grid)
        return lambda *_, **__: self._counted.update([self._name])


def launches(monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], tasks: int) -> Counter[str]:
    """The launches for a batch of one text for each task; the tasks are of these kinds in turn."""
    monkeypatch.setattr(linear, "load_products", lambda *_: None)
    base = load_base(str(tiny_base("bert")))
    drawn = [far_delta(base.spec, kinds[i % len(kinds)], "mean", labels=2 + i % 3, seed=i) for i in range(tasks)]
    rows = stack_rows(base, [fold(base, torch_tensors(tensors)) for tensors in drawn])
    lengths = np.random.default_rng(0).integers(1, 20, tasks).tolist()
    batch = pack(base, [Tokens([5] * n, [0] * n) for n in lengths], range(tasks))
    mode = Launches()
    kernels, heads = mode.kernels()
    # The pass in one call is for CPUs alone, and looking for it computes at first.
    for module in (encoder, predict):
        monkeypatch.setattr(module, "choose_forward", lambda *_: None)
    monkeypatch.setattr(encoder, "choose_kernels", lambda *_: kernels)
    monkeypatch.setattr(predict, "choose_heads", lambda *_: heads)
    with torch.inference_mode(), mode:
        compute_logits(base, rows, batch)
    return mode.counted


@pytest.mark.parametrize(
    "kinds", [("bitfit",), ("bitfit", "gains"), ("lora",), ("lora-xs",), ("adapter", "bitfit", "lora")]
)
def test_many_tasks_take_as_many_launches_as_few(monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]) -> None:
    few, many = (launches(monkeypatch, kinds, tasks) for tasks in (len(kinds), 60))
    assert few == many


def test_biases_take_nothing_but_the_layers_and_branches_two_launches_each(monkeypatch: pytest.MonkeyPatch) -> None:
    biases = launches(monkeypatch, ("bitfit",), 20)
    assert biases.total() == LAYERS * OF_A_LAYER + AROUND
    low_rank = launches(monkeypatch, ("lora",), 20)
    assert low_rank - biases == Counter(shrink=LAYERS, expand=LAYERS)
    # Queries, keys and values one after the other; the outputs of attention and both maps of the MLP.
    cores = launches(monkeypatch, ("lora-xs",), 20)
    assert cores - biases == Counter(shrink=6 * LAYERS, expand=6 * LAYERS)
    adapters = launches(monkeypatch, ("adapter",), 20)
    assert adapters - biases == Counter(shrink=2 * LAYERS, expand=2 * LAYERS)
