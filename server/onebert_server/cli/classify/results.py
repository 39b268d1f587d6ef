"""The results of `onebert classify`: JSON lines for scripts, a table for people."""

import json
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from onebert_server.cli.classify.texts import TextRow
from onebert_server.client import AnswerSpan, LabeledSpan, TaskResult
from onebert_server.client.questions import fields_of_result
from onebert_store.command import console
from onebert_store.file.strict_json import printable

HEADS = {"answers": ("answer",), "entities": ("entity", "label"), "words": ("word", "label")}
# Optional fields of an answer, shown if the task or the request has them.
MORE = ("labels", "abstained", "energy", "windows")
# The most words shown of an explanation.
MAX_EFFECTS = 3
GAP = 2


def json_line(row: TextRow, result: TaskResult) -> str:
    """An object with the line of standard input, text, version and answer."""
    place = {"line": row.line} if row.line else {}
    return json.dumps({**place, **row.texts, **fields_of_result(result, row.input)}, ensure_ascii=False)


class ResultTable:
    """A table printed piecewise as results arrive; the terminal and the first piece determine its widths."""

    def __init__(self, inputs: Sequence[TextRow], first: Sequence[TaskResult], top_k: int | None) -> None:
        self._top_k = top_k
        kinds = ("answers", "entities", "words")
        self._kind = next((kind for kind in kinds if getattr(first[0], kind) is not None), None)
        self._more = [name for name in MORE if any(getattr(result, name) is not None for result in first)]
        scores = "score" if top_k is None else "scores"
        self._explained = any(result.explanation is not None for result in first)
        owed = ["owed to"] if self._explained else []
        self._heads = (*HEADS.get(self._kind or "", ("label",)), scores, *self._more, *owed)
        rows = [row for row_input, result in zip(inputs, first, strict=True) for row in self._rows(result, row_input)]
        # Output to a pipe or a file is never truncated.
        self._cut = console.out.width < console.UNLIMITED
        room = max(console.out.width, 40)
        self._widths = [min(max(map(len, column)), room // 3) for column in zip(self._heads, *rows, strict=True)]
        rest = room - sum(self._widths) - GAP * len(self._widths)
        self._text_width = max(rest, 10) if self._cut else max(len(_text(row, None)) for row in inputs)
        self._began = False

    def print(self, inputs: Sequence[TextRow], results: Sequence[TaskResult]) -> None:
        """Prints one row per input; for token and span tasks, one row per finding below the input's text."""
        table = Table(box=None, show_header=not self._began, pad_edge=False, padding=(0, GAP, 0, 0))
        for name, width in (("text", self._text_width), *zip(self._heads, self._widths, strict=True)):
            max_width = width if self._cut else None
            table.add_column(name, min_width=width, max_width=max_width, no_wrap=name == "text", overflow="fold")
        for row_input, result in zip(inputs, results, strict=True):
            text = _text(row_input, self._text_width if self._cut else None)
            for place, row in enumerate(self._rows(result, row_input)):
                table.add_row("" if place else text, *row)
        console.out.print(table)
        self._began = True

    def _rows(self, result: TaskResult, row_input: TextRow) -> list[tuple[str, ...]]:
        """At least one row; the first one has the fields of the whole answer."""
        extras = tuple(_cell(getattr(result, name)) for name in self._more)
        if self._kind is None:
            owed = (_largest_effects(result, row_input),) if self._explained else ()
            return [(printable(str(result.label)), self._scores(result), *extras, *owed)]
        # Offsets refer to a pair's second text.
        source = [*row_input.texts.values()][-1]
        spans = [_finding(each, source) for each in getattr(result, self._kind)]
        spans = spans or [("",) * (len(self._heads) - len(extras))]
        return [(*row, *(("",) * len(extras) if place else extras)) for place, row in enumerate(spans)]

    def _scores(self, result: TaskResult) -> str:
        if self._top_k is None:
            return f"{result.score:.3f}"
        return ", ".join(f"{printable(name)} {score:.3f}" for name, score in (result.scores or {}).items())


def _largest_effects(result: TaskResult, row: TextRow) -> str:
    """The words with the largest effects; words of a pair's second text are marked."""
    words = sorted(result.explanation.words if result.explanation else (), key=lambda word: -abs(word.effect))
    texts = ((row.texts[word.field][word.start : word.end], word) for word in words[:MAX_EFFECTS])
    of = {"text_pair": " (second text)"}
    return ", ".join(f"{printable(word)}{of.get(effect.field, '')} {effect.effect:+z.3f}" for word, effect in texts)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(printable, value)) or "none"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _text(row: TextRow, limit: int | None) -> str:
    text = " | ".join(row.texts.values())
    return printable(text, len(text) if limit is None else limit)


def _finding(span: LabeledSpan | AnswerSpan, source: str) -> tuple[str, ...]:
    label: Any = getattr(span, "label", None)
    labels = () if label is None else (printable(label),)
    return printable(source[span.start : span.end]), *labels, f"{span.score:.3f}"
