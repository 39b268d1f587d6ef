"""A training step on a GPU, tried without one, on PyTorch's device `meta`, which knows shapes and computes nothing.

Every operation has to find all its tensors on that device, as on a GPU, and none may read a number back from it.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bases import tiny_base
from onebert_encoder.base.base import load_base
from onebert_encoder.layout.dropout import Dropout
from onebert_training.data.dataset import Dataset
from onebert_training.data.examples import Split
from onebert_training.fit import loop
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import State

META = torch.device("meta")
COPIES = {"aten::_to_copy", "aten::copy_"}


class Downloads(TorchDispatchMode):
    """Gives zeros for what is copied to the CPU: before its first step a run may read the base's weights."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function._schema.name == "aten::_to_copy" and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        return function(*args, **kwargs)


class OneDevice(TorchDispatchMode):
    """Fails where an operation has tensors of two devices; a number that is on the CPU goes with any."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [tree_leave for tree_leave in tree_leaves((args, kwargs)) if isinstance(tree_leave, torch.Tensor)]
        devices = {tensor.device for tensor in tensors if tensor.dim() or tensor.device == META}
        assert len(devices) < 2 or function._schema.name in COPIES, f"{function} has tensors on {devices}"
        return function(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def parts_that_meta_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no generator, and no fused optimizer."""
    monkeypatch.setattr(Run, "generator_at", lambda run, _: SimpleNamespace(device=run.base.device))

    def drawn(_: Dropout, row: int, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int16, device=device)

    monkeypatch.setattr(Dropout, "_draw", drawn)
    monkeypatch.setattr(torch.optim, "AdamW", lambda leaves, **_: torch.optim.SGD(leaves))


def sentences() -> Dataset:
    texts = tuple(f"the {word} is good" for word in ("order", "parcel", "screen for the", "password"))
    split = Split(texts, np.arange(4) % 2)
    return Dataset("sentences", "single_label", ("no", "yes"), None, {"train": split, "validation": split}, digest="")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "methods",
    [("bitfit", "lora:r=2", "adapter:2", "ia3"), ("full",), ("spafit:0-1-I,r=2",), ("frozen",)],
    ids=lambda methods: methods[0],
)
def test_a_step_computes_on_the_device_alone(dtype: torch.dtype, methods: tuple[str, ...]) -> None:
    base = load_base(str(tiny_base("bert")), dtype=dtype, device="meta")
    with Downloads():
        inputs = TaskInputs(base, sentences(), 32)
        runs = [Run(inputs, Settings(method=method, batch_size=3), "task") for method in methods]
        active = [(run, State(run.init_values())) for run in runs]
    with OneDevice():
        losses = loop.compute_losses(active)
        leaves = [leaf for _, state in active for leaf in state.leaves.values()]
        grads = torch.autograd.grad(torch.stack(losses).sum(), leaves, allow_unused=True, materialize_grads=True)
        gradients = dict(zip(map(id, leaves), grads, strict=True))
        for _, state in active:
            state.update([gradients[id(leaf)] for leaf in state.leaves.values()], (1e-3, 1e-3))
    assert {tensor.device for tensor in (*losses, *leaves, *grads)} == {META}
    assert all(loss.requires_grad for loss in losses)
