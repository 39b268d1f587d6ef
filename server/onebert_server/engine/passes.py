"""Forward passes over any mix of tasks, for the engine and for `onebert score`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.answering.scores import Logits
from onebert_encoder.base.base import Base
from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.graphs import CudaRecorder, Graphs
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.sequences import Sequences
from onebert_server.engine.banks.bank import Bank


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
