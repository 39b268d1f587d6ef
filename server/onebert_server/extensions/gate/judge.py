"""Judges a version by its answers to the pinned rows, compared with the live version's: pure counting."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np

from onebert_server.extensions.gate.report import MAX_WRONG, Check, Numbers, SliceCounts, Wrong
from onebert_server.extensions.gate.rules import Gate, Right
from onebert_store.comparison import LEAST_ROWS, LEVEL, ShortAnswer, answer_from, compare, verdict

_Row: TypeAlias = tuple[ShortAnswer, ShortAnswer, ShortAnswer, Mapping[str, str]]
"""The right answer, the candidate's, live's, and the cells of slices."""


@dataclass(frozen=True)
class JudgedRows:
    """The answers to the pinned rows, in their order.

    Attributes:
        live: None without a live version.
        known: the labels in the live version's answers; None: all that rows have.
    """

    right: Sequence[ShortAnswer]
    candidate: Sequence[ShortAnswer]
    live: Sequence[ShortAnswer] | None = None
    slices: Sequence[Mapping[str, str]] = field(default=())
    known: frozenset[str] | None = None


def measure(gate: Gate, rows: JudgedRows) -> Numbers:
    """Counts everything that the gate's checks of pinned rows need."""
    scores = {name: METRICS[name](rows.right, rows.candidate) for name in gate.floors}
    if rows.live is None:
        return Numbers(rows=len(rows.right), scores=scores)
    cells = rows.slices or [{}] * len(rows.right)
    answers = zip(rows.right, rows.candidate, rows.live, cells, strict=True)
    # Live cannot be right where it lacks the label: such a row is no flip, and would hide the fall of others.
    compared = [row for row in answers if rows.known is None or _labels(row[0]) <= rows.known]
    flips = sum(answer != other for _, answer, other, _ in compared)
    columns = gate.slices.columns if gate.slices else ()
    slices = [counts for column in columns for counts in _slices(column, compared)]
    return Numbers(rows=len(rows.right), compared=len(compared), scores=scores, flips=flips, slices=slices)


def wrong_rows(rows: JudgedRows) -> list[Wrong]:
    """Lists the first wrong answers; first the rows that live has right; numbers by their distance."""
    live = rows.live if rows.live is not None else [None] * len(rows.right)
    each = list(enumerate(zip(rows.right, rows.candidate, live, strict=True)))
    wrong = [(at, answers) for at, answers in each if answers[0] != answers[1]]
    wrong.sort(key=lambda pair: (-_distance(pair[1][0], pair[1][1]), pair[1][0] != pair[1][2]))
    return [
        Wrong(row=at + 1, right=_shown(right), candidate=_shown(answer), live=_shown(other))
        for at, (right, answer, other) in wrong[:MAX_WRONG]
    ]


def checks_of(gate: Gate, numbers: Numbers | None, wrong: int) -> list[Check]:
    """Applies the rules to the numbers of the rows and of the wrong answers in `must`.

    `numbers` is None for a gate of `must` alone. Without a live version no check compares with it.
    """
    checks = []
    if numbers is not None:
        checks += [_at_least(f"min.{name}", bound, numbers.scores[name]) for name, bound in gate.floors.items()]
        if gate.max and numbers.flips is not None:
            checks.append(_at_most("max.flips", gate.max.flips, numbers.flips / max(1, numbers.compared or 0)))
        if gate.slices and numbers.slices:
            checks.append(_at_most("slices.worst_drop", gate.slices.worst_drop, worst_drop(numbers.slices)))
    if gate.must:
        checks.append(_at_most("must", 0.0, float(wrong)))
    return checks


def missed(gate: Gate, answers: Sequence[ShortAnswer]) -> list[Wrong]:
    """Lists the texts of `must` that are answered wrongly."""
    each = enumerate(zip(gate.must, answers, strict=True), 1)
    return [
        Wrong(row=at, right=example.label, candidate=_shown(answer))
        for at, (example, answer) in each
        if answer != answer_from(example.label)
    ]


def worst_drop(slices: Iterable[SliceCounts]) -> float:
    """Returns the largest proven fall of the share of right answers in a slice, 0 without one.

    The slices with enough rows share the level of error: an equally good version has a proven fall in any of them with
    at most the probability `LEVEL`.
    """
    judged = [counts for counts in slices if counts.rows >= LEAST_ROWS]
    fallen = [counts for counts in judged if verdict(counts.outcomes, LEVEL / len(judged)) == "worse"]
    return max(((counts.losses - counts.wins) / counts.rows for counts in fallen), default=0.0)


def _slices(column: str, rows: Iterable[_Row]) -> Iterable[SliceCounts]:
    by_value: dict[str, list[tuple[ShortAnswer, ShortAnswer, ShortAnswer]]] = {}
    for right, answer, other, cells in rows:
        by_value.setdefault(cells.get(column, ""), []).append((right, answer, other))
    for value, answers in sorted(by_value.items()):
        yield SliceCounts(column=column, value=value, **compare(answers)._asdict())


def _accuracy(right: Sequence[ShortAnswer], answers: Sequence[ShortAnswer]) -> float:
    return sum(gold == answer for gold, answer in zip(right, answers, strict=True)) / len(right)


def _f1_counts(
    right: Sequence[ShortAnswer], answers: Sequence[ShortAnswer]
) -> tuple[Counter[Any], Counter[Any], Counter[Any]]:
    """Counts right answers, rows and answers by label, or by span; an abstained row has no answer."""
    both = [(_items(gold), _items(answer)) for gold, answer in zip(right, answers, strict=True)]
    hits = Counter(item for gold, answered in both for item in gold & answered)
    rows, predicted = (Counter(item for pair in both for item in pair[side]) for side in (0, 1))
    return hits, rows, predicted


def _macro_f1(right: Sequence[ShortAnswer], answers: Sequence[ShortAnswer]) -> float:
    hits, rows, predicted = _f1_counts(right, answers)
    each = [2 * hits[label] / (rows[label] + predicted[label]) for label in rows | predicted]
    return sum(each) / len(each) if each else 0.0


def _micro_f1(right: Sequence[ShortAnswer], answers: Sequence[ShortAnswer]) -> float:
    hits, rows, predicted = (counts.total() for counts in _f1_counts(right, answers))
    return 2 * hits / (rows + predicted) if rows + predicted else 0.0


def _pearson(right: Sequence[ShortAnswer], answers: Sequence[ShortAnswer]) -> float:
    gold, predicted = np.array(right, np.float64), np.array(answers, np.float64)
    return float(np.corrcoef(gold, predicted)[0, 1]) if np.ptp(gold) > 0 and np.ptp(predicted) > 0 else 0.0


def _spearman(right: Sequence[ShortAnswer], answers: Sequence[ShortAnswer]) -> float:
    from scipy.stats import rankdata  # noqa: PLC0415 - slow to import

    return _pearson(rankdata(np.array(right, np.float64)), rankdata(np.array(answers, np.float64)))


METRICS = {
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
    "micro_f1": _micro_f1,
    # Micro F1 of sets of spans, as in seqeval's default mode.
    "entity_f1": _micro_f1,
    "pearson": _pearson,
    "spearman": _spearman,
}


def _items(answer: ShortAnswer) -> frozenset[Any]:
    """The labels or spans of an answer; none of a number or an abstention."""
    return frozenset((answer,) if isinstance(answer, str) else answer if isinstance(answer, tuple) else ())


def _labels(answer: ShortAnswer) -> set[str]:
    return {item if isinstance(item, str) else item[-1] for item in _items(answer)}


def _distance(right: ShortAnswer, answer: ShortAnswer) -> float:
    return abs(right - answer) if isinstance(right, float) and isinstance(answer, float) else 0.0


def _shown(answer: ShortAnswer) -> Right | None:
    return cast(Right | None, list(answer) if isinstance(answer, tuple) else answer)


def _at_least(name: str, bound: float, value: float) -> Check:
    return Check(name=name, bound=bound, value=value, passed=value >= bound)


def _at_most(name: str, bound: float, value: float) -> Check:
    return Check(name=name, bound=bound, value=value, passed=value <= bound)
