"""Label Studio's exports as rows: what people answered to each task in one control of the labeling interface."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from onebert_store.errors import InvalidData
from onebert_store.file.fields import spelling
from onebert_store.file.strict_json import printable
from onebert_store.tables.accepted import accepted
from onebert_store.tables.cells import plain
from onebert_store.tables.columns import LABEL_COLUMNS, Columns, find_label, find_texts
from onebert_store.tables.spans import answer_key, have_spans
from onebert_store.tables.table import Table, describe_bad_rows
from onebert_store.tables.tables import Source
from onebert_store.tables.text.json_rows import parse_json

LABEL = "label"
_ENDS, _OF_REGIONS = ("start", "end", "startOffset"), "choices of regions"


def answers_of(annotations: Any) -> list[dict[str, Any]]:
    """Returns each person's answers by the control's name, as JSON-MIN writes them; skipped tasks are left out.

    An answer is `{"choices": names}`, or a list of regions with labels as `spans_in` reads them. `are_of_regions` tells
    choices that are of a region of the text.
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
                answer |= {name: value[name] for name in _ENDS if name in value}
        people.append(answers)
    return people


def choices_in(value: Any) -> list[Any]:
    """Returns the choices of a cell, each once: a list, one name, or `{"choices": …}` of either, also as JSON."""
    if _has_choices(value):
        value = _decoded(value).get("choices")
    names = dict[str, Any]()
    for name in value if isinstance(value, list) else [value] if plain(value) else []:
        names.setdefault(spelling(plain(name)), name)
    return [*names.values()]


def are_of_regions(value: Any) -> bool:
    """Returns whether choices are of regions of a text, and so no labels of the text.

    JSON-MIN writes the one choice of a region without its place, in a list with those of other regions.
    """
    value = _decoded(value)
    parts = value if isinstance(value, list) else [value]
    named = sum(isinstance(part, str) for part in parts)
    return named > 1 or any(
        isinstance(part, dict) and "choices" in part and not part.keys().isdisjoint(_ENDS) for part in parts
    )


def _has_choices(cell: Any) -> bool:
    cell = _decoded(cell)
    return isinstance(cell, dict) and "choices" in cell


def _decoded(cell: Any) -> Any:
    if isinstance(cell, str) and cell.startswith(('{"choices"', "[{", '["')):
        with suppress(ValueError):
            return parse_json(cell)
    return cell


def plain_source(read: Source, columns: Columns) -> Source:
    """Returns a source whose tables are `accepted` rows of texts, with one label column where Label Studio wrote them.

    The label is the control that `columns` names or that has a usual name, else the only one. A task without an answer
    there, or with several people's different ones, is left out and counted in a note.

    Raises InvalidData if there are several controls, or no task has an answer.
    """
    tables = {split: accepted(_plain(table, columns), columns) for split, table in read.tables.items()}
    return replace(read, tables=tables)


def _plain(table: Table, columns: Columns) -> Table:
    controls = table
    if {"data", "annotations"} <= {*table} and any(isinstance(cell, dict) for cell in table["data"]):
        table, controls = _of_tasks(table)
    exported = {"id", "annotation_id"} <= {*table}
    name = find_label(controls, columns)
    if name is None and columns.label is None:
        kinds = {column: kind for column in controls if (kind := _kind(controls[column], exported))}
        of_texts = [column for column, kind in kinds.items() if kind != _OF_REGIONS]
        if len(of_texts) > 1:
            several = ", ".join(f"{printable(each, 40)} ({kind})" for each, kind in kinds.items())
            raise InvalidData(f"{table.origin} has the answers of several controls, {several}; say which with --label")
        name = next(iter(of_texts or kinds), None)
    if name is None or not (kind := _kind(table[name], exported) or ("choices" if exported else "")):
        return table
    if kind == _OF_REGIONS:
        raise InvalidData(f"{table.origin}: {printable(name, 40)} has {_OF_REGIONS}, which are no labels of the text")
    answers = table[name] if kind == "labels" else [choices_in(cell) or None for cell in table[name]]
    if exported:
        if kind == "labels":  # an annotation without regions is of a text without entities
            annotated = zip(answers, table["annotation_id"], strict=True)
            answers = [regions or [] if plain(number) else None for regions, number in annotated]
        texts = find_texts(table, columns) or ()
        table, answers = _agreed(table, name, answers, table[texts[0]] if len(texts) == 1 else [None] * table.rows)
    if kind == "choices" and all(answer is None or len(answer) == 1 for answer in answers):
        answers = [answer and answer[0] for answer in answers]
    return table.with_column(columns.label or (name if name in LABEL_COLUMNS else LABEL), answers, ())


def _kind(cells: Sequence[Any], exported: bool) -> str:
    if exported and any(map(are_of_regions, cells)):
        return _OF_REGIONS
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


def _agreed(table: Table, name: str, given: Sequence[Any], texts: Sequence[Any]) -> tuple[Table, list[Any]]:
    """Returns the first row of each task that everybody answered alike, and it; `given` of each row and its text."""
    rows, answers, bad = dict[str, int](), dict[str, list[Any]](), dict[str, list[int]]()
    for row, (key, answer) in enumerate(zip(map(plain, table["id"]), given, strict=True)):
        task = key or f"row {row}"
        rows.setdefault(task, row)
        answers.setdefault(task, []).extend([] if answer is None else [answer])
    for task, several in answers.items():
        alike = len({answer_key(answer, texts[rows[task]]) for answer in several})
        if alike != 1:
            bad.setdefault("people disagree" if alike else "nobody answered", []).append(rows.pop(task))
    reasons = describe_bad_rows(bad, table.where)
    if not rows:
        raise InvalidData(f"no task has an answer in {printable(name, 40)}: {reasons}")
    notes = [f"{len(answers) - len(rows):,} of {len(answers):,} tasks are left out: {reasons}"] if bad else []
    return table.take([*rows.values()]).with_notes(notes), [answers[task][0] for task in rows]
