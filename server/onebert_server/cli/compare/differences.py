"""Differences between two versions: manifests, tensors, and answers to the same rows."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onebert_encoder.answering.results import answer_of
from onebert_server.cli.compare.labeled import LabeledRow
from onebert_server.client import TaskResult
from onebert_server.client.many import error_of
from onebert_store.comparison import Outcomes, ShortAnswer, compare, p_value, verdict
from onebert_store.file.delta import Delta
from onebert_store.tables.slices import group

# Shown elsewhere, or long and useless to a reader.
_LEFT_OUT: dict[str, Any] = {"golden": True, "reference": True, "training": {"fingerprint"}}


@dataclass(frozen=True)
class AnsweredRow:
    """One row and both versions' answers."""

    row: LabeledRow
    a: ShortAnswer
    b: ShortAnswer

    @property
    def flipped(self) -> bool:
        return self.a != self.b

    @property
    def in_words(self) -> dict[str, str | None]:
        """Both answers and the right one, None if the row has none, as a record has them."""
        right = None if self.row.right is None else answer_in_words(self.row.right)
        return {"a": answer_in_words(self.a), "b": answer_in_words(self.b), "right": right}


def manifest_differences(a: Delta, b: Delta) -> dict[str, tuple[Any, Any]]:
    """Manifest fields that differ, by dotted name, with both values; None for an absent field."""
    both = [dict(_flat(delta.manifest.model_dump(exclude=_LEFT_OUT))) for delta in (a, b)]
    names = dict.fromkeys([*both[0], *both[1]])
    return {name: (both[0].get(name), both[1].get(name)) for name in names if both[0].get(name) != both[1].get(name)}


def sizes(delta: Delta, file_bytes: int) -> dict[str, int]:
    """The size of a delta: file bytes, tensors, numbers."""
    numbers = sum(tensor.size for tensor in delta.tensors.values())
    return {"bytes": file_bytes, "tensors": len(delta.tensors), "numbers": numbers}


def answer_in_words(answer: ShortAnswer) -> str:
    """An answer as a string for people and for JSON."""
    match answer:
        case None:
            return "abstained"
        case float(number):
            return f"{number:.3f}"
        case str(label):
            return label
    spans = (f"{label[0] if label else 'answer'} {start}–{end}" for start, end, *label in map(tuple, answer))
    return "|".join(map(str, answer)) if answer and isinstance(answer[0], str) else "; ".join(spans)


def answered(rows: Sequence[LabeledRow], results: Sequence[TaskResult], task_types: Sequence[str]) -> list[AnsweredRow]:
    """Pairs rows with the results of both versions: two for each row, one after the other.

    Raises the error of the first result without an answer, with the row's place.
    """
    several = "multi_label" in task_types
    answers = []
    for row, *both in zip(rows, results[::2], results[1::2], strict=True):
        sides = [_answer(row, *side) for side in zip(both, task_types, strict=True)]
        answers.append(AnsweredRow(row, *((side,) if several and isinstance(side, str) else side for side in sides)))
    return answers


def _answer(row: LabeledRow, result: TaskResult, task_type: str) -> ShortAnswer:
    if result.error is not None:
        error = error_of(result.error)
        error.detail = f"{row.where}: {error.detail}"
        raise error
    return answer_of(task_type, result)


def compared(rows: Sequence[AnsweredRow], task_types: Collection[str]) -> dict[str, Any]:
    """Compares the answers of two versions to the same rows.

    Returns:
        `rows`; `flips`, the number of differing answers; `labels`, the counts of each answer if these are labels of
        whole texts; `slices`, the rows and flips of each value of each sliced column. If every row has a right answer,
        also how many of the rows of each label and value each version answers rightly, `right` for each version,
        `only_a` and `only_b`, the rows that one version alone answers rightly, and `p` and `verdict` of b beside a
        (`onebert_store.comparison`).
    """
    labeled = bool(rows) and all(row.row.right is not None for row in rows)
    counted_rows = rows if {*task_types} <= {"single_label", "multi_label"} else []
    counts = {side: Counter(answer_in_words(getattr(row, side)) for row in counted_rows) for side in ("a", "b")}
    names = sorted({*counts["a"], *counts["b"], *(answer_in_words(row.row.right) for row in counted_rows if labeled)})
    counted: dict[str, Any] = {
        "rows": len(rows),
        "flips": sum(row.flipped for row in rows),
        "labels": {name: {side: counts[side][name] for side in ("a", "b")} for name in names},
        "slices": {column: _slices(rows, column, labeled) for column in (rows[0].row.cells if rows else ())},
    }
    if not labeled:
        return counted
    for name in names:
        counted["labels"][name] |= _part([row for row in rows if answer_in_words(row.row.right) == name], labeled)
    outcomes = _outcomes(rows)
    only = {"only_a": outcomes.losses, "only_b": outcomes.wins}
    return counted | {"right": _right(outcomes), **only, "p": p_value(outcomes), "verdict": verdict(outcomes)}


def _slices(rows: Sequence[AnsweredRow], column: str, labeled: bool) -> dict[str, dict[str, int]]:
    groups = group([row.row.cells[column] for row in rows])
    return {value: _part([rows[at] for at in places], labeled) for value, places in groups.items()}


def _part(rows: Sequence[AnsweredRow], labeled: bool) -> dict[str, int]:
    right = {f"right_{side}": count for side, count in _right(_outcomes(rows)).items()} if labeled else {}
    return {"rows": len(rows), "flips": sum(row.flipped for row in rows)} | right


def _outcomes(rows: Sequence[AnsweredRow]) -> Outcomes:
    return compare((row.row.right, row.b, row.a) for row in rows)


def _right(outcomes: Outcomes) -> dict[str, int]:
    return {"a": outcomes.both + outcomes.losses, "b": outcomes.both + outcomes.wins}


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        name = f"{before}.{key}" if before else key
        if isinstance(item, Mapping) and item:
            yield from _flat(item, name)
        else:
            yield name, list(item) if isinstance(item, tuple) else item
