"""From packed texts to logits the host never waits for a GPU: it reads no number back and copies only pinned memory.

On a GPU PyTorch itself tells of every wait. Without one its operations are recorded on a CPU, where the kernels for
GPUs run in Triton's interpreter: those that must wait for a GPU are known by name.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bases import far_delta, tiny_base, torch_tensors
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels
from onebert_encoder.layout import upload
from onebert_encoder.maths import encode as encoder
from onebert_encoder.maths import predict
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.gpu_heads import GpuHeads
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Rows, diverges_at, stack_rows
from onebert_encoder.text.tokens import Tokens

pytest.importorskip("triton", reason="Triton exists for Linux alone")

pytestmark = [pytest.mark.gpu, pytest.mark.nightly("gpu")]

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Operations that wait: reading a number back, shapes that depend on numbers, tensors made from Python lists.
WAITING = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "_unique2"),
    *("index by bool", "repeat_interleave", "lift_fresh", "bincount"),
}


class Recorder(TorchDispatchMode):
    """The names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = function._schema.name.removeprefix("aten::")
        self.names.append("index by bool" if name in ("index", "index_put") and _by_bool(args[1]) else name)
        return function(*args, **(kwargs or {}))


def _by_bool(indices: Any) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in indices)


@contextmanager
def must_not_wait() -> Iterator[None]:
    if ON_GPU:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    with Recorder() as recorder:
        yield
    assert not WAITING & set(recorder.names), sorted(WAITING & set(recorder.names))


def tasks(kinds: tuple[str, ...], poolings: tuple[str, ...]) -> tuple[Base, Rows, list[int]]:
    base = load_base(str(tiny_base("bert")), device=DEVICE)
    bare = fold(base, {})
    rows = [bare]
    for pooling in poolings:
        for kind in kinds:
            tensors = torch_tensors(far_delta(base.spec, kind, pooling, labels=2 + len(rows) % 3, seed=len(rows)))
            rows.append(fold(base, {name: value.to(DEVICE) for name, value in tensors.items()}, pooling))
    return base, stack_rows(base, rows), [diverges_at(row, bare, base) for row in rows]


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    ("kinds", "poolings"),
    [
        (("bitfit", "gains", "scale", "output-scale", "lora", "adapter", "sparse"), ("mean",)),
        (("bitfit",), ("pooler", "mean", "cls", "none")),
    ],
)
def test_a_mixed_batch(
    monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], poolings: tuple[str, ...], share: bool
) -> None:
    use_gpu_kernels(monkeypatch)
    base, rows, parts = tasks(kinds, poolings)
    rng, count = np.random.default_rng(0), len(parts) - 1
    texts = [Tokens(rng.integers(5, 60, n).tolist(), [0] * n) for n in rng.integers(1, 12, count).tolist()]
    which = list(range(1, count + 1))
    if share:
        texts, which = [texts[0]] * count + texts, which * 2

    def answer() -> list[Tensor]:
        return compute_logits(base, rows, pack(base, texts, which, [parts[row] for row in which] if share else None))

    with torch.inference_mode():
        expected = answer()  # compiles
        with must_not_wait():
            got = answer()
    assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize(
    ("kinds", "copies"),
    [
        (("bitfit",), 2),  # tokens with their rows; heads
        (("bitfit", "lora", "adapter"), 3),  # tiles, too
        (("gains", "scale"), 3),  # indices of gains and scales, too
    ],
)
def test_a_step_makes_few_copies(monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], copies: int) -> None:
    use_gpu_kernels(monkeypatch)
    base, rows, parts = tasks(kinds, ("mean", "cls"))
    made: list[int] = []

    def counted(arrays: dict[Any, np.ndarray], device: torch.device) -> dict[Any, Tensor]:
        made.extend([len(arrays)] if arrays else [])
        return upload.upload_at_once(arrays, device)

    for module in users_of_upload():
        monkeypatch.setattr(module, "upload", counted)
    which = list(range(1, len(parts)))
    with torch.inference_mode():
        compute_logits(base, rows, pack(base, [Tokens([5] * n, [0] * n) for n in which], which))
    assert len(made) == copies


WAITS: list[Callable[[Tensor], Any]] = [
    lambda x: int(x[0]),
    lambda x: x.repeat_interleave(x),
    lambda x: x[torch.tensor([0, 1], device=DEVICE)],
    lambda x: x[x > 0],
]


@pytest.mark.parametrize("wait", WAITS)
def test_what_waits_is_noticed(wait: Callable[[Tensor], Any]) -> None:
    x = torch.ones(3, dtype=torch.int64, device=DEVICE)
    with pytest.raises((AssertionError, RuntimeError)), must_not_wait():
        wait(x)


def use_gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads as on a GPU, with all indices in one buffer."""
    if not ON_GPU:
        monkeypatch.setattr(encoder, "choose_forward", lambda *_: None)
        monkeypatch.setattr(predict, "choose_forward", lambda *_: None)
        monkeypatch.setattr(encoder, "choose_kernels", lambda *_: GpuKernels())
        monkeypatch.setattr(predict, "choose_heads", lambda *_: GpuHeads())
        for module in (upload, *users_of_upload()):
            monkeypatch.setattr(module, "upload", upload.upload_at_once)


def users_of_upload() -> list[Any]:
    from onebert_encoder.compute.kernels.gpu import kernels as gpu
    from onebert_encoder.layout import stage
    from onebert_encoder.maths import batch, gpu_heads, heads

    return [batch, encoder, heads, stage, gpu, gpu_heads]
