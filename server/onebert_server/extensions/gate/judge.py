"""Judges a version by its answers to the pinned rows, compared with the live version's: pure counting."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onebert_encoder.answering.results import ShortAnswer as Answer
from onebert_server.extensions.gate.report import MAX_WRONG, Check, Numbers, SliceCounts, Wrong
from onebert_server.extensions.gate.rules import Gate, Right


@dataclass(frozen=True)
class Rows:
    """The answers to the pinned rows, in their order.

    Attributes:
        live: None without a live version.
        known: the labels of the live version; None: all that rows have.
    """

    right: Sequence[Answer]
    candidate: Sequence[Answer]
    live: Sequence[Answer] | None = None
    slices: Sequence[Mapping[str, str]] = field(default=())
    known: frozenset[str] | None = None


def right_of(label: Right) -> Answer:
    """Returns the answer that a labeled row asks for."""
    return tuple(sorted(set(label))) if isinstance(label, list) else label


def measure(gate: Gate, rows: Rows) -> Numbers:
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


def wrong_rows(rows: Rows) -> list[Wrong]:
    """Lists the first wrong answers, those that live has right before the others; wrong numbers by their distance."""
    live = rows.live if rows.live is not None else [None] * len(rows.right)
    each = list(enumerate(zip(rows.right, rows.candidate, live, strict=True)))
    wrong = [(at, answers) for at, answers in each if answers[0] != answers[1]]
    wrong.sort(key=lambda pair: (-_distance(pair[1][0], pair[1][1]), pair[1][0] != pair[1][2]))
    return [
        Wrong(row=at + 1, right=_shown(right), candidate=_shown(answer), live=_shown(other))
        for at, (right, answer, other) in wrong[:MAX_WRONG]
    ]


def verdict(gate: Gate, numbers: Numbers | None, wrong: int) -> list[Check]:
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


def missed(gate: Gate, answers: Sequence[Answer]) -> list[Wrong]:
    """Lists the texts of `must` that are answered wrongly."""
    each = enumerate(zip(gate.must, answers, strict=True), 1)
    return [
        Wrong(row=at, right=example.label, candidate=_shown(answer))
        for at, (example, answer) in each
        if answer != right_of(example.label)
    ]


def worst_drop(slices: Iterable[SliceCounts]) -> float:
    """Returns the largest fall of the share of right answers in a slice."""
    return max((counts.live_right - counts.right) / counts.rows for counts in slices)


def _slices(column: str, rows: Iterable[tuple[Answer, Answer, Answer, Mapping[str, str]]]) -> Iterable[SliceCounts]:
    counts: dict[str, list[int]] = {}
    for right, answer, other, cells in rows:
        counts_of_value = counts.setdefault(cells.get(column, ""), [0, 0, 0])
        for place, counted in enumerate((True, answer == right, other == right)):
            counts_of_value[place] += counted
    for value, (number, right_now, live_right) in sorted(counts.items()):
        yield SliceCounts(column=column, value=value, rows=number, right=right_now, live_right=live_right)


def _accuracy(right: Sequence[Answer], answers: Sequence[Answer]) -> float:
    return sum(gold == answer for gold, answer in zip(right, answers, strict=True)) / len(right)


def _f1_counts(right: Sequence[Answer], answers: Sequence[Answer]) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Counts right answers, rows and answers by label; an abstained row has no answer."""
    both = [(_labels(gold), _labels(answer)) for gold, answer in zip(right, answers, strict=True)]
    hits = Counter(label for gold, answered in both for label in gold & answered)
    rows, predicted = (Counter(label for pair in both for label in pair[side]) for side in (0, 1))
    return hits, rows, predicted


def _macro_f1(right: Sequence[Answer], answers: Sequence[Answer]) -> float:
    """The mean over the labels that a row or an answer has, as in training's metrics."""
    hits, rows, predicted = _f1_counts(right, answers)
    each = [2 * hits[label] / (rows[label] + predicted[label]) for label in rows | predicted]
    return sum(each) / len(each) if each else 0.0


def _micro_f1(right: Sequence[Answer], answers: Sequence[Answer]) -> float:
    hits, rows, predicted = (counts.total() for counts in _f1_counts(right, answers))
    return 2 * hits / (rows + predicted) if rows + predicted else 0.0


def _pearson(right: Sequence[Answer], answers: Sequence[Answer]) -> float:
    """The correlation of numbers; 0 if one side is constant."""
    gold, predicted = np.array(right, np.float64), np.array(answers, np.float64)
    return float(np.corrcoef(gold, predicted)[0, 1]) if np.ptp(gold) > 0 and np.ptp(predicted) > 0 else 0.0


def _spearman(right: Sequence[Answer], answers: Sequence[Answer]) -> float:
    from scipy.stats import rankdata  # noqa: PLC0415 - slow to import

    return _pearson(rankdata(np.array(right, np.float64)), rankdata(np.array(answers, np.float64)))


METRICS = {
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
    "micro_f1": _micro_f1,
    "pearson": _pearson,
    "spearman": _spearman,
}


def _labels(answer: Answer) -> frozenset[str]:
    return frozenset((answer,) if isinstance(answer, str) else answer if isinstance(answer, tuple) else ())


def _distance(right: Answer, answer: Answer) -> float:
    return abs(right - answer) if isinstance(right, float) and isinstance(answer, float) else 0.0


def _shown(answer: Answer) -> Right | None:
    return list(answer) if isinstance(answer, tuple) else answer


def _at_least(name: str, bound: float, value: float) -> Check:
    return Check(name=name, bound=bound, value=value, passed=value >= bound)


def _at_most(name: str, bound: float, value: float) -> Check:
    return Check(name=name, bound=bound, value=value, passed=value <= bound)
