"""Label Studio's exports as rows: what people answered to each task in one control of the labeling interface."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from onebert_store.errors import InvalidData
from onebert_store.file.strict_json import printable
from onebert_store.tables.cells import plain
from onebert_store.tables.columns import LABEL_COLUMNS, Columns, find_label
from onebert_store.tables.spans import have_spans, spans_in
from onebert_store.tables.table import Table, describe_bad_rows
from onebert_store.tables.tables import Source
from onebert_store.tables.text.json_rows import parse_json

LABEL = "label"


class Answer(NamedTuple):
    """One person's answer in a control: names of choices, or regions with labels (as `spans_in` reads them)."""

    kind: str
    values: list[Any]


def answers_of(annotations: Any) -> list[dict[str, Answer]]:
    """Returns each person's answers by the control's name; skipped tasks and whatever is no annotation are left out."""
    people = list[dict[str, Answer]]()
    for annotation in annotations if isinstance(annotations, list) else ():
        result = annotation.get("result") if isinstance(annotation, dict) else None
        if not isinstance(result, list) or annotation.get("was_cancelled"):
            continue
        answers = dict[str, Answer]()
        for part in result:
            value = part.get("value") if isinstance(part, dict) else None
            if isinstance(value, dict) and part.get("type") in ("choices", "labels"):
                answer = answers.setdefault(str(part.get("from_name")), Answer(part["type"], []))
                names = (name for name in _choices(value) if isinstance(name, str))
                answer.values.extend(names if answer.kind == "choices" else [value])
        people.append(answers)
    return people


def _choices(value: Any) -> list[Any]:
    """The choices of a region or a cell: a list, one name, or `{"choices": …}` of either, also as JSON."""
    if _has_choices(value):
        value = (parse_json(value) if isinstance(value, str) else value).get("choices")
    return value if isinstance(value, list) else [value] if plain(value) else []


def _has_choices(cell: Any) -> bool:
    if isinstance(cell, str) and cell.startswith('{"choices"'):
        with suppress(ValueError):
            cell = parse_json(cell)
    return isinstance(cell, dict) and "choices" in cell


def plain_source(read: Source, columns: Columns) -> Source:
    """Returns a source whose tables are rows of texts with one label column, where Label Studio wrote them.

    The label is the control that `columns` names or that has a usual name, else the only one. A task without an answer
    there, or with several people's different ones, is left out and counted in a note.

    Raises InvalidData if there are several controls, or no task has an answer.
    """
    return replace(read, tables={split: _plain(table, columns) for split, table in read.tables.items()})


def _plain(table: Table, columns: Columns) -> Table:
    if {"data", "annotations"} <= {*table} and any(isinstance(cell, dict) for cell in table["data"]):
        return _of_tasks(table, columns)
    name = find_label(table, columns)
    if name is None and columns.label is None:
        name = _control({column: kind for column in table if (kind := _kind(table[column]))}, columns, table.origin)
    if name is None:
        return table
    exported = {"id", "annotation_id"} <= {*table}  # JSON-MIN and CSV: a row for each annotation
    if not (kind := _kind(table[name]) or ("choices" if exported else "")):
        return table
    answers = [_choices(cell) or None if kind == "choices" else cell or [] for cell in table[name]]
    if exported:
        table, answers = _agreed(table, name, zip(map(plain, table["id"]), range(table.rows), answers, strict=True))
    elif kind == "labels":
        answers = table[name]
    return table.with_column(columns.label or (name if name in LABEL_COLUMNS else LABEL), _names(answers, kind), ())


def _kind(cells: Sequence[Any]) -> str:
    return "choices" if any(map(_has_choices, cells)) else "labels" if have_spans(cells) else ""


def _control(kinds: Mapping[str, str], columns: Columns, origin: str) -> str | None:
    """Returns the control that is named, else the only one; raises InvalidData if there are several."""
    usual = (columns.label,) if columns.label is not None else (*LABEL_COLUMNS, *(kinds if len(kinds) == 1 else ()))
    name = next((each for each in usual if each in kinds), None)
    if name is None and columns.label is None and kinds:
        controls = ", ".join(f"{printable(each, 40)} ({kind})" for each, kind in kinds.items())
        raise InvalidData(f"{origin} has the answers of several controls, {controls}; say which with --label")
    return name


def _of_tasks(table: Table, columns: Columns) -> Table:
    tasks = zip(table["data"], table["annotations"], strict=True)
    people = [answers_of(cell) if isinstance(task, dict) else [] for task, cell in tasks]
    kinds = {name: answer.kind for answers in people for each in answers for name, answer in each.items()}
    if (name := _control(kinds, columns, table.origin)) is None:
        return table
    # An annotation without regions is of a text without entities.
    nothing: Any = [] if kinds[name] == "labels" else None
    given = [
        (json.dumps(task, sort_keys=True, default=str), row, (each[name].values if name in each else None) or nothing)
        for row, (task, answers) in enumerate(zip(table["data"], people, strict=True))
        for each in answers or [{name: Answer("", [])}]
    ]
    table, answers = _agreed(table, name, given)
    names = dict.fromkeys(field for task in table["data"] for field in task)
    fields = {field: [task.get(field) for task in table["data"]] for field in names}
    fields[columns.label or LABEL] = _names(answers, kinds[name])
    return Table(fields, table.origin, table.places, notes=table.notes, kinds=table.kinds)


def _agreed(table: Table, name: str, given: Iterable[tuple[str, int, Any]]) -> tuple[Table, list[Any]]:
    """Returns the first row of each task that is answered in one way, and the answer; `given`: task, row and answer."""
    rows, answers, bad = dict[str, int](), dict[str, list[Any]](), dict[str, list[int]]()
    for task, row, answer in given:
        rows.setdefault(task, row)
        answers.setdefault(task, []).extend([] if answer is None else [answer])
    for task, several in answers.items():
        if fault := "nobody answered" if not several else "people disagree" if len({*map(_order, several)}) > 1 else "":
            bad.setdefault(fault, []).append(rows.pop(task))
    reasons = describe_bad_rows(bad, table.where)
    if not rows:
        raise InvalidData(f"no task has an answer in {printable(name, 40)}: {reasons}")
    notes = [f"{len(answers) - len(rows):,} of {len(answers):,} tasks are left out: {reasons}"] if bad else []
    return table.take([*rows.values()]).with_notes(notes), [answers[task][0] for task in rows]


def _order(answer: Any) -> str:
    spans: list[Any] | None = spans_in(answer)
    return str(spans or sorted(map(plain, answer)))


def _names(answers: Sequence[Any], kind: str) -> list[Any]:
    """The answers; if they are choices and none has several, the names themselves."""
    single = kind == "choices" and all(answer is None or len(answer) == 1 for answer in answers)
    return [answer[0] if answer and single else answer for answer in answers]
