"""From packed texts to logits on a GPU: many tasks need as many launches as two, and the host never waits.

On a GPU PyTorch itself tells of every wait. Without one its operations are recorded on a CPU: those that compute or
copy are counted, beside the programs, which are not run; those that must wait for a GPU are known by name.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bases import far_row, random_texts, tiny_base
from batches import logits_of, packed
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.compute import linear
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels
from onebert_encoder.layout import upload
from onebert_encoder.maths import encode as encoder
from onebert_encoder.maths import predict
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.gpu_heads import GpuHeads
from onebert_encoder.maths.rows import Rows, diverges_at, stack_rows
from onebert_encoder.text.tokens import Tokens

pytest.importorskip("triton", reason="Triton exists for Linux alone")

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Operations that wait: reading a number back, shapes that depend on numbers, tensors made from Python lists.
WAITING = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select", "unique", "_unique2"),
    *("index by bool", "repeat_interleave", "lift_fresh", "bincount"),
}
MAKES_NO_LAUNCH = {"empty", "new_empty", "empty_like", "empty_strided", "detach", "lift_fresh"}


class Operations(TorchDispatchMode):
    """The names of all operations, and how often each launches something on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.launches: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = function._schema.name.partition("::")[2]
        by_bool = name in ("index", "index_put") and any(arg is not None and arg.dtype == torch.bool for arg in args[1])
        self.names.add("index by bool" if by_bool else name)
        if not function.is_view and name not in MAKES_NO_LAUNCH:
            self.launches[name] += 1
        return function(*args, **(kwargs or {}))


def tasks(
    kinds: tuple[str, ...], poolings: tuple[str, ...] = ("mean",), count: int = 1
) -> tuple[Base, Rows, list[int]]:
    """A task of each kind and pooling, `count` times; row 0 is the bare base."""
    base = load_base(str(tiny_base("bert")), device=DEVICE)
    drawn = [(kind, pooling) for pooling in poolings * count for kind in kinds]
    rows_of_tasks = [far_row(base, kind, pooling, 2 + seed % 3, seed) for seed, (kind, pooling) in enumerate(drawn, 1)]
    rows = [bare := fold(base, {}), *rows_of_tasks]
    return base, stack_rows(base, rows), [diverges_at(row, bare, base) for row in rows]


def use(monkeypatch: pytest.MonkeyPatch, kernels: GpuKernels, heads: type[GpuHeads]) -> None:
    # The pass in one call is for CPUs alone, and looking for it computes at first.
    for module in (encoder, predict):
        monkeypatch.setattr(module, "choose_forward", lambda *_: None)
    monkeypatch.setattr(encoder, "choose_kernels", lambda *_: kernels)
    monkeypatch.setattr(predict, "choose_heads", lambda *_: heads)


def launches(monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...], count: int) -> Counter[str]:
    """The launches for a batch of one text for each task, whose programs are counted and do nothing."""
    mode = Operations()

    def programs(*names: str) -> Any:
        class Program:
            def __init__(self, name: str) -> None:
                self.name = name

            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
                assert all(size > 0 for size in grid)
                return lambda *_, **__: mode.launches.update([self.name])

        return SimpleNamespace(**{name: Program(name) for name in names})

    class Heads(GpuHeads):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self._programs = programs("pool", "classify")

    kernels = GpuKernels()
    kernels.programs = programs("attend", "add_norm", "add_activate")
    kernels._branches = programs("shrink", "expand")
    monkeypatch.setattr(linear, "load_products", lambda *_: None)
    base, rows, _ = tasks(kinds, count=count)
    lengths = np.random.default_rng(0).integers(1, 20, len(kinds) * count).tolist()
    batch = packed(base, [Tokens([5] * n, [0] * n) for n in lengths], range(1, len(lengths) + 1))
    use(monkeypatch, kernels, Heads)
    with torch.inference_mode(), mode:
        logits_of(base, rows, batch)
    return mode.launches


@pytest.mark.parametrize(
    "kinds", [("bitfit",), ("bitfit", "gains"), ("lora",), ("lora-xs",), ("adapter", "bitfit", "lora")]
)
def test_many_tasks_take_as_many_launches_as_few(monkeypatch: pytest.MonkeyPatch, kinds: tuple[str, ...]) -> None:
    few, many = (launches(monkeypatch, kinds, count) for count in (1, 60 // len(kinds)))
    assert few == many


@contextmanager
def must_not_wait() -> Iterator[None]:
    if ON_GPU:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    with Operations() as operations:
        yield
    assert not WAITING & operations.names, sorted(WAITING & operations.names)


def users_of_upload() -> list[Any]:
    from onebert_encoder.compute.kernels.gpu import kernels as gpu
    from onebert_encoder.layout import stage
    from onebert_encoder.maths import batch, gpu_heads, heads

    return [batch, encoder, heads, stage, gpu, gpu_heads]


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads as on a GPU, with all indices in one buffer, and the kernels for GPUs in Triton's interpreter."""
    if not ON_GPU:
        use(monkeypatch, GpuKernels(), GpuHeads)
        for module in (upload, *users_of_upload()):
            monkeypatch.setattr(module, "upload", upload.upload_at_once)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    ("kinds", "poolings"),
    [
        (("bitfit", "gains", "scale", "output-scale", "lora", "adapter", "sparse"), ("mean",)),
        (("bitfit",), ("pooler", "mean", "cls", "none")),
    ],
)
def test_a_mixed_batch_waits_for_nothing(kinds: tuple[str, ...], poolings: tuple[str, ...], share: bool) -> None:
    base, rows, parts = tasks(kinds, poolings)
    rng, count = np.random.default_rng(0), len(parts) - 1
    texts = random_texts(rng.integers(1, 12, count).tolist())
    which = list(range(1, count + 1))
    if share:
        texts, which = [texts[0]] * count + texts, which * 2

    def answer() -> list[Tensor]:
        return logits_of(base, rows, packed(base, texts, which, [parts[row] for row in which] if share else None))

    with torch.inference_mode():
        expected = answer()  # compiles
        with must_not_wait():
            got = answer()
    assert all(map(torch.equal, got, expected))
