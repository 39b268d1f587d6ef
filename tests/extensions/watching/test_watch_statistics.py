"""The two tests of watching against SciPy's, and their allowance against counted false alarms."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import fisher_exact, ks_2samp

from onebert_server.extensions.watching.alarms import LABELS, SCORES, judge, label_p, level_of, score_p
from onebert_server.extensions.watching.learning import LEARNED, is_learned, learned
from onebert_server.extensions.watching.windows import Live, Segment
from onebert_server.observed import Seen
from onebert_store.file.reference import LEVEL, PART, WINDOW, Reference, heard_move, score_counts


def counted(labels, scores=(), split="validation"):
    """A reference of answered labels, by their number, and of top scores."""
    bins = score_counts(np.asarray(scores)) if len(scores) else {"edges": [], "scores": []}
    return Reference(split=split, rows=int(sum(labels)), labels=[*map(int, labels)], **bins)


def window(labels, scores=(), answers=WINDOW):
    return Live(answers, np.array([*labels, 0]), np.asarray(scores, np.int64), 0.0)


@pytest.mark.parametrize(
    ("reference", "live", "furthest"),
    [
        ([240, 60], [100, 400], 0),
        ([20, 20], [250, 250], 0),
        ([36, 4], [480, 20], 0),
        ([150, 450, 0], [125, 370, 5], 2),
        ([500, 0, 3], [490, 10, 0], 1),
    ],
)
def test_a_labels_share_is_judged_by_fishers_exact_test_times_the_labels_that_occur(reference, live, furthest):
    rows, answers = sum(reference), sum(live)
    each = [
        2
        * min(fisher_exact([[now, answers - now], [before, rows - before]], way).pvalue for way in ("less", "greater"))
        for before, now in zip(reference, live, strict=True)
    ]
    assert each[furthest] == min(each)
    tests = sum(before + now > 0 for before, now in zip(reference, live, strict=True))
    assert label_p(counted(reference), window(live, answers=answers)) == pytest.approx(min(1, tests * min(each)))


def test_answers_with_several_labels_or_none_are_tables_of_their_own():
    reference = Reference(split="validation", rows=100, labels=[90, 50], abstained=5, edges=[], scores=[])
    live = Live(WINDOW, np.array([450, 250, 25]), np.array([], np.int64), 0.0)
    assert label_p(reference, live) == 1
    assert label_p(reference, Live(WINDOW, np.array([450, 25, 25]), live.scores, 0.0)) < 1e-10


@pytest.mark.parametrize("seed", range(5))
def test_less_sure_scores_are_judged_by_smirnovs_test_with_care(seed):
    """In bins, SciPy's p-value is at least the one of the scores themselves; the limit is near it, and above."""
    random = np.random.default_rng(seed)
    rows, answers = random.integers(30, 300, 2)
    reference, live = random.beta(8, 2, rows), random.beta(8 - seed, 2, answers)
    counts = counted([rows], reference)
    in_bins = np.bincount(np.searchsorted(counts.edges, live), minlength=len(counts.scores))
    places = np.arange(len(counts.scores))
    sides = np.repeat(places, in_bins), np.repeat(places, counts.scores)
    exact = ks_2samp(*sides, alternative="greater", method="exact").pvalue
    assert exact <= score_p(counts, window([answers], in_bins, answers)) <= min(1, 2 * exact + 0.05)


def test_what_differs_is_said_and_surer_scores_ring_nothing():
    reference = counted([100, 100], np.linspace(0.5, 1, 200))
    tenths = len(reference.scores)
    surer, less_sure = np.zeros(tenths, int), np.zeros(tenths, int)
    surer[-1] = less_sure[0] = WINDOW
    assert judge(reference, window([250, 250], surer)).p == 1
    judged = judge(reference, window([250, 250], less_sure))
    assert (judged.words, judged.p < 1e-30) == (SCORES, True)
    assert judge(reference, window([500, 0], surer)).words == LABELS


@pytest.mark.parametrize("counts", [[20, 20], [4, 36], [0, 8], [150, 450, 400], [1, 5, 4]])
def test_a_move_is_heard_as_windows_are_judged(counts):
    """A label that moves so far rings, whichever and whichever way it can; some label needs as much."""
    rows, ringing = sum(counts), []
    reference = counted(counts)
    for place, count in enumerate(counts):
        ways = {-1: [], 1: []}
        for answers in range(WINDOW + 1):
            # The other labels share the rest as before.
            others = [(WINDOW - answers) * other / max(rows - count, 1) for other in counts]
            labels = [answers if at == place else round(other) for at, other in enumerate(others)]
            moved = answers / WINDOW - count / rows
            if judge(reference, window(labels)).p < LEVEL and moved:
                ways[1 if moved > 0 else -1].append(abs(moved))
        ringing += [min(way) for way in ways.values() if way]
    # The judge tests the label that moved furthest, which of several need not be this one.
    assert heard_move(reference) == pytest.approx(max(ringing), abs=0.015)


def part_of(labels, scores):
    part = Segment(3)
    for label, score in zip(labels, scores, strict=True):
        part.add([Seen("tone", (f"label {label}",), score)], {"label 0": 0, "label 1": 1, "(abstained)": 2})
    return part


@pytest.mark.parametrize("scored", [True, False])
def test_a_learned_reference_counts_the_first_thousand_answers(scored):
    random, reference, parts = np.random.default_rng(0), None, []
    while not is_learned(reference):
        labels = (random.random(PART) < 0.2).astype(int)
        parts.append((labels, random.beta(8, 2, PART) if scored else [None] * PART))
        reference = learned(reference, part_of(*parts[-1]))
    assert (reference.split, reference.rows, len(parts)) == ("answers", LEARNED, 10)
    labels = np.concatenate([labels for labels, _ in parts])
    assert reference.labels == [LEARNED - labels.sum(), labels.sum()]
    assert learned(reference, part_of(*parts[0])) == reference
    if not scored:
        assert (reference.edges, reference.scores, reference.confidence) == ([], [], None)
        return
    scores = np.concatenate([scores for _, scores in parts])
    assert reference.scores == np.bincount(np.searchsorted(reference.edges, scores), minlength=10).tolist()
    assert reference.confidence == pytest.approx(scores.mean())


def test_no_more_windows_ring_than_the_level_allows():
    """Whatever the reference, by brute force over windows without a change; at a level that shows."""
    random, level, looks = np.random.default_rng(0), 0.05, 300
    for rows, shares in product((40, 1000), ([0.5, 0.5], [0.45, 0.3, 0.15, 0.08, 0.02])):
        rang = 0
        for _ in range(looks):
            reference = counted(random.multinomial(rows, shares).tolist(), random.beta(8, 2, rows))
            bins = np.searchsorted(reference.edges, random.beta(8, 2, WINDOW))
            live = window(random.multinomial(WINDOW, shares), np.bincount(bins, minlength=len(reference.scores)))
            rang += judge(reference, live).p < level
        # A binomial number of mean `looks * level` is below this in 999 of 1,000 cases.
        assert rang <= looks * level + 3.1 * (looks * level) ** 0.5


def test_a_shift_from_a_fifth_to_a_half_is_heard_within_500_answers():
    """The change comes just after a part has begun, so of the last full window 101 answers are from before it."""
    random, heard = np.random.default_rng(0), 0
    for _ in range(200):
        reference = counted(random.multinomial(1000, [0.8, 0.2]).tolist())
        answered = random.multinomial(101, [0.8, 0.2]) + random.multinomial(399, [0.5, 0.5])
        heard += judge(reference, window(answered)).p < level_of(0.01)
    assert heard == 200
