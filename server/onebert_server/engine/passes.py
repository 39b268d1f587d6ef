"""Forward passes over any mix of tasks, for the engine and for `onebert score`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onebert_encoder.answering.scores import Logits
from onebert_encoder.base.base import Base
from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.forward import Way
from onebert_encoder.maths.graphs import CudaRecorder, Graphs
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from onebert_server.engine.bank import Bank
from onebert_server.engine.host_copy import HostCopy


@dataclass(frozen=True)
class Item:
    """One sequence and the bank's slot of the row that answers it."""

    tokens: Tokens
    slot: int


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

    def launch(self, items: Sequence[Item], way: Way | None = None) -> Launched:
        """Packs the items and starts the device on them; never waits for a GPU. See `compute_logits`."""
        slots = np.array([item.slot for item in items])
        inputs = Sequences.of([item.tokens for item in items])
        batch = pack(self._base, inputs, slots, self._bank.diverges_at[slots])
        logits = compute_logits(self._base, self._bank.rows, batch, graphs=self._graphs, way=way)
        return Launched(logits.sizes, logits.lengths, HostCopy(logits.values), batch.computed_tokens)

    def costs(self, items: Sequence[Item]) -> list[int]:
        """Returns the computed tokens per item: a text that an earlier item has costs only the layers that differ."""
        layers, texts, costs = self._base.config.num_layers, set[int](), list[int]()
        for item in items:
            shared = int(self._bank.diverges_at[item.slot]) if id(item.tokens) in texts else 0
            texts.add(id(item.tokens))
            costs.append(max(len(item.tokens) * (layers - shared) // layers, 1))
        return costs
