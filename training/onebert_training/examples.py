"""The cells of one split to examples: texts with their gold answers, or the first bad row."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.tokens import Span, Text
from onebert_store.errors import InvalidData
from onebert_store.manifest import MAX_LABELS, SPAN_LABELS, TaskType
from onebert_training.cells import AMBIGUOUS, Columns, find_columns, index_of, plain, several
from onebert_training.spans import GoldAnswer, answers_of
from onebert_training.tables import Source, Table
from onebert_training.words import spans_of, tags_of, words_of

REGRESSION_LABEL = "score"
MAX_NUMBER = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Split:
    """Examples of one split.

    Attributes:
        texts: the inputs, a text or a pair each.
        gold: [n] int64 label indices, [n, C] float32 zeros and ones, or [n] float32 numbers, by task type; for a token
            task the label index of every word of every text, for a span task the acceptable answers to every question.
        words: of a token task, where every word lies in its text.
    """

    texts: tuple[Text, ...]
    gold: Any
    words: tuple[tuple[Span, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: NDArray[np.int64]) -> "Split":
        """The examples at these places."""
        places = indices.tolist()
        return Split(
            tuple(self.texts[i] for i in places),
            self.gold[indices] if isinstance(self.gold, np.ndarray) else tuple(self.gold[i] for i in places),
            tuple(self.words[i] for i in places) if self.words else (),
        )

    def plain_gold(self) -> list[Any]:
        """Gold answers as JSON can hold them."""
        return self.gold.tolist() if isinstance(self.gold, np.ndarray) else list(self.gold)


class Cells:
    """The text and label cells of one split, before they are known to be good.

    Args:
        by_index: what `cells_are_indices` says of all splits.
    """

    def __init__(self, split: str, table: Table, columns: Columns, read: Source, by_index: bool | None) -> None:
        texts, label = find_columns(split, table, columns)
        self.where = split
        self.texts = [table[name] for name in texts]
        self.names = read.label_names.get(label) or read.label_names.get("")
        self.labels = table[label]
        self.by_index = by_index

    def label_names(self, task_type: TaskType) -> tuple[str, ...]:
        """The source's label names, else the distinct labels here in order."""
        if task_type == "regression":
            return (REGRESSION_LABEL,)
        if task_type == "span":
            return tuple(SPAN_LABELS)
        if self.names is not None:
            return self.names
        found = {name for row in range(len(self.labels)) for name in self._names(row, task_type)}
        if len(found) > MAX_LABELS:
            raise InvalidData(f"the labels have {len(found)} different values; a task has at most {MAX_LABELS}")
        # int() refuses thousands of digits with an error of its own; no label is that long.
        if all(name.isdecimal() and len(name) < 1000 for name in found):
            return tuple(sorted(found, key=lambda name: (int(name), name)))
        return tuple(sorted(found))

    def split(self, task_type: TaskType, labels: tuple[str, ...]) -> Split:
        """Texts and gold answers; raises InvalidData with the first bad row."""
        rows = range(len(self.labels))
        if task_type == "span":
            texts = tuple(self._text(row) for row in rows)
            return Split(texts, tuple(self._answers(row, text) for row, text in enumerate(texts)))
        index = {name: i for i, name in enumerate(labels)}
        if task_type == "token":
            words = [self._words(row) for row in rows]
            tags = tuple(self._tags(row, len(words[row]), index) for row in rows)
            return Split(tuple(map(" ".join, words)), tags, tuple(map(spans_of, words)))
        gold = [self._gold(row, task_type, index) for row in rows]
        return Split(
            tuple(self._text(row) for row in rows),
            np.array(gold, dtype=np.int64 if task_type == "single_label" else np.float32),
        )

    def _bad(self, row: int, problem: str) -> InvalidData:
        return InvalidData(f"{self.where} row {row + 1}: {problem}")

    def _text(self, row: int) -> Text:
        cells = [column[row] for column in self.texts]
        for cell in cells:
            if not isinstance(cell, str) or not cell.strip() or not _is_unicode(cell):
                raise self._bad(row, "the text is empty or not a text")
        return cells[0] if len(cells) == 1 else (cells[0], cells[1])

    def _words(self, row: int) -> list[str]:
        if len(self.texts) == 2:
            raise InvalidData("a token task has one column of words, not a pair of texts; say which with --text")
        words = words_of(self.texts[0][row])
        if not words or not all(words) or not all(map(_is_unicode, words)):
            raise self._bad(row, "the words are missing, or one is empty or not a text")
        return words

    def _tags(self, row: int, words: int, index: Mapping[str, int]) -> tuple[int, ...]:
        tags = tuple(self._place(row, name, index) for name in self._names(row, "token"))
        if len(tags) != words:
            raise self._bad(row, f"{words} words have {len(tags)} tags")
        return tags

    def _answers(self, row: int, text: Text) -> tuple[GoldAnswer, ...]:
        if isinstance(text, str):
            raise InvalidData("a span task has a question and a context; say which with --text and --text-pair")
        try:
            answers = answers_of(self.labels[row])
        except ValueError as error:
            raise self._bad(row, str(error)) from None
        if any(not text[1].startswith(answer, start) for start, answer in answers):
            raise self._bad(row, "an answer's text is not at its answer_start in the context")
        return answers

    def _gold(self, row: int, task_type: TaskType, index: Mapping[str, int]) -> Any:
        if task_type == "regression":
            return self._number(row)
        places = [self._place(row, name, index) for name in self._names(row, task_type)]
        if task_type == "single_label":
            return places[0]
        return [float(place in places) for place in range(len(index))]

    def _number(self, row: int) -> float:
        try:
            value = float(self.labels[row])
        except (TypeError, ValueError, OverflowError):
            value = math.nan
        # It is kept as float32, where more would be infinite.
        if not abs(value) <= MAX_NUMBER:
            raise self._bad(row, "the label is not a number, or too large")
        return value

    def _names(self, row: int, task_type: TaskType) -> list[str]:
        """The label names of a row."""
        cell = self.labels[row]
        cells = tags_of(cell) if task_type == "token" else several(cell) if task_type == "multi_label" else [cell]
        return [self._name(row, cell) for cell in cells]

    def _name(self, row: int, cell: Any) -> str:
        spelled = plain(cell)
        if not spelled:
            raise self._bad(row, "there is no label")
        if self.by_index is None:
            raise InvalidData(AMBIGUOUS)
        if self.names is None or (spelled in self.names and not self.by_index):
            return spelled
        if (place := index_of(spelled, self.names)) is not None:
            return self.names[place]
        raise self._bad(row, f"no label has the name or index {spelled[:40]!r}")

    def _place(self, row: int, name: str, index: Mapping[str, int]) -> int:
        if name not in index:
            raise self._bad(row, f"the label {name[:40]!r} is not one of the {len(index)} known")
        return index[name]


def _is_unicode(text: str) -> bool:
    """Whether the text has no half surrogate pairs, which JSON can spell and a tokenizer cannot read."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
