"""Label Studio's exports as rows: what people answered to each task in one control of the labeling interface."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from onebert_store.errors import InvalidData
from onebert_store.file.strict_json import printable
from onebert_store.tables.cells import plain
from onebert_store.tables.columns import LABEL_COLUMNS, Columns, find_label
from onebert_store.tables.spans import have_spans, spans_in
from onebert_store.tables.table import Table, describe_bad_rows
from onebert_store.tables.tables import Source
from onebert_store.tables.text.json_rows import parse_json

LABEL = "label"


def answers_of(annotations: Any) -> list[dict[str, Any]]:
    """Returns each person's answers by the control's name, as JSON-MIN writes them; skipped tasks are left out.

    An answer is `{"choices": names}`, or a list of regions with labels as `spans_in` reads them.
    """
    people = list[dict[str, Any]]()
    for annotation in annotations if isinstance(annotations, list) else ():
        result = annotation.get("result") if isinstance(annotation, dict) else None
        if not isinstance(result, list) or annotation.get("was_cancelled"):
            continue
        answers = dict[str, Any]()
        for part in result:
            value = part.get("value") if isinstance(part, dict) else None
            if not isinstance(value, dict) or (kind := part.get("type")) not in ("labels", "choices"):
                continue
            answer = answers.setdefault(str(part.get("from_name")), [] if kind == "labels" else {"choices": []})
            if kind == "labels" and isinstance(answer, list):
                answer.append(value)
            elif kind == "choices" and isinstance(answer, dict):
                answer["choices"] += [name for name in choices_in(value) if isinstance(name, str)]
        people.append(answers)
    return people


def choices_in(value: Any) -> list[Any]:
    """Returns the choices of a cell: a list, one name, or `{"choices": …}` of either, also as JSON."""
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
    controls = table
    if {"data", "annotations"} <= {*table} and any(isinstance(cell, dict) for cell in table["data"]):
        table, controls = _of_tasks(table)
    name = find_label(controls, columns)
    if name is None and columns.label is None:
        kinds = {column: kind for column in controls if (kind := _kind(controls[column]))}
        if len(kinds) > 1:
            several = ", ".join(f"{printable(each, 40)} ({kind})" for each, kind in kinds.items())
            raise InvalidData(f"{table.origin} has the answers of several controls, {several}; say which with --label")
        name = next(iter(kinds), None)
    exported = {"id", "annotation_id"} <= {*table}
    if name is None or not (kind := _kind(table[name]) or ("choices" if exported else "")):
        return table
    answers = table[name] if kind == "labels" else [choices_in(cell) or None for cell in table[name]]
    if exported:
        if kind == "labels":  # an annotation without regions is of a text without entities
            annotated = zip(answers, table["annotation_id"], strict=True)
            answers = [regions or [] if plain(number) else None for regions, number in annotated]
        table, answers = _agreed(table, name, answers)
    if kind == "choices" and all(answer is None or len(answer) == 1 for answer in answers):
        answers = [answer and answer[0] for answer in answers]
    return table.with_column(columns.label or (name if name in LABEL_COLUMNS else LABEL), answers, ())


def _kind(cells: Sequence[Any]) -> str:
    return "choices" if any(map(_has_choices, cells)) else "labels" if have_spans(cells) else ""


def _of_tasks(table: Table) -> tuple[Table, Table]:
    """Returns tasks as JSON-MIN has them, a row for each annotation, and the columns of controls alone."""
    rows, places, controls = list[tuple[dict[str, Any], dict[str, Any]]](), list[int](), set[str]()
    for row, (task, cell) in enumerate(zip(table["data"], table["annotations"], strict=True)):
        fields = task if isinstance(task, dict) else {}
        people: list[Any] = answers_of(cell) if fields else []
        for number, answers in enumerate(people or [None]):
            annotation = {"annotation_id": None if answers is None else number}
            key = {"id": json.dumps(task, sort_keys=True, default=str)}
            rows.append((fields, (answers or {}) | annotation | key))
            places.append(row)
            controls.update(answers or ())
    # A field of the data with a control's name is nobody's answer.
    merged = [{name: cell for name, cell in fields.items() if name not in controls} | other for fields, other in rows]
    names = dict.fromkeys(name for row in merged for name in row)
    cells = {name: [row.get(name) for row in merged] for name in names}
    repeated = len({*places}) - len({*cells.get("id", ())})
    notes = [f"{repeated:,} tasks have the data of another one, and count as the same task"] if repeated else []
    flat = Table(cells, table.origin, table.places.take(places), notes=[*table.notes, *notes], kinds=table.kinds)
    return flat, flat.only(controls)


def _agreed(table: Table, name: str, given: Sequence[Any]) -> tuple[Table, list[Any]]:
    """Returns the first row of each task that everybody answered alike, and it; `given` of each row."""
    rows, answers, bad = dict[str, int](), dict[str, list[Any]](), dict[str, list[int]]()
    for row, (key, answer) in enumerate(zip(map(plain, table["id"]), given, strict=True)):
        task = key or f"row {row}"
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
    return str(spans or (sorted(map(plain, answer)) if isinstance(answer, list) else answer))
