"""Recorded training steps against the same steps computed anew.

Without a GPU a recording is imitated: what PyTorch computed is noted, and computed again from the same memory into the
same memory, as a CUDA graph does; whatever is not read from fixed inputs would stay that of the first batch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)
from torch.utils._pytree import tree_leaves

from bases import tiny_base
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.compute import linear
from onebert_encoder.maths.graphs import CudaRecorder
from onebert_training.data.dataset import Dataset
from onebert_training.data.examples import Split
from onebert_training.fit import loop, recorded
from onebert_training.fit import state as state_module
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.keeping import validate
from onebert_training.fit.recorded import RecordedSteps
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import State

pytest.importorskip("triton", reason="Triton exists for Linux alone")

from onebert_encoder.compute.kernels.gpu import backward, programs
from onebert_encoder.compute.kernels.gpu.training import GpuTraining

pytestmark = [pytest.mark.gpu, pytest.mark.nightly("gpu")]

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


class Tape(TorchDispatchMode):
    """Notes operations with their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[tuple[Any, Any, Any, Any]] = []
        self.overwritten: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(one for one in tree_leaves(self.noted) if isinstance(one, torch.Tensor))

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function._schema.is_mutable:
            written = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
            self.overwritten += [(one, one.clone()) for one in written]
        out = function(*args, **(kwargs or {}))
        self.noted.append((function, args, kwargs or {}, out))
        return out


class Imitation:
    """A recorder without a GPU; replays note that they happened."""

    replays = 0
    has_room = True

    def record(self, run: Callable[[], Any], rehearse: bool = True) -> Callable[[], Any]:
        if rehearse:
            run()
        with Tape() as tape:
            out = run()
        # A GPU computes nothing while it records.
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tape.tensors):
            for one, before in reversed(tape.overwritten):
                one.copy_(before)

        def replay() -> Any:
            Imitation.replays += 1
            # A GPU's replays do not count as changes of what a backward pass needs.
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tape.tensors):
                for function, args, kwargs, into in tape.noted:
                    again = function(*args, **kwargs)
                    for old, new in zip(tree_leaves(into), tree_leaves(again), strict=True):
                        if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                            old.detach().copy_(new)
            return out

        return replay


class Noted:
    """A Triton program whose launches are noted as well; what its interpreter does is not."""

    def __init__(self, program: Any) -> None:
        self._program = program

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            for mode in _get_current_dispatch_mode_stack():
                mode.noted.append((launch, args, kwargs, None))
            with _disable_current_modes():
                self._program[grid](*args, **kwargs)

        return launch


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    Imitation.replays = 0
    if not ON_GPU:
        monkeypatch.setattr(recorded, "choose_kernels", lambda _, dropout: GpuTraining(dropout))
        for name in ("load_products", "load_trained"):
            monkeypatch.setattr(linear, name, lambda *_: None)
        for module, names in (
            (programs, ("attend", "add_norm", "add_activate")),
            (backward, ("attend_back", "norm_back", "activate_back", "drop")),
        ):
            for name in names:
                monkeypatch.setattr(module, name, Noted(getattr(module, name)))


def inputs_of(base: Base) -> TaskInputs:
    texts = tuple(f"it {'is ' * (4 * (i % 3) + 1)} good" for i in range(9))
    split = Split(texts, torch.arange(len(texts)).remainder(2).numpy())
    rows = {"train": split, "validation": split}
    return TaskInputs(base, Dataset("x", "single_label", ("no", "yes"), None, rows), 48)


def steps(
    run: Run, count: int, record: bool, monkeypatch: pytest.MonkeyPatch, state: State | None = None
) -> tuple[list[float], State]:
    """Losses of the next steps, of the first without a state, and the state behind them."""
    monkeypatch.setattr(recorded, "_RECORDED_AT", 2 if record else 10**9)
    state = state or State(run.init_values())
    recorder: Any = CudaRecorder(run.base.device) if ON_GPU else Imitation()
    state.recorded = RecordedSteps(run, state.values, recorder)
    losses = [loop.take_step([(run, state)])[0] for _ in range(count)]
    return losses, state


METHODS = ("bitfit", "layernorm", "bitfit+gamma+svd", "lora:r=2", "adapter:2", "ia3", "bitfit+lora:targets=all", "full")


# Gradients of words are sparse without a GPU, where `full` is not recorded.
@pytest.mark.parametrize("method", METHODS if ON_GPU else ("bitfit+gamma+svd", "lora:r=2"))
@pytest.mark.slow("Triton's interpreter computes eighteen steps")
def test_recorded_steps_are_the_same_steps(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = load_base(str(tiny_base("bert")), device=DEVICE)
    monkeypatch.setattr(loop, "records", lambda _: True)
    monkeypatch.setattr(state_module, "has_graphs", lambda _: True)
    run = Run(inputs_of(base), Settings(method=method, batch_size=2, epochs=9), "task")
    wanted, plainly = steps(run, 9, False, monkeypatch)
    got, state = steps(run, 9, True, monkeypatch)
    assert state.recorded is not None
    assert len(state.recorded._recordings) > 1, "texts of three lengths, in batches of several sizes"
    assert state.recorded._can_record
    assert state.recorded._update is not None
    assert ON_GPU or Imitation.replays >= 9
    # Sums of some hundred numbers in another order, nine times over.
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=1e-4, atol=1e-5)
    for name, leaf in state.leaves.items():
        torch.testing.assert_close(leaf, plainly.leaves[name], rtol=1e-3, atol=1e-4)
    assert len(set(wanted)) > 3


@pytest.mark.slow("Triton's interpreter computes twenty steps")
def test_a_run_is_evaluated_between_recorded_steps_and_continues_from_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = load_base(str(tiny_base("bert")), device=DEVICE)
    monkeypatch.setattr(loop, "records", lambda _: True)
    monkeypatch.setattr(state_module, "has_graphs", lambda _: True)
    run = Run(inputs_of(base), Settings(method="bitfit", batch_size=2, epochs=9), "task")
    wanted, plainly = steps(run, 10, False, monkeypatch)
    got, state = steps(run, 5, True, monkeypatch)
    state.losses = [sum(got), len(got)]  # as the loop counts them
    validate(run, state)
    state.save(tmp_path / "checkpoint", "of this run")
    resumed = State(run.init_values())
    assert resumed.restore(tmp_path / "checkpoint", "of this run")
    more, again = steps(run, 5, True, monkeypatch, resumed)
    assert again.recorded is not None
    assert again.recorded._recordings
    # As above.
    torch.testing.assert_close(torch.tensor(got + more), torch.tensor(wanted), rtol=1e-4, atol=1e-5)
    for name, leaf in again.leaves.items():
        torch.testing.assert_close(leaf, plainly.leaves[name], rtol=1e-3, atol=1e-4)


def test_what_cannot_be_recorded_is_computed_as_usual(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    base = load_base(str(tiny_base("bert")), device=DEVICE)
    monkeypatch.setattr(loop, "records", lambda _: True)
    monkeypatch.setattr(state_module, "has_graphs", lambda _: True)
    run = Run(inputs_of(base), Settings(method="bitfit", batch_size=2, epochs=9), "task")
    wanted, _ = steps(run, 6, False, monkeypatch)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no graph")

    monkeypatch.setattr(RecordedSteps, "_record", fail)
    with caplog.at_level("INFO"):
        got, _ = steps(run, 6, True, monkeypatch)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(wanted), rtol=1e-4, atol=1e-5)
    assert [one.message for one in caplog.records] == ["steps of bitfit are not recorded: RuntimeError: no graph"]
