"""CUDA graphs of small batches: the encoder's launches are recorded once for each batch size and replayed together.

Launching kernels takes the host longer than a small batch takes the GPU. A recording reads and writes at fixed
addresses, so every batch is first copied to the recording's inputs (docs/decisions/0013-gpu-kernels.md).
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.layout.stage import Stage
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.choose import answering_kernels
from onebert_encoder.maths.encode import Gathered, Pass, passes_of, run_passes
from onebert_encoder.maths.rows import Rows

logger = logging.getLogger("onebert.graphs")

# Larger batches keep a GPU busy without recordings. Every size up to this one may have a recording.
_MOST_TOKENS = 2048

# A recording has room for one sequence for every 8 of its tokens; a batch of more sequences is not replayed.
_TOKENS_PER_SEQUENCE = 8

# `round_up` (shapes.py) adds fewer filling tokens than this.
_MOST_FILLING = 128

# The third batch of a size is recorded, not the first: while a server loads its tasks its tables still move, which
# makes recordings useless.
_RECORDED_AT = 3


class Recorder(Protocol):
    """Records launches on the device and repeats them."""

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Runs `run` and records its launches; the result repeats them at the same addresses and returns the output."""
        ...


class CudaRecorder:
    """Records CUDA graphs, which share one pool of memory; so no two may be replayed at once."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Runs twice: programs are compiled and libraries allocate in the first run, and the second is recorded."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # `thread_local`: other threads, which load tasks, may go on using the GPU while this one records.
        with (
            torch.cuda.device(self._device),
            torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            out = run()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


class Graphs:
    """The encoder with recordings, for one thread; the tensor that it returns is overwritten by the next call.

    Args:
        base: the frozen encoder.
        recorder: records on the base's device.
    """

    def __init__(self, base: Base, recorder: Recorder) -> None:
        self._base, self._recorder = base, recorder
        self._tables: Sequence[Tensor] = ()
        self._graphs: dict[int, _Graph | None] = {}
        self._seen: Counter[int] = Counter()

    @property
    def sizes(self) -> set[int]:
        """The numbers of tokens for which there is a recording."""
        return {size for size, graph in self._graphs.items() if graph is not None}

    def encode(self, rows: Rows, batch: Batch) -> Tensor:
        """The same as the function `encode`, without dropout."""
        kernels = answering_kernels(self._base)
        passes = passes_of(self._base, rows, batch, kernels)
        if kernels.name != "gpu" or not _fits(batch, passes):
            return run_passes(passes, batch)
        self._forget_other_tables(rows)
        size = len(batch.word)
        graph = self._graphs.get(size)
        if graph is not None:
            return graph.replay(batch, passes[0].gathered)
        x = run_passes(passes, batch)
        self._seen[size] += 1
        if self._seen[size] == _RECORDED_AT:
            self._graphs[size] = self._recorded(passes[0], batch, x)
        return x

    def _forget_other_tables(self, rows: Rows) -> None:
        """Drops all recordings when the tables of rows have moved, since recordings read fixed addresses.

        The tables are kept referenced, so that their memory is not given to something else meanwhile.
        """
        tables = (rows.shift, rows.gain, rows.g_LN0)
        if [table.data_ptr() for table in tables] != [table.data_ptr() for table in self._tables]:
            self._graphs.clear()
            self._seen.clear()
            self._tables = tables

    def _recorded(self, eager: Pass, batch: Batch, x: Tensor) -> "_Graph | None":
        """A recording of this batch's size that gives the bits of `x`, computed without it; None where that fails."""
        try:
            graph = _Graph(eager, len(batch.word), self._recorder)
            got = graph.replay(batch, eager.gathered)
        except Exception as error:  # whatever drivers raise
            logger.warning("batches of %d tokens are not recorded: %s", len(x), type(error).__name__)
            return None
        tokens = len(x) - batch.stages[0].filling
        if torch.equal(got[:tokens].view(torch.uint8), x[:tokens].view(torch.uint8)):
            return graph
        logger.warning("a recording of %d tokens gives other numbers, so it is not used", len(x))
        return None


def _fits(batch: Batch, passes: Sequence[Pass]) -> bool:
    """Whether a batch is small and its rows change nothing but biases and gains."""
    size = len(batch.word)
    return (
        size <= _MOST_TOKENS
        and len(batch.stages) == 1
        and batch.stages[0].source is None
        and len(batch.stages[0].lengths) <= size // _TOKENS_PER_SEQUENCE
        and passes[0].gathered.scales is None
        and not passes[0].gathered.branches
    )


@dataclass(frozen=True)
class _StaticInputs:
    """The inputs that a recording reads: a batch of one size with as many sequences as there is room for."""

    batch: Batch
    gathered: Gathered

    @classmethod
    def of(cls, base: Base, size: int) -> "_StaticInputs":
        """Inputs of zeros: every sequence is empty, and no token belongs to one."""
        word, position, row_of_token, gains = torch.zeros(4, size, dtype=torch.int64, device=base.device)
        sequences = max(1, size // _TOKENS_PER_SEQUENCE)
        edges = torch.zeros(sequences + 1, dtype=torch.int32, device=base.device)
        # Programs are launched for the longest possible sequence; those behind a sequence's end do nothing.
        lengths = np.full(sequences, min(size, base.config.max_length))
        filling, layers = min(size, _MOST_FILLING), range(base.config.num_layers)
        gathered = Gathered(gains, None, {})
        rows = np.zeros(sequences, dtype=np.int64)
        stage = Stage(layers, None, filling, row_of_token, [], edges, rows, lengths, base.dtype)
        return cls(Batch(word, position, [stage], [], rows, lengths, base.batch_invariant), gathered)

    def load(self, batch: Batch, gathered: Gathered) -> None:
        """Copies a batch into these inputs, on the device."""
        (stage,), (here,) = batch.stages, self.batch.stages
        self.batch.word.copy_(batch.word)
        self.batch.position.copy_(batch.position)
        here.row_of_token.copy_(stage.row_of_token)
        here.edges[: len(stage.edges)].copy_(stage.edges)
        # The recording's sequences beyond those of this batch are empty: they begin and end where the filling begins.
        here.edges[len(stage.edges) :].copy_(stage.edges[-1:].expand(len(here.edges) - len(stage.edges)))
        if self.gathered.gains is not None:
            self.gathered.gains.zero_() if gathered.gains is None else self.gathered.gains.copy_(gathered.gains)


class _Graph:
    """The recording of one size."""

    def __init__(self, eager: Pass, size: int, recorder: Recorder) -> None:
        self._inputs = _StaticInputs.of(eager.base, size)
        batch = self._inputs.batch
        recorded = replace(eager, stage=batch.stages[0], gathered=self._inputs.gathered)
        self._replay = recorder.record(lambda: run_passes([recorded], batch))

    def replay(self, batch: Batch, gathered: Gathered) -> Tensor:
        """The encoder's output [tokens, h] for a batch of the recorded size."""
        self._inputs.load(batch, gathered)
        return self._replay()
