"""Differences between two versions: manifests, tensors, and answers to the same rows."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onebert_encoder.answering.results import answer_of, slices_of
from onebert_server.cli.compare.labeled import LabeledRow
from onebert_server.client import TaskResult
from onebert_server.client.many import error_of
from onebert_store.file.delta import Delta
from onebert_store.tables.slices import group

# Shown elsewhere, or long and useless to a reader.
_LEFT_OUT: dict[str, Any] = {"golden": True, "reference": True, "training": {"fingerprint"}}


@dataclass(frozen=True)
class Answered:
    """One row and both versions' answers."""

    row: LabeledRow
    a: str
    b: str

    @property
    def flipped(self) -> bool:
        return self.a != self.b

    def right(self, side: str) -> bool:
        """Whether `a` or `b` gives the row's own label."""
        return bool(getattr(self, side) == self.row.right)


def manifest_differences(a: Delta, b: Delta) -> dict[str, tuple[Any, Any]]:
    """Manifest fields that differ, by dotted name, with both values; None for an absent field."""
    both = [dict(_flat(delta.manifest.model_dump(exclude=_LEFT_OUT))) for delta in (a, b)]
    names = dict.fromkeys([*both[0], *both[1]])
    return {name: (both[0].get(name), both[1].get(name)) for name in names if both[0].get(name) != both[1].get(name)}


def sizes(delta: Delta, file_bytes: int) -> dict[str, int]:
    """The size of a delta: file bytes, tensors, numbers."""
    numbers = sum(tensor.size for tensor in delta.tensors.values())
    return {"bytes": file_bytes, "tensors": len(delta.tensors), "numbers": numbers}


def _words_of(result: TaskResult, task_type: str) -> str:
    """An answer as a string for comparison, without the scores of labels."""
    if task_type in ("token", "span"):
        slices = slices_of(task_type, result)
        named = (f"{label[0] if label else 'answer'} {start}–{end}" for start, end, *label in slices or ())
        return "abstained" if slices is None else "; ".join(named)
    match answer_of(task_type, result):
        case None:
            return "abstained"
        case float(number):
            return f"{number:.3f}"
        case tuple(labels):
            return "|".join(labels)
        case str(label):
            return label


def answered(rows: Sequence[LabeledRow], results: Sequence[TaskResult], task_types: Sequence[str]) -> list[Answered]:
    """Pairs rows with the results of both versions: two for each row, one after the other.

    Raises the error of the first result without an answer, with the row's place.
    """
    answers = []
    for row, *both in zip(rows, results[::2], results[1::2], strict=True):
        answers.append(Answered(row, *(_answer(row, *answer) for answer in zip(both, task_types, strict=True))))
    return answers


def _answer(row: LabeledRow, result: TaskResult, task_type: str) -> str:
    """The answer to a row as `_words_of` has it; raises the result's error with the row's place."""
    if result.error is not None:
        error = error_of(result.error)
        error.detail = f"{row.where}: {error.detail}"
        raise error
    return _words_of(result, task_type)


def compared(rows: Sequence[Answered]) -> dict[str, Any]:
    """Compares the answers of two versions to the same rows.

    Returns:
        `rows`; `flips`, the number of differing answers; `labels`, the counts of each answer; `slices`, the rows and
        flips of each value of each sliced column. If every row has a right answer, also how many of the rows of each
        label and value each version answers rightly, `right` for each version, and McNemar's exact test: `only_a` and
        `only_b` count rows that one version alone answers rightly, and `p` is the probability of a split at least as
        uneven between equally good versions.
    """
    labeled = bool(rows) and all(row.row.right is not None for row in rows)
    counts = {side: Counter(getattr(row, side) for row in rows) for side in ("a", "b")}
    names = sorted({*counts["a"], *counts["b"], *(row.row.right for row in rows if row.row.right is not None)})
    counted: dict[str, Any] = {
        "rows": len(rows),
        "flips": sum(row.flipped for row in rows),
        "labels": {name: {side: counts[side][name] for side in ("a", "b")} for name in names},
        "slices": {column: _slices(rows, column, labeled) for column in (rows[0].row.cells if rows else ())},
    }
    if not labeled:
        return counted
    for name in names:
        counted["labels"][name] |= _part([row for row in rows if row.row.right == name], labeled)
    only_a = sum(row.right("a") and not row.right("b") for row in rows)
    only_b = sum(row.right("b") and not row.right("a") for row in rows)
    right = {side: sum(row.right(side) for row in rows) for side in ("a", "b")}
    return counted | {"right": right, "only_a": only_a, "only_b": only_b, "p": mcnemar(only_a, only_b)}


def _slices(rows: Sequence[Answered], column: str, labeled: bool) -> dict[str, dict[str, int]]:
    """The counts by the values of a column, which are grouped as by `onebert evaluate --slice`."""
    groups = group([row.row.cells[column] for row in rows])
    return {value: _part([rows[at] for at in places], labeled) for value, places in groups.items()}


def _part(rows: Sequence[Answered], labeled: bool) -> dict[str, int]:
    right = {f"right_{side}": sum(row.right(side) for row in rows) for side in ("a", "b")} if labeled else {}
    return {"rows": len(rows), "flips": sum(row.flipped for row in rows)} | right


def mcnemar(only_a: int, only_b: int) -> float:
    """The two-sided p-value of McNemar's exact test: a fair coin for each row that only one version answers rightly."""
    from scipy.special import bdtr  # noqa: PLC0415 - slow to import

    # Twice the smaller tail; an even split would count its middle twice, hence the cap at 1.
    return min(1.0, 2.0 * float(bdtr(min(only_a, only_b), only_a + only_b, 0.5)))


def _flat(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        name = f"{before}.{key}" if before else key
        if isinstance(item, Mapping) and item:
            yield from _flat(item, name)
        else:
            yield name, list(item) if isinstance(item, tuple) else item
