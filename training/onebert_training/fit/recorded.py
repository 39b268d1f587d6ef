"""A run's steps on a GPU: encoder forward, encoder backward, and the optimizer as CUDA graphs.

A step of few texts has thousands of small operations, most of them in `fold`; launched one by one they take the host
far longer than the GPU (decision 13). Pooling, head and loss read the labels of a batch and stay outside.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.layout.dropout import NO_DROPOUT, Dropout
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.choose import choose_kernels
from onebert_encoder.maths.encode import Gathered, Pass, passes_of, run_passes
from onebert_encoder.maths.fixed import FixedBatch, fits, longest_of
from onebert_encoder.maths.graphs import CudaRecorder
from onebert_encoder.maths.rows import Head, Rows, stack_rows
from onebert_training.fit.run import Run

logger = logging.getLogger("onebert.training")

# The third batch of a kind is recorded. Recordings keep memory: inputs, outputs, and what the graphs work in.
_RECORDED_AT, _MOST_RECORDINGS = 3, 32


def has_graphs(device: torch.device) -> bool:
    """Whether launches on this device can be recorded."""
    return device.type == "cuda"


def records(run: Run) -> bool:
    """Whether a run's steps are recorded: on a GPU with fast kernels, from the embeddings on.

    The plain kernels read the lengths of a batch's sequences on the host.
    """
    whole = has_graphs(run.base.device) and run.plan.lowest_layer == 0 and run.plan.recordable
    return whole and choose_kernels(run.base, NO_DROPOUT).name == "gpu"


@dataclass(frozen=True)
class Kind:
    """The batches of one recording: their tokens with the filling, and a bound for the tokens of a sequence."""

    size: int
    longest: int


class RecordedSteps:
    """The steps of one run, for one thread.

    Attributes:
        grads: of the run's leaves, for all recordings, so that none keeps memory for its own.
    """

    def __init__(self, run: Run, values: Mapping[str, Tensor], recorder: CudaRecorder) -> None:
        self._run, self._values, self._recorder = run, values, recorder
        self._leaves = [value for value in values.values() if value.requires_grad]
        self.grads = [torch.zeros_like(leaf) for leaf in self._leaves]
        self._seen: Counter[Kind] = Counter()
        self._recordings: dict[Kind, _Recording] = {}
        self._replayed: tuple[_Recording, list[Tensor]] | None = None
        self._update: Callable[[], None] | None = None
        self._can_record = True

    def encode(self, batch: Batch, dropout: Dropout) -> tuple[Tensor, Head]:
        """`encode` of a batch of one row, the run's, and its folded head, for a loss that `gradients` takes."""
        recording = self._recording_of(batch, dropout)
        if recording is None:
            return self._encode(batch, dropout)
        recording.fixed.load(batch)
        recording.dropout.seeds.copy_(dropout.seeds)
        recording.forward()
        outputs = [one.detach().requires_grad_() for one in recording.outputs]
        self._replayed = recording, outputs
        return outputs[0], recording.head.with_tensors(outputs[1:])

    def gradients(self, loss: Tensor) -> Sequence[Tensor]:
        """The gradients of the run's leaves, from the loss of what `encode` has returned last."""
        replayed, self._replayed = self._replayed, None
        if replayed is None:
            return torch.autograd.grad(loss, self._leaves, allow_unused=True, materialize_grads=True)
        recording, outputs = replayed
        found = torch.autograd.grad(loss, outputs, allow_unused=True, materialize_grads=True)
        torch._foreach_copy_(list(recording.given), list(found))
        recording.backward()
        return self.grads

    def update(self, run: Callable[[], None]) -> None:
        """Records `run`, which is always the same and reads `grads`, at the first call, and replays it."""
        if self._update is None and self._can_record:
            try:
                self._update = self._recorder.record(run, rehearse=False)
            except Exception as error:  # drivers may raise anything
                self._give_up(error)
        (self._update or run)()

    def _recording_of(self, batch: Batch, dropout: Dropout) -> "_Recording | None":
        if not self._can_record or not fits(batch):
            return None
        kind = Kind(len(batch.word), longest_of(batch, self._run.base.config.max_length))
        self._seen[kind] += 1
        if self._seen[kind] == _RECORDED_AT and self._has_room:
            try:
                self._recordings[kind] = self._record(kind, batch, dropout)
            except Exception as error:  # drivers may raise anything
                self._give_up(error)
        return self._recordings.get(kind)

    @property
    def _has_room(self) -> bool:
        return len(self._recordings) < _MOST_RECORDINGS and self._recorder.has_room

    def _give_up(self, error: Exception) -> None:
        logger.info("steps of %s are not recorded: %s: %s", self._run.method.text, type(error).__name__, error)
        self._can_record = False
        self._recordings.clear()

    def _encode(self, batch: Batch, dropout: Dropout) -> tuple[Tensor, Head]:
        view, rows = self._fold()
        x = run_passes(passes_of(view, rows, batch, choose_kernels(view, dropout)), batch)
        return x, _head(rows)

    def _fold(self) -> tuple[Base, Rows]:
        view = self._run.view(self._values)
        return view, stack_rows(view, [self._run.fold_to_train(view, self._values)])

    def _record(self, kind: Kind, batch: Batch, dropout: Dropout) -> "_Recording":
        fixed, dropout = FixedBatch(self._run.base, kind.size, kind.longest), replace(dropout)
        fixed.load(batch)
        with torch.no_grad():
            view, rows = self._fold()
        # Uploads cannot be recorded: the indices of the one row, the same for every batch, are made before.
        gathered = Gathered.of(rows, fixed.stage, choose_kernels(view, dropout))
        _ = dropout.seeds  # likewise
        found: list[tuple[list[Tensor], Head]] = []

        def forward() -> None:
            view, rows = self._fold()
            kernels = choose_kernels(view, dropout)
            own = replace(gathered, branches=kernels.join(rows.branches, fixed.stage))
            head = _head(rows)
            x = run_passes([Pass(view, rows, fixed.stage, own, kernels)], fixed.batch)
            found[:] = [([x, *head.tensors], head)]

        replay_forward = self._recorder.record(forward)
        [(outputs, head)] = found
        given = [torch.zeros_like(one) for one in outputs]
        trained = [(one, grad) for one, grad in zip(outputs, given, strict=True) if one.requires_grad]

        def backward() -> None:
            own, of_own = zip(*trained, strict=True)
            grads = torch.autograd.grad(own, self._leaves, of_own, allow_unused=True, materialize_grads=True)
            torch._foreach_copy_(self.grads, list(grads))

        replay_backward = self._recorder.record(backward, rehearse=False)
        kept = [one.detach() for one in outputs]
        head, replays = head.with_tensors(kept[1:]), (replay_forward, replay_backward)
        return _Recording(fixed, dropout, gathered, head, kept, given, *replays)


def _head(rows: Rows) -> Head:
    [head] = rows.heads
    return cast(Head, head)


@dataclass(frozen=True)
class _Recording:
    """Fixed inputs, which must live as long as the graphs that read them, outputs with their gradients, and replays."""

    fixed: FixedBatch
    dropout: Dropout
    gathered: Gathered
    head: Head
    outputs: Sequence[Tensor]
    given: Sequence[Tensor]
    forward: Callable[[], None]
    backward: Callable[[], None]
