"""The results of `onebert classify`: JSON lines for scripts, a table for people, files of rows with their answers."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from rich.table import Table

from onebert_server.cli.classify.remote import Answer, answer_of
from onebert_server.cli.classify.rows import Row, Rows
from onebert_server.client import AnswerSpan, LabeledSpan, TaskResult
from onebert_store.command import console
from onebert_store.errors import InvalidSettings
from onebert_store.file.strict_json import shown
from onebert_store.tables.writers import WRITERS, ParquetWriter

if TYPE_CHECKING:
    import pyarrow

HEADS = {"answers": ("answer",), "entities": ("entity", "label"), "words": ("word", "label")}
# Optional fields of an answer, shown if the task or the request has them.
MORE = ("labels", "abstained", "energy", "windows")
# The most words shown of an explanation.
OWED = 3
GAP = 2
# Fields of an answer, in order; the file has a column for each field that the first answer has.
_SAID = "label score labels scores words entities answers abstained energy truncated windows".split()
_ALWAYS = ("version", "digest", "error")


def json_line(row: Row, result: TaskResult) -> str:
    """An object with place, text, version and answer."""
    # A table's id may be a date or another value without a JSON form.
    return json.dumps({**row.place, **row.halves, **answer_of(row, result)}, ensure_ascii=False, default=str)


class ResultTable:
    """A table printed piecewise as results arrive; the terminal and the first piece determine its widths."""

    def __init__(self, asked: Sequence[Row], first: Sequence[TaskResult], top_k: int | None) -> None:
        self._top_k = top_k
        found = ("answers", "entities", "words")
        self._kind = next((kind for kind in found if getattr(first[0], kind) is not None), None)
        self._more = [name for name in MORE if any(getattr(one, name) is not None for one in first)]
        scores = "score" if top_k is None else "scores"
        self._explained = any(one.explanation is not None for one in first)
        owed = ["owed to"] if self._explained else []
        self._heads = (*HEADS.get(self._kind or "", ("label",)), scores, *self._more, *owed)
        rows = [row for one, result in zip(asked, first, strict=True) for row in self._rows(result, one)]
        # Output to a pipe or a file is never truncated.
        self._cut = console.out.width < console.UNLIMITED
        room = max(console.out.width, 40)
        self._widths = [min(max(map(len, column)), room // 3) for column in zip(self._heads, *rows, strict=True)]
        left = room - sum(self._widths) - GAP * len(self._widths)
        self._text_width = max(left, 10) if self._cut else max(len(_text(one, None)) for one in asked)
        self._began = False

    def print(self, asked: Sequence[Row], results: Sequence[TaskResult]) -> None:
        """Prints one row per input; for token and span tasks, one row per finding below the input's text."""
        table = Table(box=None, show_header=not self._began, pad_edge=False, padding=(0, GAP, 0, 0))
        for name, width in (("text", self._text_width), *zip(self._heads, self._widths, strict=True)):
            most = width if self._cut else None
            table.add_column(name, min_width=width, max_width=most, no_wrap=name == "text", overflow="fold")
        for one, result in zip(asked, results, strict=True):
            text = _text(one, self._text_width if self._cut else None)
            for place, row in enumerate(self._rows(result, one)):
                table.add_row("" if place else text, *row)
        console.out.print(table)
        self._began = True

    def _rows(self, result: TaskResult, asked: Row) -> list[tuple[str, ...]]:
        """At least one row; the first one has the fields of the whole answer."""
        more = tuple(_said(getattr(result, name)) for name in self._more)
        if self._kind is None:
            owed = (_owed(result, asked),) if self._explained else ()
            return [(shown(str(result.label)), self._scores(result), *more, *owed)]
        # Offsets refer to a pair's second text.
        source = [*asked.halves.values()][-1]
        found = [_finding(each, source) for each in getattr(result, self._kind)]
        found = found or [("",) * (len(self._heads) - len(more))]
        return [(*row, *(("",) * len(more) if place else more)) for place, row in enumerate(found)]

    def _scores(self, result: TaskResult) -> str:
        if self._top_k is None:
            return f"{result.score:.3f}"
        return ", ".join(f"{shown(name)} {score:.3f}" for name, score in (result.scores or {}).items())


def _owed(result: TaskResult, asked: Row) -> str:
    """The words with the largest effects; words of a pair's second text are marked."""
    words = sorted(result.explanation.words if result.explanation else (), key=lambda one: -abs(one.effect))
    said = ((asked.halves[one.field][one.start : one.end], one) for one in words[:OWED])
    of = {"text_pair": " (second text)"}
    return ", ".join(f"{shown(word)}{of.get(one.field, '')} {one.effect:+z.3f}" for word, one in said)


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _text(one: Row, most: int | None) -> str:
    text = " | ".join(one.halves.values())
    return shown(text, len(text) if most is None else most)


def _finding(found: LabeledSpan | AnswerSpan, source: str) -> tuple[str, ...]:
    label: Any = getattr(found, "label", None)
    labels = () if label is None else (shown(label),)
    return shown(source[found.start : found.end]), *labels, f"{found.score:.3f}"


def write_answers(
    file: BinaryIO, name: str, task: str, rows: Rows, answered: Iterable[tuple[Row, Answer]]
) -> Mapping[str, int]:
    """Writes rows with their answers or errors; the first answer determines the columns, and `task` is their prefix.

    Returns the counts of `rows`, of those `without` an answer, and of those with a `cut` text. Raises InvalidSettings
    if an answer's column has the name of an input column.
    """
    held, answered, first = list[tuple[Row, Answer]](), iter(answered), None
    for row, answer in answered:
        held.append((row, answer))
        if isinstance(answer, TaskResult):
            first = answer
            break
    said = [*(one for one in _SAID if first is not None and getattr(first, one) is not None), *_ALWAYS]
    mine = [f"{task}_{one}" for one in said]
    if twice := [one for one in mine if one in rows.columns]:
        raise InvalidSettings(f"two columns would be called {twice[0][:80]}")
    make = WRITERS[Path(name).suffix.lower()]
    # Only Parquet needs types, and `_types` imports pyarrow. Untyped input columns become text.
    types = _types(task, rows.schema) if make is ParquetWriter else {}
    writer, counts = make(file, (*rows.columns, *mine), types), Counter[str]()
    for row, answer in chain(held, answered):
        fields = {"error": answer} if isinstance(answer, str) else answer_of(row, answer)
        writer.add({**row.cells, **{column: fields.get(one) for column, one in zip(mine, said, strict=True)}})
        counts["rows"] += 1
        counts["without"] += isinstance(answer, str)
        counts["cut"] += fields.get("truncated") is True
    writer.end()
    return counts


def _types(task: str, schema: "pyarrow.Schema | None") -> dict[str, Any]:
    import pyarrow  # noqa: PLC0415

    text, number, place = pyarrow.string(), pyarrow.float64(), pyarrow.int32()
    stretch = [("start", place), ("end", place), ("text", text)]
    words = pyarrow.list_(pyarrow.struct([*stretch, ("label", text), ("score", number)]))
    answers = {
        "score": number,
        "labels": pyarrow.list_(text),
        "scores": pyarrow.map_(text, number),
        "words": words,
        "entities": words,
        "answers": pyarrow.list_(pyarrow.struct([*stretch, ("score", number)])),
        "abstained": pyarrow.bool_(),
        "energy": number,
        "truncated": pyarrow.bool_(),
        "windows": place,
        "version": place,
    }
    kinds = {column.name: column.type for column in schema or ()}
    kinds = {name: kind.value_type if pyarrow.types.is_dictionary(kind) else kind for name, kind in kinds.items()}
    return kinds | {f"{task}_{name}": kind for name, kind in answers.items()}
