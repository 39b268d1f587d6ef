"""Reads rows for versions to answer: texts, kept cells, places, and right answers if the data have them."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from onebert_encoder.answering.results import Labeled, Labeling, answer_of
from onebert_encoder.answering.stretches import is_bio, join_entities
from onebert_server.client import Input
from onebert_store.comparison import ShortAnswer, answer_from
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import Manifest, TaskType
from onebert_store.file.strict_json import printable
from onebert_store.tables.cells import BadRow, plain
from onebert_store.tables.columns import (
    Columns,
    columns_of_all,
    named,
    require_label,
    require_texts,
    texts_of_rows,
    trained_columns,
)
from onebert_store.tables.label_studio import plain_source
from onebert_store.tables.labels import LabelNames, find_names, has_labels, is_unlabeled, join_label_columns
from onebert_store.tables.spans import spans_in, spans_of, tagged, words_of
from onebert_store.tables.table import Table, describe_bad_rows
from onebert_store.tables.tables import Source, choose_split


@dataclass(frozen=True)
class LabeledRow:
    """A row: its input, its place, its right answer (None without one), and its cells in kept columns."""

    input: Input
    place: dict[str, Any]
    right: ShortAnswer
    cells: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The input for people."""
        return self.input if isinstance(self.input, str) else " | ".join(self.input)

    @property
    def where(self) -> str:
        """The place for people: `line 7`, or `a.csv line 7` if there are several files."""
        unit, number = [*self.place.items()][-1]
        return f"{printable(self.place['file'])} {unit} {number}" if "file" in self.place else f"{unit} {number}"


def labeled_rows(
    read: Source, split: str | None, columns: Columns, manifests: Sequence[Manifest], keep: Sequence[str] = ()
) -> list[LabeledRow]:
    """The rows of one split, read as by `onebert evaluate`; right answers if all versions answer by labels or a number.

    A column that is not named is the one of the versions' training.

    `split` None is test, or validation if there is no test; a label column that is not named may be missing. `keep` are
    further columns. Raises InvalidData for a missing split, column or text, and for a label that no version has.
    """
    task_type = _label_type(manifests)
    trained = [trained_columns(manifest) for manifest in manifests]
    read = plain_source(read, columns if columns.label else trained[0])
    columns = columns_of_all(columns, trained, next(iter(read.tables.values())))
    separators = [columns.label_separator, *(each.label_separator for each in trained)]
    columns = replace(columns, label_separator=next(filter(None, separators), None))
    read, columns = join_label_columns(read, columns, task_type)
    name = choose_split(read, split)
    table = read.tables[name]
    if columns.label is not None:
        require_label(table, columns)
    known, names = {label for manifest in manifests for label in manifest.labels}, None
    if task_type is not None and has_labels(table, columns):
        names = find_names(read, columns, task_type, known)[name]
    words = task_type == "token" and (names is None or names.words is None)
    cells_of_texts = [table[name] for name in require_texts(table, columns)]
    if words:
        cells_of_texts = [[" ".join(words_of(cell) or ()) for cell in column] for column in cells_of_texts]
    texts = texts_of_rows(table, cells_of_texts)
    right: Sequence[ShortAnswer] = [None] * len(texts)
    if task_type is not None and names is not None:
        right = _right(table, texts, require_label(table, columns), _Reader(names, known))
    cells = {name: table[_column(table, name)] for name in keep}
    return [
        LabeledRow(text, table.place(row), right[row], {name: plain(cells[name][row]) for name in keep})
        for row, text in enumerate(texts)
    ]


def _label_type(manifests: Sequence[Manifest]) -> TaskType | None:
    """The task type for reading labels; None if the versions' answers are of several kinds, or of questions."""
    types = {manifest.task_type for manifest in manifests}
    if types in ({"regression"}, {"token"}):
        return types.pop()
    if not types <= {"single_label", "multi_label"}:
        return None
    return "multi_label" if "multi_label" in types else "single_label"


class _Reader(NamedTuple):
    """Reads label cells as answers; `known` are the labels that a version has."""

    names: LabelNames
    known: Collection[str]

    def answer(self, text: Input, cell: Any) -> ShortAnswer:
        """The right answer in a cell; raises BadRow."""
        if self.names.task_type != "multi_label" and is_unlabeled(cell, self.names.task_type):
            # A list without spans says that the text has no entity.
            return () if self.names.task_type == "token" and spans_in(cell) == [] else None
        if self.names.task_type == "regression":
            return self._number(cell)
        if self.names.task_type == "token":
            return self._entities(str(text), cell)
        labels = answer_from(list(self.names.known(cell, self.known)))
        return (
            labels if self.names.task_type == "multi_label" or not isinstance(labels, tuple) else cast(str, labels[0])
        )

    def _number(self, cell: Any) -> float:
        try:
            number = self.names.form.number(cell)
        except (ValueError, TypeError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise BadRow("the label is not a number")
        return number

    def _entities(self, text: str, cell: Any) -> ShortAnswer:
        """The entities of spans, or of one tag for each word, in the form of a version's answer."""
        if self.names.words is None:
            tags, places = self.names.known(cell, self.known), spans_of(text.split(" "))
        else:
            words = tagged(text, spans_in(cell) or (), self.names.words, self.known)
            tags, places = words, words.places
        if len(tags) != len(places):
            raise BadRow(f"{len(places)} words have {len(tags)} tags")
        labeled = [Labeled(*place, tag, 1.0) for place, tag in zip(places, tags, strict=True)]
        entities = join_entities(labeled) if is_bio([*self.known]) else None
        return answer_of("token", Labeling(labeled, entities))


def _right(table: Table, texts: Sequence[Input], label: str, reader: _Reader) -> list[ShortAnswer]:
    answers, bad = list[ShortAnswer](), dict[str, list[int]]()
    for row, (text, cell) in enumerate(zip(texts, table[label], strict=True)):
        try:
            answers.append(reader.answer(text, cell))
        except BadRow as problem:
            bad.setdefault(str(problem), []).append(row)
    if bad:
        raise InvalidData(describe_bad_rows(bad, table.where))
    return answers


def _column(table: Table, name: str) -> str:
    if (column := named(table, name)) is None:
        raise InvalidData(f"the data have no column {printable(name)}")
    return column
