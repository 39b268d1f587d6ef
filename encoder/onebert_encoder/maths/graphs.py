"""CUDA graphs of a server's batches: the encoder's launches are recorded once per size and replayed together.

For most batches the host needs longer to launch the kernels than the GPU to run them. A recording uses fixed
addresses, so each batch is first copied to the recording's inputs (decision 13).
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.compute.kernels.gpu.kernels import GpuBranches
from onebert_encoder.compute.kernels.gpu.tiles import TILE_TOKENS, Turn
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.choose import answering_kernels
from onebert_encoder.maths.encode import Gathered, Pass, passes_of, run_passes
from onebert_encoder.maths.fixed import SMALL, FixedBatch, fits, longest_of, room
from onebert_encoder.maths.rows import Rows

logger = logging.getLogger("onebert.graphs")

Out = TypeVar("Out")

# The largest batch of a server's default settings, and beyond `SMALL` tokens the longest text of a recorded one. (256
# sentences, 5,888 tokens, take about half of the time on an H200.)
_MOST_TOKENS, _LONGEST_IN_LARGE = 8192, 128

# The third batch of a kind is recorded, not the first: many kinds come once or twice.
_RECORDED_AT = 3

# Beyond this the least recently replayed recording is dropped: each keeps its inputs on the device.
_MOST_RECORDINGS = 256

# Most kinds to count at once; then counting restarts, so that ever new mixtures do not use up memory.
_MOST_KINDS = 1024


@dataclass(frozen=True)
class _Kind:
    """The shared properties of batches with one recording; `size` includes the filling, `longest` bounds a sequence."""

    size: int
    longest: int
    scaled: tuple[str, ...]
    branches: tuple[tuple[Turn, int], ...]


class CudaRecorder:
    """Records CUDA graphs that share one memory pool; so no two may be replayed at once."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self.renew()

    def renew(self) -> None:
        """Takes a new memory pool; PyTorch refuses to record into one whose recordings are all gone."""
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Out]) -> Callable[[], Out]:
        """Records the launches of `run`; the result replays them at the same addresses and returns the output.

        Runs twice: the first run compiles programs and lets libraries allocate, the second is recorded.

        Unlike this, the context manager `torch.cuda.graph` first empties PyTorch's memory pools and waits for the
        device, which is serving requests here.
        """
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            run()
            # `thread_local`: other threads, which load tasks, may use the GPU during the recording.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                out = run()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)

        def replay() -> Out:
            graph.replay()
            return out

        return replay


class Graphs:
    """The encoder with recordings, for one thread; each call overwrites the tensor that the last one returned."""

    def __init__(self, base: Base, recorder: CudaRecorder) -> None:
        self._base, self._recorder = base, recorder
        self._tables: Sequence[Tensor] = ()
        # Every recording ends with a copy into this, so that none keeps memory for its output.
        self._out = torch.empty(0, 0, dtype=base.dtype, device=base.device)
        # Least recently replayed first.
        self._graphs: OrderedDict[_Kind, _Graph] = OrderedDict()
        self._seen: Counter[_Kind] = Counter()

    @property
    def sizes(self) -> set[int]:
        return {kind.size for kind in self._graphs}

    def encode(self, rows: Rows, batch: Batch) -> Tensor:
        kernels = answering_kernels(self._base)
        passes = passes_of(self._base, rows, batch, kernels)
        if kernels.name != "gpu" or not _fits(batch, passes):
            return run_passes(passes, batch)
        self._forget_other_tables(rows)
        kind = _kind_of(batch, passes[0].gathered, self._base.config.max_length)
        graph = self._graphs.get(kind)
        if graph is not None:
            self._graphs.move_to_end(kind)
            return graph.replay(batch, passes[0].gathered)
        x = run_passes(passes, batch)
        if len(self._seen) >= _MOST_KINDS:
            self._seen.clear()
        self._seen[kind] += 1
        if self._seen[kind] == _RECORDED_AT:
            self._record(kind, passes[0], batch, x)
        return x

    def _forget_other_tables(self, rows: Rows) -> None:
        """Drops all recordings when the tables of rows have moved, and keeps the tables: no memory is reused."""
        tables = (rows.shift, rows.gain, rows.g_LN0, *rows.scales.values())
        if [table.data_ptr() for table in tables] != [table.data_ptr() for table in self._tables]:
            self._graphs.clear()
            self._seen.clear()
            self._tables = tables

    def _record(self, kind: _Kind, eager: Pass, batch: Batch, x: Tensor) -> None:
        """Records this batch's kind, if replaying gives the bits of `x`, computed without a recording."""
        try:
            if not self._graphs:
                self._recorder.renew()
                self._out = x.new_empty(_MOST_TOKENS, x.shape[1])
            graph = _Graph(eager, kind, self._recorder, self._out)
            got = graph.replay(batch, eager.gathered)
        except Exception as error:  # drivers may raise anything
            logger.warning("batches of %d tokens are not recorded: %s: %s", len(x), type(error).__name__, error)
            return
        tokens = len(x) - batch.stages[0].filling
        if not torch.equal(got[:tokens].view(torch.uint8), x[:tokens].view(torch.uint8)):
            logger.warning("a recording of %d tokens gives other numbers, so it is not used", len(x))
            return
        self._graphs[kind] = graph
        if len(self._graphs) > _MOST_RECORDINGS:
            dropped, _ = self._graphs.popitem(last=False)
            # Batches of that kind are counted anew.
            del self._seen[dropped]


def _fits(batch: Batch, passes: Sequence[Pass]) -> bool:
    limit = _MOST_TOKENS if batch.lengths.max() <= _LONGEST_IN_LARGE else SMALL
    return len(batch.word) <= limit and fits(batch) and not _branches_of(passes[0].gathered).has_spans


def _branches_of(gathered: Gathered) -> GpuBranches:
    return cast(GpuBranches, gathered.branches)


def _kind_of(batch: Batch, gathered: Gathered, max_length: int) -> _Kind:
    # Programs are launched for the longest possible sequence.
    longest = longest_of(batch, max_length)
    return _Kind(len(batch.word), longest, tuple(gathered.scales), _branches_of(gathered).key)


class _Graph:
    def __init__(self, eager: Pass, kind: _Kind, recorder: CudaRecorder, out: Tensor) -> None:
        base, branches, size = eager.base, _branches_of(eager.gathered), kind.size
        self._fixed = fixed = FixedBatch(base, size, kind.longest)
        gains, *scales = torch.zeros(1 + len(kind.scaled), size, dtype=torch.int64, device=base.device)
        # One span per sequence and one for the filling, each with one partial tile.
        tiles = branches.static(room(size) + 1 + size // TILE_TOKENS)
        self._gathered = Gathered(gains, dict(zip(kind.scaled, scales, strict=True)), tiles)
        recorded = replace(eager, stage=fixed.stage, gathered=self._gathered)
        self._replay = recorder.record(lambda: out[:size].copy_(run_passes([recorded], fixed.batch)))

    def replay(self, batch: Batch, gathered: Gathered) -> Tensor:
        """Copies a batch into the inputs on the device and replays."""
        inputs = self._gathered
        scales = ((index, gathered.scales[place]) for place, index in inputs.scales.items())
        pairs = [(inputs.gains, gathered.gains), *scales]
        self._fixed.load(batch, *((into, index) for into, index in pairs if into is not None and index is not None))
        if inputs.gains is not None and gathered.gains is None:
            inputs.gains.zero_()
        _branches_of(inputs).load(_branches_of(gathered))
        return self._replay()
