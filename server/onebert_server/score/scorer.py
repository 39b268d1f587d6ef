"""Scores windows: tokenized once for all tasks, packed into batches of texts of one length, answered in columns."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow
import torch

from onebert_encoder.answering.answer import TASK_TYPES
from onebert_encoder.base.base import Base
from onebert_encoder.maths.fold import fold, to_tensors
from onebert_encoder.text.tokens import Cut, CutOnce, Pieces, Text
from onebert_server.engine.bank import Bank
from onebert_server.engine.passes import Passes
from onebert_server.engine.request import Item, Launched
from onebert_server.runtime import load_bank
from onebert_server.score.columns import Computed, columns, finite_rows
from onebert_server.score.job import ERROR
from onebert_server.score.reading import Window
from onebert_server.score.tasks import ScoredTask
from onebert_server.settings import Settings
from onebert_server.versions.proof import Proof
from onebert_store.errors import InvalidInput
from onebert_store.file.delta import check


@dataclass(frozen=True, eq=False)
class Asked:
    """One text for one task: its sequence, and where the logits go."""

    item: Item
    task: int
    text: int


@dataclass(frozen=True, eq=False)
class Prepared:
    """A window that is ready to be computed.

    Attributes:
        window: the rows.
        texts: the texts, each once.
        of_row: of each row, which of the texts it has; None for a row without one.
        pieces: of each text, where a per-token task needs them to answer.
        kept: of each task and text, what the task reads of the text.
        truncated: of each task and text, whether that is less than all.
        batches: what is computed together.
        logits: of each task and text, once they are there.
    """

    window: Window
    texts: Sequence[Text]
    of_row: Sequence[int | None]
    pieces: Sequence[Pieces]
    kept: Sequence[Sequence[Cut]]
    truncated: Sequence[Sequence[bool]]
    batches: Sequence[Sequence[Asked]]
    logits: Sequence[Any] = field(repr=False)


class Scorer:
    """Tasks on their base.

    Args:
        base: the frozen encoder.
        bank: its bank, into which the tasks are put.
        tasks: any number.
        batch_tokens: tokens that a batch computes, at most; a batch depends on its window alone.
        all_scores: whether the score of every label is kept.

    Raises:
        InvalidDelta: a task is not for this base, or does not answer here as its trainer saw it.
        BankFull: there is no memory for all tasks.
    """

    def __init__(
        self, base: Base, bank: Bank, tasks: Sequence[ScoredTask], batch_tokens: int, all_scores: bool
    ) -> None:
        self.base = base
        self._tasks, self._batch_tokens, self._all_scores = tasks, batch_tokens, all_scores
        self._passes = Passes(base, bank)
        self._longest = max(task.delta.manifest.max_length for task in tasks)
        self._placed = any(task.delta.manifest.per_token for task in tasks)
        with torch.inference_mode():
            self._slots = [self._install(bank, task) for task in tasks]

    def prepare(self, window: Window) -> Prepared:
        """Tokenizes a window's texts, and lays out its batches; computes nothing."""
        number = {text: i for i, text in enumerate(dict.fromkeys(t for t in window.rows.texts if t is not None))}
        texts = list(number)
        tokenizer = self.base.tokenizer
        pieces = tokenizer.split(texts, self._longest, placed=self._placed)
        lengths = [task.delta.manifest.max_length for task in self._tasks]
        fitted = {most: [tokenizer.fit(one, most) for one in pieces] for most in set(lengths)}
        cut_short = {
            most: [tokenizer.measure(*one)[1] for one in zip(pieces, kept, strict=True)]
            for most, kept in fitted.items()
        }
        kept = [fitted[most] for most in lengths]
        return Prepared(
            window=window,
            texts=texts,
            of_row=[None if text is None else number[text] for text in window.rows.texts],
            pieces=pieces if self._placed else (),
            kept=kept,
            truncated=[cut_short[most] for most in lengths],
            batches=self._batches(pieces, kept),
            logits=[self._room(task, len(texts)) for task in self._tasks],
        )

    def compute(self, windows: Iterable[Prepared]) -> Iterator[Prepared]:
        """Computes windows in order; on a GPU a batch is launched before the one before it is read."""
        flying: deque[tuple[Prepared, Sequence[Asked], Launched | None]] = deque()
        for window in windows:
            for batch in window.batches or ((),):
                with torch.inference_mode():
                    launched = self._passes.launch([asked.item for asked in batch]) if batch else None
                flying.append((window, batch, launched))
                if len(flying) > 1:
                    yield from self._land(*flying.popleft())
        while flying:
            yield from self._land(*flying.popleft())

    def answers(self, computed: Prepared) -> pyarrow.Table:
        """What is written of a window: ids, the columns of every task, and why a row has no answer."""
        rows, errors = computed.window.rows, list(computed.window.rows.errors)
        made: dict[str, pyarrow.Array] = {}
        index = pyarrow.array(computed.of_row, pyarrow.int64())
        for number, task in enumerate(self._tasks):
            of_texts = columns(task, self._computed(computed, number), self._all_scores)
            made |= {name: column.take(index) for name, column in of_texts.items()}
            finite = finite_rows(computed.logits[number])
            if not finite.all():
                for row, text in enumerate(computed.of_row):
                    if text is not None and not finite[text]:
                        errors[row] = f"the answer of {task.name} is not a finite number"
        made[ERROR] = pyarrow.array(errors, pyarrow.string())
        return pyarrow.table({**dict(zip(rows.ids.column_names, rows.ids.columns, strict=True)), **made})

    def _install(self, bank: Bank, task: ScoredTask) -> int:
        delta = task.delta
        check(delta, self.base.spec)
        slot = bank.install(fold(self.base, to_tensors(delta, self.base), delta.manifest.pooling))
        proof = Proof.of(self.base, delta)
        proof.check(list(self._passes.launch([Item(tokens, slot) for tokens in proof.tokens]).read()))
        return slot

    def _batches(self, pieces: Sequence[Pieces], kept: Sequence[Sequence[Cut]]) -> list[list[Asked]]:
        """Texts by length; the tasks of a text side by side, so that they share what is equal for them."""
        cuts = CutOnce(self.base.tokenizer)
        batches: list[list[Asked]] = [[]]
        room = self._batch_tokens
        for text in sorted(range(len(pieces)), key=lambda text: sum(map(len, pieces[text].ids))):
            items = [Item(cuts.of(pieces[text], kept[task][text]), slot) for task, slot in enumerate(self._slots)]
            costs = self._passes.costs(items)
            # A text's tasks are not torn apart unless they are more than a batch.
            if sum(costs) > room and sum(costs) <= self._batch_tokens:
                batches.append([])
                room = self._batch_tokens
            for task, (item, cost) in enumerate(zip(items, costs, strict=True)):
                if cost > room and batches[-1]:
                    batches.append([])
                    room = self._batch_tokens
                batches[-1].append(Asked(item, task, text))
                room -= cost
        return [batch for batch in batches if batch]

    def _land(self, window: Prepared, batch: Sequence[Asked], launched: Launched | None) -> Iterator[Prepared]:
        if launched is not None:
            for asked, logits in zip(batch, launched.read(), strict=True):
                window.logits[asked.task][asked.text] = logits
        if not window.batches or batch is window.batches[-1]:
            yield window

    def _room(self, task: ScoredTask, texts: int) -> Any:
        manifest = task.delta.manifest
        return [None] * texts if manifest.per_token else np.empty((texts, len(manifest.labels)), np.float32)

    def _computed(self, prepared: Prepared, number: int) -> Computed:
        per_token = self._tasks[number].delta.manifest.per_token
        cut = partial(self.base.tokenizer.cut, align=True)
        cuts = zip(prepared.pieces, prepared.kept[number], strict=True) if per_token else ()
        alignments = [alignment for one in cuts if (alignment := cut(*one).alignment) is not None]
        return Computed(prepared.logits[number], prepared.texts, alignments, prepared.truncated[number])


def open_scorer(settings: Settings, tasks: Sequence[ScoredTask], batch_tokens: int, all_scores: bool) -> Scorer:
    """Loads the base, and the tasks on it; computes on the calling thread, see `load_bank`."""
    base, bank = load_bank(settings)
    return Scorer(base, bank, tasks, batch_tokens, all_scores)


def require_takes(tasks: Sequence[ScoredTask], pair: bool) -> None:
    """Refuses tasks that do not take such inputs.

    Raises:
        InvalidInput: names the task, and what it takes.
    """
    for task in tasks:
        kind = TASK_TYPES[task.delta.manifest.task_type]
        if not kind.takes(pair):
            raise InvalidInput(f"{task.name} is a {task.delta.manifest.task_type} task and takes {kind.question}")
