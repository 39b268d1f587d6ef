"""A host: a base in memory with its bank, its forward passes and their measured speed; an engine has one or several."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.answering.scores import Logits
from onebert_encoder.base.base import Base
from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.batch import BASE_ROW, pack
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.graphs import CudaRecorder, Graphs
from onebert_encoder.maths.predict import compute_logits, tokens_of_ids
from onebert_encoder.maths.rows import Row, Rows
from onebert_encoder.maths.sequences import Sequences
from onebert_server.engine.banks.bank import Bank


class Host:
    """One base that answers; hosts are found by `digest`, which every delta names."""

    def __init__(self, base: Base, bank: Bank) -> None:
        self.base, self.bank = base, bank
        self.passes = Passes(base, bank)
        self.speed = Speed()

    @property
    def digest(self) -> str:
        return self.base.spec.digest

    def install(self, row: Row) -> "Slot":
        """See `Bank.install`."""
        return Slot(self, self.bank.install(row))


class Slot(NamedTuple):
    """The slot of a row in the bank of its host."""

    host: Host
    number: int

    def release(self) -> None:
        """See `Bank.release`."""
        self.host.bank.release(self.number)

    @property
    def generation(self) -> int:
        """The generation of its row now; see `Uses`."""
        return int(self.host.bank.generation[self.number])

    @property
    def num_bytes(self) -> int:
        return self.host.bank.size_at(self.number)


class HostCopy:
    """A copy of a tensor of any device; on a CPU the tensor itself.

    A GPU copies into pinned memory, behind earlier work; other memory would block the caller until the GPU is done.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._copy = tensor
        if tensor.device.type == "cuda":
            self._copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._copy.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> np.ndarray:
        if self._event is not None:
            self._event.synchronize()
        return self._copy.numpy()


@dataclass(frozen=True)
class Launched:
    """A pass that the device computes or has computed; `copy` holds the logits of all items (see `Flat`)."""

    sizes: Array
    lengths: Array
    copy: HostCopy
    computed_tokens: float

    def read(self) -> Iterator[Logits]:
        """Waits for the pass, and yields the logits of every item in order, as views of one array."""
        answers = np.split(self.copy.read(), np.cumsum(self.sizes[:-1]))
        for logits, length in zip(answers, self.lengths.tolist(), strict=True):
            yield logits.reshape(length, -1) if length else logits


class Passes:
    """Forward passes of one base with the rows of one bank."""

    def __init__(self, base: Base, bank: Bank) -> None:
        self._base = base
        self._bank = bank
        self._graphs = Graphs(base, CudaRecorder(base.device)) if base.device.type == "cuda" else None

    def launch(self, inputs: Sequences, slots: Array | Sequence[int]) -> Launched:
        """Packs inputs and starts the device on them; never waits for a GPU. See `compute_logits`.

        Args:
            slots: of the row that answers each.
        """
        batch = pack(self._base, inputs, slots, self._bank.diverges_at[slots])
        logits = compute_logits(self._base, self._bank.rows, batch, graphs=self._graphs)
        return Launched(logits.sizes, logits.lengths, HostCopy(logits.values), batch.computed_tokens)

    def costs(self, slots: Array | Sequence[int], lengths: Array, texts: Array) -> Array:
        """Returns the computed tokens per input: a text that an earlier one has costs only the layers that differ."""
        _, first = np.unique(texts, return_index=True)
        shared = self._bank.diverges_at[slots]
        shared[first] = 0
        layers = self._base.config.num_layers
        return np.asarray(np.maximum(lengths * (layers - shared) // layers, 1))


logger = logging.getLogger("onebert.engine")

# Weight of the newest batch in the correction.
_SMOOTHING = 0.2
# One batch counts as at most so many times slower than estimated: a process that was halted has not become slow.
_MOST_SLOWER = 4.0
# The estimate becomes at most ten times faster than the measurement at start, which other work that was ending can
# distort that much; an estimate near zero would no longer bound any wait.
_MOST_FASTER = 0.1

# Share of the fixed cost in the time of a large batch, about 1/35. Smaller batches would cost capacity; larger ones
# would gain hardly any, and every text waits for its whole batch.
_START_SHARE = 0.028
# Least duration of a batch in seconds. A batch has costs beyond the measured ones, such as waking the callers, and on a
# busy machine the wait of the engine's thread: a shorter batch would be too short even if its measured fixed cost is
# small. 512 tokens of MiniLM-L6 take about this time on two cores.
LEAST_SECONDS = 0.014

# Tokens of the batches that are measured at start, and of each sequence in them. If a batch but the first takes over
# `_LONG` seconds, no larger one is measured. The best of `_REPEATED` measurements counts; short batches, which anything
# disturbs, are repeated more often.
_MEASURED = (16, 256, 1024, 8192)
_MEASURED_LENGTH, _LONG = 32, 0.02
_REPEATED = (8, 4, 2, 2)


class Speed:
    """Estimates the seconds of a batch: a fixed cost `start`, plus a cost `per_token` as in a large batch."""

    def __init__(self, start: float = 0.0, per_token: float = 0.0) -> None:
        self._start = start
        self._per_token = per_token
        self._correction = 1.0

    def seconds(self, tokens: float) -> float:
        return self._correction * (self._start + tokens * self._per_token)

    def tokens_within(self, seconds: float, most: int) -> int:
        """Returns the tokens, at most `most`, of the largest batch within an estimated time.

        If the fixed cost leaves little time, the batch gets the number of tokens that take the same time as the fixed
        cost.
        """
        if self.seconds(most) <= seconds or not self._per_token:
            return most
        left = seconds / self._correction - self._start
        return min(max(int(left / self._per_token), ceil(self._start / self._per_token), 1), most)

    def worthwhile(self, most: int) -> int:
        """Returns the tokens, at most `most`, of the smallest batch with a small share of fixed cost.

        Batches grow if the machine turns out faster than measured, as after a start beside other work; if it turns out
        slower, they keep their size: smaller ones would be slower still for each token.
        """
        share = _START_SHARE / (1 - _START_SHARE)
        if self._start >= share * most * self._per_token:
            return most
        least = LEAST_SECONDS / min(self._correction, 1.0)
        return min(ceil(max(self._start / share, least) / self._per_token), most)

    def observe(self, tokens: float, seconds: float) -> None:
        """Corrects the estimate by a batch, both costs alike; in `tokens`, layers that texts share count once."""
        if estimated := self._correction * (self._start + tokens * self._per_token):
            ratio = min(seconds / estimated, _MOST_SLOWER)
            self._correction = max(self._correction * (1 + _SMOOTHING * (ratio - 1)), _MOST_FASTER)


def measure_speed(base: Base, rows: Rows) -> Speed:
    """Runs a few batches of the bare base on the calling thread; under a second in all on most machines."""
    sizes: list[int] = []
    seconds: list[float] = []
    for tokens, repeated in zip(_MEASURED, _REPEATED, strict=True):
        # At least two sizes: the smallest batch is nearly all fixed cost, and does not show the cost of a token.
        if len(sizes) > 1 and seconds[-1] > _LONG:
            break
        sizes.append(tokens)
        seconds.append(min(run_bare(base, rows, tokens) for _ in range(repeated)))
    per_token = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
    if per_token <= 0:
        # The device was disturbed, or takes the same time for all of these batches; later batches will correct it.
        return Speed(seconds[-1] / 2, seconds[-1] / 2 / sizes[-1])
    # The fixed cost must not be 0, because corrections scale it: at least a tenth of the smallest batch.
    speed = Speed(max(seconds[0] - sizes[0] * per_token, seconds[0] / 10), per_token)
    logger.info("this machine takes %.3g s for a batch of %d tokens", speed.seconds(sizes[-1]), sizes[-1])
    return speed


def run_bare(base: Base, rows: Rows, tokens: int = _MEASURED[0]) -> float:
    """Computes a batch of the bare base, which no delta can break; returns its seconds."""
    length = min(_MEASURED_LENGTH, tokens, base.config.max_length)
    count = tokens // length
    ids = np.random.default_rng(0).integers(0, base.config.vocab_size, [count, length])
    inputs = Sequences.of([tokens_of_ids(row) for row in ids.tolist()])
    started = time.perf_counter()
    batch = pack(base, inputs, [BASE_ROW] * count)
    encode(base, rows, batch)
    if base.device.type == "cuda":
        torch.cuda.synchronize(base.device)
    return time.perf_counter() - started
