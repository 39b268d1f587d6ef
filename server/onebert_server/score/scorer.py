"""Scores windows: tokenizes once for all tasks, batches texts of similar length, and converts logits to columns."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow
import torch

from onebert_encoder.answering.scores import cut_rule
from onebert_encoder.answering.windows import window_of
from onebert_encoder.maths.batch import BASE_ROW
from onebert_encoder.maths.fold import fold_delta
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokenizer import CutOnce
from onebert_encoder.text.tokens import Alignment, Cut, Pieces, Tokens
from onebert_encoder.text.windows import window_cuts
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.host import Host, Launched
from onebert_server.score.columns import Read, columns
from onebert_server.score.reading import Window
from onebert_server.score.tasks import LoadedTask
from onebert_server.versions.residency.golden_check import GoldenCheck
from onebert_store.errors import OneBertError
from onebert_store.file import decision
from onebert_store.file.delta import require_fit
from onebert_store.file.manifest import Manifest, Pooling


@dataclass(frozen=True, eq=False)
class ScoredSequence:
    """One text (or window of it) for one task: its sequence, and the place of its logits."""

    tokens: Tokens
    slot: int
    task: int
    place: int


@dataclass(frozen=True, eq=False)
class Prepared:
    """A window that is ready to be computed.

    Attributes:
        of_row: index into the distinct texts for each row; None for a row without a usable text.
        pieces: by text; empty unless a task is per-token.
        read: by task; `answers` fills in the logits.
        launched: by batch; `compute` fills it.
    """

    window: Window
    of_row: Sequence[int | None]
    pieces: Sequence[Pieces]
    read: Sequence[Read]
    batches: Sequence[Sequence[ScoredSequence]]
    launched: list[Launched] = field(default_factory=list)


class Scorer:
    """Tasks installed in the bank of their base. Batches of at most `batch_tokens` tokens depend on their window only.

    Raises:
        InvalidDelta: a task is not for this base, or does not reproduce its golden logits.
        BankFull: memory does not hold all tasks.
    """

    def __init__(self, host: Host, tasks: Sequence[LoadedTask], batch_tokens: int, all_scores: bool) -> None:
        self.base = host.base
        self._tasks, self._batch_tokens, self._all_scores = tasks, batch_tokens, all_scores
        self._passes = host.passes
        to_end = any(window_of(task.manifest, 0) or cut_rule(task.manifest) == "ends" for task in tasks)
        self._longest = sys.maxsize if to_end else max(task.manifest.max_length for task in tasks)
        self._placed = any(task.manifest.per_token for task in tasks)
        with torch.inference_mode():
            self._slots = [self._install(host.bank, task) for task in tasks]

    def prepare(self, window: Window) -> Prepared:
        """Tokenizes a window's texts and lays out its batches, without running the model."""
        texts, of_row = window.rows.distinct()
        pieces = self.base.tokenizer.split(texts, self._longest, placed=self._placed)
        manifests = [task.manifest for task in self._tasks]
        keys = [(m.pooling, m.max_length, window_of(m, m.max_length), cut_rule(m)) for m in manifests]
        cut = {key: self._cut(pieces, *key) for key in set(keys)}
        read = [Read(texts, *cut[key], _room(m, cut[key][0])) for m, key in zip(manifests, keys, strict=True)]
        return Prepared(
            window=window,
            of_row=of_row,
            pieces=pieces if self._placed else (),
            read=read,
            batches=self._batches(pieces, read),
        )

    def _cut(
        self,
        pieces: Sequence[Pieces],
        pooling: Pooling,
        max_length: int,
        window: decision.Window | None,
        rule: decision.CutRule,
    ) -> tuple[list[Sequence[Cut]], list[bool], dict[int, str]]:
        """By text: the cuts, whether it was truncated, and why it cannot be read in windows."""
        tokenizer, refused = self.base.tokenizer.reading(pooling), dict[int, str]()
        fitted = [tokenizer.fit(text, max_length, rule) for text in pieces]
        if window is None:
            short = [tokenizer.measure(*pair)[1] for pair in zip(pieces, fitted, strict=True)]
            return [(cut,) for cut in fitted], short, refused
        cuts: list[Sequence[Cut]] = []
        for number, text in enumerate(pieces):
            try:
                cuts.append(window_cuts(tokenizer, text, window.tokens, window.overlap))
            except OneBertError as error:
                # Compute the fitted text anyway and discard its answer: every task's logits need a place for every
                # text.
                cuts.append((fitted[number],))
                refused[number] = error.detail
        return cuts, [False] * len(cuts), refused

    def compute(self, windows: Iterable[Prepared]) -> Iterator[Prepared]:
        """Launches windows in order, and yields each one after the next is launched: a GPU may still compute it."""
        before: Prepared | None = None
        for window in windows:
            with torch.inference_mode():
                for batch in window.batches:
                    inputs = Sequences.of([entry.tokens for entry in batch])
                    window.launched.append(self._passes.launch(inputs, [entry.slot for entry in batch]))
            if before is not None:
                yield before
            before = window
        if before is not None:
            yield before

    def answers(self, computed: Prepared) -> pyarrow.Table:
        """The output rows of a window: kept columns, every task's columns, and the error column.

        Waits for a GPU's logits; another thread may launch the next windows meanwhile.
        """
        for batch, launched in zip(computed.batches, computed.launched, strict=True):
            for entry, logits in zip(batch, launched.read(), strict=True):
                computed.read[entry.task].logits[entry.place] = logits
        rows, errors = computed.window.rows, list(computed.window.rows.errors)
        answers: dict[str, pyarrow.Array] = {}
        for task, read in zip(self._tasks, computed.read, strict=True):
            if task.manifest.per_token:
                read.alignments = self._aligned(computed.pieces, read.cuts)
            answers |= columns(task, read, self._all_scores)
            if not read.finite.all():
                for row, text in enumerate(computed.of_row):
                    if text is not None and not read.finite[text]:
                        errors[row] = read.refused.get(text, f"the answer of {task.name} is not a finite number")
        return rows.with_answers(answers, computed.of_row, errors)

    def _install(self, bank: Bank, task: LoadedTask) -> int:
        delta = task.delta
        if delta is None:
            return BASE_ROW
        require_fit(delta, self.base.spec)
        slot = bank.install(fold_delta(self.base, delta))
        golden_check = GoldenCheck.for_delta(self.base, delta)
        inputs = Sequences.of(golden_check.tokens)
        golden_check.compare(list(self._passes.launch(inputs, [slot] * len(golden_check.tokens)).read()))
        return slot

    def _batches(self, pieces: Sequence[Pieces], read: Sequence[Read]) -> list[list[ScoredSequence]]:
        """Batches in order of text length; a text's tasks stay together, so that they share equal computation."""
        cuts = CutOnce()
        tokenizers = [self.base.tokenizer.reading(task.manifest.pooling) for task in self._tasks]
        batches: list[list[ScoredSequence]] = [[]]
        room = self._batch_tokens
        for text in sorted(range(len(pieces)), key=lambda text: sum(map(len, pieces[text].ids))):
            entries = [
                ScoredSequence(cuts.cut(tokenizers[task], pieces[text], cut), slot, task, place)
                for task, slot in enumerate(self._slots)
                for place, cut in enumerate(read[task].cuts[text], read[task].starts[text])
            ]
            inputs = Sequences.of([entry.tokens for entry in entries])
            costs = self._passes.costs([entry.slot for entry in entries], inputs.lengths, inputs.text).tolist()
            # A text's tasks are split over batches only if they exceed a whole batch.
            needed = [sum(costs), *costs[1:]] if sum(costs) <= self._batch_tokens else costs
            for entry, cost, need in zip(entries, costs, needed, strict=True):
                if need > room and batches[-1]:
                    batches.append([])
                    room = self._batch_tokens
                batches[-1].append(entry)
                room -= cost
        return [batch for batch in batches if batch]

    def _aligned(self, pieces: Sequence[Pieces], windows: Sequence[Sequence[Cut]]) -> list[Alignment]:
        texts = zip(pieces, windows, strict=True)
        tokens = [self.base.tokenizer.cut(text, cut, align=True) for text, cuts in texts for cut in cuts]
        return [each.alignment for each in tokens if each.alignment is not None]


def _room(manifest: Manifest, cuts: Sequence[Sequence[Cut]]) -> Any:
    count = sum(map(len, cuts))
    return [None] * count if manifest.per_token else np.empty((count, len(manifest.labels)), np.float32)
