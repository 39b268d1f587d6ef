"""Recorded batches against the same batches launched as usual, bit for bit.

Without a GPU a recording is imitated: it runs again, on the kernels for GPUs in Triton's interpreter, and notes from
which addresses they read; what it kept of the batch that it was made with would answer for that batch forever.
"""

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from weakref import WeakSet

import pytest
import torch
from torch import Tensor

from bases import far_row, random_texts, tiny_base
from batches import packed
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels
from onebert_encoder.maths import encode as encoder
from onebert_encoder.maths import graphs as graphs_module
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.graphs import CudaRecorder, Graphs
from onebert_encoder.maths.rows import Rows, stack_rows

pytest.importorskip("triton", reason="Triton exists for Linux alone")

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
LONGEST = 66  # tokens of a sequence of the tiny base
KINDS = "bitfit gains layernorm frozen lora scale sparse lora adapter output-scale lora-xs".split()


class Imitation:
    """A recorder without a GPU: repeats the run into the same memory."""

    def __init__(self) -> None:
        self.replays = 0
        self.renew()

    def renew(self) -> None:
        self._recorded, self._live = 0, WeakSet[Callable[[], Tensor]]()

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        gc.collect()  # these recordings, unlike a GPU's, refer to themselves
        if self._recorded and not self._live:
            raise RuntimeError("the recordings of this pool are all gone")
        out, addresses = run(), self._addresses(run)

        def replay() -> Tensor:
            self.replays += 1
            assert self._addresses(run) == addresses
            return out

        self._recorded += 1
        self._live.add(replay)
        return replay

    def _addresses(self, run: Callable[[], Tensor]) -> list[int]:
        """Addresses of the inputs and of the output, which outlive the run: indices and tables."""
        Noting.seen.clear()
        return [run().data_ptr(), *Noting.seen]


class Noting(GpuKernels):
    seen: ClassVar[list[int]] = []

    def add_branches(self, y: Tensor, x: Tensor, joined: Any) -> Tensor:
        self.seen.extend(tiles.data_ptr() for tiles, _ in joined.turns)
        return super().add_branches(y, x, joined)

    def attend(self, qkv: Tensor, b_q: Tensor, stage: Any, *more: Any) -> Tensor:
        self.seen.extend(tensor.data_ptr() for tensor in (b_q, stage.row_of_token, stage.edges))
        return super().attend(qkv, b_q, stage, *more)

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Any, gain: Any, eps: float) -> Tensor:
        self.seen.extend(
            tensor.data_ptr() for tensor in (b, gain.table, gain.of_token, stage.row_of_token) if tensor is not None
        )
        return super().add_norm(y, x, b, stage, gain, eps)


@pytest.fixture(autouse=True)
def on_gpu_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kernels = Noting()
    if not ON_GPU:
        monkeypatch.setattr(graphs_module, "answering_kernels", lambda _: kernels)
        monkeypatch.setattr(encoder, "choose_forward", lambda *_: None)
        monkeypatch.setattr(encoder, "choose_kernels", lambda *_: kernels)
    with torch.inference_mode():
        yield


@pytest.fixture
def recorder() -> Any:
    return CudaRecorder(torch.device(DEVICE)) if ON_GPU else Imitation()


def zoo(seed: int = 0) -> tuple[Base, Rows]:
    """Row 0 is the bare base; row 1 + i is a task of the i-th kind."""
    base = load_base(str(tiny_base("bert")), device=DEVICE, dtype=DTYPE)
    rows = [fold(base, {}), *(far_row(base, kind, seed=seed + number) for number, kind in enumerate(KINDS))]
    return base, stack_rows(base, rows)


def assert_same(graphs: Graphs, base: Base, rows: Rows, lengths: list[int], which: list[int], seed: int = 0) -> None:
    batch = packed(base, random_texts(lengths, seed), which)
    tokens = sum(lengths)
    assert torch.equal(graphs.encode(rows, batch)[:tokens], encode(base, rows, batch)[:tokens])


def mixed(first: int, other: int) -> list[tuple[list[int], list[int]]]:
    """Batches with two rows, beside rows without branches or scales, and one row twice; tiles end and begin anew."""
    rows = ([first, 1], [other], [first, other], [other], [2, first], [first])
    return list(zip(([9, 5], [16], [9, 7], [10], [4, 7], [16]), rows, strict=True))


@pytest.mark.parametrize(
    ("batches", "sizes", "replays"),
    [
        # The third batch is recorded and compared; each after it is replayed.
        pytest.param(
            [([9, 5], [1, 2]), ([16], [3]), ([9], [4]), ([4, 7], [2, 1]), ([16], [2]), ([10], [1]), ([8, 8], [0, 3])],
            {16},
            1 + 4,
            id="one size, any content",
        ),
        pytest.param(mixed(5, 8), {16}, 1 + 3, id="low rank"),
        pytest.param(mixed(9, 9), {16}, 1 + 3, id="adapters"),
        pytest.param(mixed(6, 6), {16}, 1 + 3, id="scales"),
        pytest.param(mixed(10, 10), {16}, 1 + 3, id="scales of outputs"),
        pytest.param(mixed(11, 11), {16}, 1 + 3, id="cores"),
        pytest.param([([10], [row]) for row in (1, 5, 6, 10)] * 5, {16}, 4 * (1 + 2), id="kinds in turn"),
        pytest.param([([8 + i % 2], [1 + i % 4]) for i in range(8)], {8, 16}, 2 * 2, id="sizes in turn"),
        # A recording starts programs for texts up to some length: its blocks would not reach a longer text's end.
        pytest.param([([LONGEST, 93 - LONGEST], [1, 2]), ([40, 50], [1, 2])] * 4, {96}, 2 * 2, id="long texts"),
        pytest.param([([8], [7])] * 4, set(), 0, id="a sparse branch"),
        pytest.param([([3] * 3, [1] * 3)] * 4, set(), 0, id="more sequences than there is room for"),
    ],
)
def test_batches_are_replayed_where_they_can_be(
    recorder: Any, batches: list[Any], sizes: set[int], replays: int
) -> None:
    base, rows = zoo()
    graphs = Graphs(base, recorder)
    for seed, (lengths, which) in enumerate(batches):
        assert_same(graphs, base, rows, lengths, which, seed)
    assert graphs.sizes == sizes
    if not ON_GPU:
        assert recorder.replays == replays


def test_the_recording_that_was_not_replayed_for_longest_gives_way_to_another(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs_module, "_MOST_RECORDINGS", 2)
    base, rows = zoo()
    graphs = Graphs(base, recorder)
    for lengths, sizes in (([8, 8, 8, 16, 16, 16, 8], {8, 16}), ([24] * 3, {8, 24}), ([16] * 3, {16, 24})):
        for length in lengths:
            assert_same(graphs, base, rows, [length], [1])
        assert graphs.sizes == sizes


def test_changed_rows_are_read_and_moved_tables_recorded_anew(recorder: Any) -> None:
    base, rows = zoo()
    graphs = Graphs(base, recorder)
    for seed in range(4):
        assert_same(graphs, base, rows, [8], [1], seed)
    rows.shift[1] = rows.shift[2] * 2
    assert_same(graphs, base, rows, [8], [1])
    _, moved = zoo(seed=50)
    for seed in range(5):
        assert_same(graphs, base, moved, [8], [1], seed)
    assert graphs.sizes == {8}
    if not ON_GPU:
        assert recorder.replays == 3 + 3


def test_texts_that_share_layers_are_launched_as_ever(recorder: Any) -> None:
    base, rows = zoo()
    # One that leaves the base at the last layer.
    rows.shift[1] = rows.shift[0]
    rows.shift[1, -1] += 1
    graphs, (text,) = Graphs(base, recorder), random_texts([5], 0)
    batch = packed(base, [text] * 2, [1, 2], [len(base.layers) - 1, 0])
    assert len(batch.stages) == 2
    for _ in range(4):
        assert torch.equal(graphs.encode(rows, batch)[:10], encode(base, rows, batch)[:10])
    if not ON_GPU:
        assert recorder.replays == 0


class Wrong(Imitation):
    """A broken recording: always returns the output of its first batch."""

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        before = run().clone()
        return lambda: before


class Broken(Imitation):
    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("recorder", "message"),
    [
        (Wrong(), "a recording of 8 tokens gives other numbers, so it is not used"),
        (
            Broken(),
            "batches of 8 tokens are not recorded: RuntimeError: operation not permitted when stream is capturing",
        ),
    ],
)
def test_a_recording_that_fails_is_told_of_once_and_not_used(
    recorder: Any, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    base, rows = zoo()
    graphs = Graphs(base, recorder)
    with caplog.at_level(logging.WARNING):
        for seed in range(6):
            assert_same(graphs, base, rows, [8], [1], seed)
    assert caplog.messages == [message]
    assert not graphs.sizes


# Triton's interpreter computes with numpy, which warns of the NaN and infinity put in on purpose.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_task_that_gives_nan_is_recorded_like_any_other(recorder: Any) -> None:
    base, rows = zoo()
    rows.shift[1, 0, 0] = float("nan")
    graphs = Graphs(base, recorder)
    batch = packed(base, random_texts([8], 0), [1])
    for _ in range(4):
        assert graphs.encode(rows, batch)[:8].isnan().all()
    if not ON_GPU:
        assert recorder.replays == 2
