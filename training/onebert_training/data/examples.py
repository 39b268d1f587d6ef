"""Turns the cells of one split into examples (texts, words or spans with gold answers), and reports bad rows."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.text.tokens import Span, Text
from onebert_store.errors import InvalidData
from onebert_store.file.fields import MAX_NUMBER
from onebert_store.file.manifest import MAX_LABELS, SPAN_LABELS, TaskType
from onebert_store.file.strict_json import printable
from onebert_store.tables.cells import BadRow
from onebert_store.tables.columns import Columns, find_columns
from onebert_store.tables.labels import NO_LABEL, LabelNames, is_unlabeled
from onebert_store.tables.spans import TaggedWords, spans_in, spans_of, tagged, words_of
from onebert_store.tables.table import Table, describe_bad_rows
from onebert_store.tables.text.json_rows import parse_json
from onebert_store.tables.text.unicode import HALF, is_unicode, text_fault

REGRESSION_LABEL = "score"

OWN = "data"  # the origin of a task's own rows; others are `more` and `feedback`

GoldAnswer = tuple[int, str]  # where the answer starts in the context, in code points, and its text

_Read = TypeVar("_Read")


@dataclass(frozen=True)
class Split:
    """Examples of one split.

    Attributes:
        texts: one text or one pair per example.
        gold: single_label [n] int64 label indices, multi_label [n, labels] float32 zeros and ones, regression [n]
            float32; token a tuple of label indices per text, one for each word; span a tuple of acceptable answers per
            question.
        words: the span of every word in its text; token tasks only.
        soft: [n, labels] float32, a teacher's probabilities: the loss learns them in place of `gold`; None without one.
        origins: of each row, `OWN` or where it was added from; empty if all rows are the task's own.
    """

    texts: tuple[Text, ...]
    gold: Any
    words: tuple[tuple[Span, ...], ...] = ()
    soft: NDArray[np.float32] | None = None
    origins: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: NDArray[np.int64]) -> "Split":
        rows = indices.tolist()
        return Split(
            tuple(self.texts[i] for i in rows),
            self.gold[indices] if isinstance(self.gold, np.ndarray) else tuple(self.gold[i] for i in rows),
            tuple(self.words[i] for i in rows) if self.words else (),
            None if self.soft is None else self.soft[indices],
            tuple(self.origins[i] for i in rows) if self.origins else (),
        )

    @property
    def own_rows(self) -> NDArray[np.int64]:
        """Indices of the task's own rows, which alone are measured."""
        return np.flatnonzero(np.array(self.origins) == OWN) if self.origins else np.arange(len(self))

    @property
    def own(self) -> "Split":
        return self.take(self.own_rows) if self.origins else self

    def from_origin(self, origin: str) -> "Split":
        return replace(self, origins=(origin,) * len(self))

    def label_counts(self, task_type: TaskType, labels: int = 0) -> NDArray[np.int64] | None:
        """[labels], number of rows (words in a token task) with each label; None if the answers are not labels."""
        if task_type == "multi_label":
            return np.count_nonzero(self.gold, axis=0) if len(self) else np.zeros(labels, int)
        if task_type not in ("single_label", "token"):
            return None
        indices = self.gold if task_type == "single_label" else [tag for tags in self.gold for tag in tags]
        return np.bincount(np.asarray(indices, dtype=np.int64), minlength=labels)

    def joined(self, other: "Split") -> "Split":
        arrays = isinstance(self.gold, np.ndarray)
        gold = np.concatenate([self.gold, other.gold]) if arrays else (*self.gold, *other.gold)
        soft = None if self.soft is None or other.soft is None else np.concatenate([self.soft, other.soft])
        parts = [split.origins or (OWN,) * len(split) for split in (self, other)]
        origins = (*parts[0], *parts[1]) if self.origins or other.origins else ()
        return Split((*self.texts, *other.texts), gold, (*self.words, *other.words), soft, origins)

    def plain_gold(self) -> list[Any]:
        """Gold answers as plain Python values, ready for JSON."""
        return self.gold.tolist() if isinstance(self.gold, np.ndarray) else list(self.gold)


class Cells:
    """The unchecked text and label cells of one split.

    Attributes:
        table: the rows, but those whose spans cannot be used, which `left_out` counts in a note.
        used_rows: those of the table that `split` made examples of.
    """

    def __init__(self, table: Table, columns: Columns, names: LabelNames, trained: Collection[str] = ()) -> None:
        """`trained` are the labels of a trained task; raises InvalidData if no row's spans can be used."""
        texts, label = find_columns(table, columns)
        self.names, self.left_out = names, list[str]()
        if names.words is None:
            self.table, self.labels = table, table[label]
        else:
            self.table, self.labels = self._with_tags(table, table[texts[0]], table[label], trained)
        self.texts = [self.table[name] for name in texts]
        self.used_rows: list[int] = []
        self._bad: dict[str, list[int]] | None = None

    def _with_tags(
        self, table: Table, texts: Sequence[Any], cells: Sequence[Any], trained: Collection[str]
    ) -> tuple[Table, list[Any]]:
        """Returns the rows whose spans can be used, and the tags of their words in place of the spans."""
        labels, unusable = dict[int, Any](), dict[str, list[int]]()
        for row, (text, cell) in enumerate(zip(texts, cells, strict=True)):
            try:
                labels[row] = self._in_place_of(cell, text, trained)
            except BadRow as problem:
                unusable.setdefault(str(problem), []).append(row)
        if unusable:
            reasons = describe_bad_rows(unusable, table.where)
            if not labels:
                raise InvalidData(f"no row has spans that can be used: {reasons}")
            count = f"{len(cells) - len(labels):,} of {len(cells):,}"
            self.left_out.append(f"{count} rows have spans that cannot be used, and are left out: {reasons}")
        return table.take([*labels]) if unusable else table, [*labels.values()]

    def _in_place_of(self, cell: Any, text: Any, trained: Collection[str]) -> Any:
        if (spans := spans_in(cell)) is None and not is_unlabeled(cell, "token"):
            raise BadRow("the label is no list of spans with start, end and label")
        if spans is None or self.names.words is None or not isinstance(text, str):
            return cell
        return tagged(text, spans, self.names.words, trained)

    def label_names(self) -> tuple[str, ...]:
        """The source's label names, else the sorted distinct labels of this split (as numbers, if all are decimal)."""
        if self.names.task_type == "regression":
            return (REGRESSION_LABEL,)
        if self.names.task_type == "span":
            return tuple(SPAN_LABELS)
        if self.names.labels is not None:
            return self.names.labels
        names = set[str]()
        for cell in self.labels:
            with suppress(BadRow):  # `split` reports it together with other bad rows
                names.update(self.names.in_cell(cell))
        if len(names) > MAX_LABELS:
            raise InvalidData(f"the labels have {len(names)} different values; a task has at most {MAX_LABELS}")
        if all(map(str.isdecimal, names)):
            return tuple(sorted(names, key=lambda name: (int(name), name)))
        return tuple(sorted(names))

    def notes(self) -> list[str]:
        notes = [self.names.form.note] if self.names.form.note else []
        # Empty label cells are strings in text files only.
        if self.names.task_type == "multi_label" and (empty := self.labels.count("")):
            notes.append(
                f"{empty:,} of {len(self.labels):,} training rows have an empty label cell and count as rows without "
                "any of the labels; --drop-unlabeled leaves them out"
            )
        return notes

    def split(self, labels: tuple[str, ...], bad: dict[str, list[int]] | None = None) -> Split:
        """Reads texts and gold answers; moves bad rows to `bad`, or refuses them if `bad` is None."""
        self._bad, task_type = bad, self.names.task_type
        if task_type == "span":
            questions = self._of_rows(self._question)
            return Split(tuple(text for text, _ in questions), tuple(answers for _, answers in questions))
        index = {name: i for i, name in enumerate(labels)}
        if task_type == "token":
            examples = self._of_rows(lambda row: self._tagged(row, index))
            texts, tags = tuple(text for text, _, _ in examples), tuple(tags for _, _, tags in examples)
            return Split(texts, tags, tuple(places for _, places, _ in examples))
        rows = self._of_rows(lambda row: (self._gold(row, index), self._text(row)))
        gold = np.array([gold for gold, _ in rows], dtype=np.int64 if task_type == "single_label" else np.float32)
        return Split(tuple(text for _, text in rows), gold)

    def _of_rows(self, read: Callable[[int], _Read]) -> list[_Read]:
        examples, bad = [], dict[str, list[int]]() if self._bad is None else self._bad
        self.used_rows = []
        for row in range(len(self.labels)):
            try:
                examples.append(read(row))
                self.used_rows.append(row)
            except BadRow as problem:
                bad.setdefault(str(problem), []).append(row)
        if bad and self._bad is None:
            note = self.names.form.note
            raise InvalidData(describe_bad_rows(bad, self.table.where) + (f"; {note}" if "--label" in note else ""))
        return examples

    def _text(self, row: int) -> Text:
        cells = [column[row] for column in self.texts]
        if why := text_fault(*cells):
            raise BadRow(why)
        return cells[0] if len(cells) == 1 else (cells[0], cells[1])

    def _tagged(self, row: int, index: Mapping[str, int]) -> tuple[str, tuple[Span, ...], tuple[int, ...]]:
        if len(self.texts) == 2:
            raise InvalidData("a token task has one column of words, not a pair of texts; say which with --text")
        cell = self.labels[row]
        if self.names.words is None:
            text, places = self._joined(row)
        else:
            text = str(self._text(row))
            if not isinstance(cell, TaggedWords):
                raise BadRow(NO_LABEL)
            places = cell.places
        tags = tuple(self._indices(row, index))
        if len(tags) != len(places):
            raise BadRow(f"{len(places)} words have {len(tags)} tags")
        return text, places, tags

    def _joined(self, row: int) -> tuple[str, tuple[Span, ...]]:
        words = words_of(self.texts[0][row])
        if not words or not all(words):
            raise BadRow("the words are missing, or one is empty or not a text")
        if not all(map(is_unicode, words)):
            raise BadRow(f"a word has {HALF}")
        return " ".join(words), spans_of(words)

    def _question(self, row: int) -> tuple[Text, tuple[GoldAnswer, ...]]:
        text = self._text(row)
        if isinstance(text, str):
            raise InvalidData("a span task has a question and a context; say which with --text and --text-pair")
        if is_unlabeled(self.labels[row], "span"):
            raise BadRow("there is no answer, and every question needs one (--drop-unlabeled leaves such rows out)")
        try:
            answers = answers_of(self.labels[row])
        except ValueError as error:
            raise BadRow(str(error)) from None
        if any(not text[1].startswith(answer, start) for start, answer in answers):
            raise BadRow("an answer's text is not at its answer_start in the context")
        return text, answers

    def _gold(self, row: int, index: Mapping[str, int]) -> Any:
        if self.names.task_type == "regression":
            return self._number(self.labels[row])
        indices = self._indices(row, index)
        if self.names.task_type == "single_label":
            return indices[0]
        return [float(i in indices) for i in range(len(index))]

    def _indices(self, row: int, index: Mapping[str, int]) -> list[int]:
        return [index[name] for name in self.names.known(self.labels[row], index)]

    def _number(self, cell: Any) -> float:
        if is_unlabeled(cell, "regression"):
            raise BadRow(NO_LABEL)
        value = self._value(cell)
        if not abs(value) <= MAX_NUMBER:
            raise BadRow(f"the label is not a number, or too large, as {self._odd!r}")
        return value

    def _value(self, cell: Any) -> float:
        try:
            return self.names.form.number(cell)
        except (TypeError, ValueError, OverflowError):
            return math.nan

    @cached_property
    def _odd(self) -> str:
        """One label that is not a number, the same for every bad row: equal messages are reported once."""
        return min(printable(str(cell), 40) for cell in self.labels if not abs(self._value(cell)) <= MAX_NUMBER)


def answers_of(cell: Any) -> tuple[GoldAnswer, ...]:
    """The distinct answers of a cell; raises ValueError for a cell of another form.

    Args:
        cell: `{"text": [...], "answer_start": [...]}` or a list of `{"text": ..., "answer_start": ...}`, or either as
            JSON.
    """
    if isinstance(cell, str):
        with suppress(ValueError):
            cell = parse_json(cell)
    if isinstance(cell, dict):
        starts, texts = cell.get("answer_start"), cell.get("text")
        if not isinstance(starts, list) or not isinstance(texts, list) or len(starts) != len(texts):
            raise ValueError("the answers have no lists text and answer_start of one length")
        answers = list(zip(starts, texts, strict=True))
    elif isinstance(cell, list) and all(isinstance(answer, dict) for answer in cell):
        answers = [(answer.get("answer_start"), answer.get("text")) for answer in cell]
    else:
        raise ValueError('the answers are not of the form {"text": [...], "answer_start": [...]}')
    if any(type(start) is not int or start < 0 or not isinstance(text, str) or not text for start, text in answers):
        raise ValueError("an answer has no text or no answer_start")
    return tuple(dict.fromkeys(answers))
