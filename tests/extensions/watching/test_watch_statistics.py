"""The statistics of watching, against closed forms, counting by hand and simulations with a fixed seed."""

from collections import Counter
from math import comb, log, sqrt

import numpy as np
import pytest

from onebert_server.extensions.watching.alarms import (
    MONTH,
    OTHER_CAUSE,
    OVER,
    SHARES,
    Budget,
    cause_of,
    judge,
    shift_of,
)
from onebert_server.extensions.watching.statistics import estimate_shift, labels_p, psi, psi_p
from onebert_server.extensions.watching.watched import Watched
from onebert_server.extensions.watching.windows import PARTS, WINDOW, Live
from onebert_server.observed import Seen
from onebert_store.file.manifest import FORMAT, parse_manifest
from onebert_store.file.reference import LEVEL, Reference, Right, bin_edges, count_bins, heard_move
from tiny_delta import manifest_dict

# Distances, in standard deviations, between the scores of two labels: right answers are 0.73 and 0.87 of all after the
# shift; with the second one each label is found at a rate of 0.9 where both are equally frequent.
HARD, EASY = 1.67, 2.56


def drawn(random, rows, share, distance, trained=0.2, known=None):
    """Right label, answered label and top score of rows, by a classifier with the right odds of a `trained` share.

    `known` is the distance that it takes for true.
    """
    right = (random.random(rows) < share).astype(int)
    x = random.normal(distance * (right - 0.5))
    odds = log(trained / (1 - trained)) + (known or distance) * x
    positive = 1 / (1 + np.exp(-odds))
    answered = (positive > 0.5).astype(int)
    return right, answered, np.maximum(positive, 1 - positive)


def counted(rows, right, answered, scores):
    edges = bin_edges(scores)
    tables = np.zeros((2, 3), int), np.zeros((2, len(edges) + 1), int)
    np.add.at(tables[0], (right, answered), 1)
    np.add.at(tables[1], (right, count_bins(edges, scores)), 1)
    return Reference(
        split="validation",
        rows=rows,
        labels=tables[0].sum(axis=0)[:2].tolist(),
        edges=edges,
        scores=tables[1].sum(axis=0).tolist(),
        confidence=float(scores.mean()),
        right=Right(answered=tables[0].tolist(), scores=tables[1].tolist()),
    )


def live(reference, answered, scores):
    bins = np.bincount(count_bins(reference.edges, scores), minlength=len(reference.scores))
    return Live(len(answered), np.bincount(answered, minlength=3), bins, float(scores.sum()))


def test_psi_is_its_formula_on_shares_with_half_a_count_more():
    p, q = 80.5 / 101, 50.5 / 101
    assert psi(np.array([50, 50]), np.array([80, 20])) == pytest.approx((p - q) * (log(p / q) + log((1 - q) / (1 - p))))


@pytest.mark.parametrize(("answers", "rows"), [(500, 1000), (500, 100), (200, 300)])
def test_p_values_of_psi_are_probabilities_where_bins_are_quantiles(answers, rows):
    """Each bin of a reference of quantiles has the same count, and the live shares of bins are spacings (Dirichlet)."""
    random, drawings = np.random.default_rng(0), 200_000
    of_bin = np.full(10, rows // 10)
    p = psi_p(of_bin, random.multinomial(answers, random.dirichlet(of_bin, drawings)))
    for level in (0.05, 0.001):
        # A tenth more than the level, and three standard errors of the simulation.
        assert (p < level).mean() < 1.1 * level + 3 * sqrt(level / drawings)
        assert (p < level).mean() > 0.7 * level


def test_p_values_of_labels_are_fishers_by_hand():
    """Two labels: the tails of the hypergeometric distribution, added up from binomial coefficients."""
    rows, answers, reference, found = 40, 30, 8, 13
    both = reference + found
    chances = [comb(both, k) * comb(rows + answers - both, answers - k) for k in range(both + 1)]
    tail = sum(chances[found:]) / comb(rows + answers, answers)
    counts = np.array([reference, rows - reference]), rows, np.array([found, answers - found]), answers
    assert labels_p(*counts) == pytest.approx(2 * 2 * tail)


def test_shares_of_two_labels_are_the_closed_form_with_its_error():
    """Shares: (q - FPR) / (TPR - FPR); its error, of a reference of very many rows: sqrt(q(1-q)/n) / (TPR - FPR)."""
    answered = np.array([[900_000, 100_000, 0], [100_000, 900_000, 0]])
    found = estimate_shift(answered, answered[:, :2], np.array([250, 250, 0]), np.array([250, 250]))
    assert found.shares.value == pytest.approx([0.5, 0.5])
    error = sqrt(0.25 / 500) / 0.8
    assert error == pytest.approx(0.028, abs=0.0005)
    assert found.shares.high - found.shares.low == pytest.approx([2 * 1.96 * error] * 2, rel=0.01)
    assert found.accuracy.value == pytest.approx(0.9)
    assert found.explained == 1


def test_shares_are_not_estimated_where_rows_cannot_tell_labels_apart():
    bins, found = np.array([[50, 50], [50, 50]]), (np.array([60, 40, 0]), np.array([50, 50]))
    assert estimate_shift(np.array([[60, 40, 0], [60, 40, 0]]), bins, *found) is None
    assert estimate_shift(np.array([[90, 10, 0], [1, 3, 0]]), bins, *found) is None


def test_a_shift_of_labels_and_another_cause_are_told_apart():
    random = np.random.default_rng(0)
    causes = {SHARES: [], OTHER_CAUSE: []}
    for _ in range(100):
        reference = counted(1000, *drawn(random, 1000, 0.2, EASY))
        # The other cause: the texts of both labels have changed, and not how many of each there are.
        changed = {SHARES: drawn(random, WINDOW, 0.5, EASY), OTHER_CAUSE: drawn(random, WINDOW, 0.2, 0.0, known=EASY)}
        for name, (_, *answers) in changed.items():
            causes[name].append(cause_of(shift_of(reference, live(reference, *answers))))
    assert causes[SHARES].count(SHARES) >= 97
    assert causes[OTHER_CAUSE].count(OTHER_CAUSE) >= 97


@pytest.mark.promise("false-alarms")
def test_levels_add_up_to_the_allowance_whatever_the_traffic():
    random, now, spent = np.random.default_rng(0), [0.0], []
    budget = Budget(2.0, lambda: now[0])
    for day in range(60):
        # Few or many windows a day, in one hour or around the clock.
        for seconds in np.sort(random.uniform(0, 3600 * (1 + day % 24), 20 + 10 * (day % 7))):
            now[0] = day * 86400 + seconds
            spent.append(budget.spend())
    # Two a month for two months, and an hour's at the start; what accrues in a long pause beyond a day is lost.
    assert 2.0 < sum(spent) <= 2.0 * 60 * 86400 / MONTH + 2.0 / 720
    # A day's allowance, spread over 64 windows.
    assert max(spent) <= 2 / 30 / 64


def sliding(parts):
    """Counts of windows by the counts of their parts, [tasks, parts, bins]."""
    return sum(parts[:, i : parts.shape[1] - PARTS + 1 + i] for i in range(PARTS))


@pytest.mark.parametrize(("before", "now"), [(2.0, 3.0), (3.0, 2.0)], ids=["surer", "less sure"])
def test_scores_that_are_only_higher_raise_no_alarm(before, now):
    """As of texts that a version was trained on; scores that fell as far do."""
    random = np.random.default_rng(0)
    reference = counted(1000, *drawn(random, 1000, 0.5, HARD, trained=0.5, known=before))
    judged = judge(reference, live(reference, *drawn(random, WINDOW, 0.5, HARD, trained=0.5, known=now)[1:]))
    assert judged.psi > 0.1
    assert judged.surer == (now > before) == (judged.p > OVER)


@pytest.mark.parametrize("counts", [[20, 20], [4, 36], [0, 8], [150, 450, 400], [1, 5, 4]])
def test_a_move_is_heard_as_windows_are_judged(counts):
    """A label that moves so far rings, whichever and whichever way it can; some label needs as much."""
    rows, ringing = sum(counts), []
    scores = {"edges": [0.5], "scores": [rows // 2, rows - rows // 2], "confidence": 0.5}
    reference = Reference(split="validation", rows=rows, labels=counts, **scores)
    for place, count in enumerate(counts):
        ways = {-1: [], 1: []}
        for answers in range(WINDOW + 1):
            # The other labels share the rest as before.
            others = [(WINDOW - answers) * other / max(rows - count, 1) for other in counts]
            labels = np.array([answers if at == place else round(other) for at, other in enumerate(others)] + [0])
            moved = answers / WINDOW - count / rows
            if judge(reference, Live(WINDOW, labels, np.array([250, 250]), 250.0)).p < LEVEL and moved:
                ways[1 if moved > 0 else -1].append(abs(moved))
        ringing += [min(way) for way in ways.values() if way]
    # The judge tests the label that moved furthest, which of several need not be this one.
    assert heard_move(reference) == pytest.approx(max(ringing), abs=0.015)


def test_a_reference_of_few_rows_says_that_no_move_is_heard():
    assert heard_move(Reference(split="validation", rows=4, labels=[2, 2], edges=[], scores=[])) is None


def streamed(watched, random, rows, share, trained=0.2, known=None):
    """Answers of a classifier to so many new texts; returns what is full after each hundredth."""
    _, answered, scores = drawn(random, rows, share, EASY, trained, known)
    texts = random.integers(0, 2**32, rows).tolist()
    answers = zip(answered.tolist(), scores.tolist(), texts, strict=True)
    seen = (Seen("tone", (f"label {label}",), score, 1, text) for label, score, text in answers)
    return [*watched.count([*seen])]


def learning():
    return Watched.from_manifest(parse_manifest(manifest_dict(labels=["label 0", "label 1"])))


@pytest.mark.promise("false-alarms")
def test_a_learned_reference_is_silent_without_a_change_and_hears_one():
    """Two hundred versions without a reference, 3,000 answers each, then 20 points more of a label."""
    random, low, heard = np.random.default_rng(0), 0, 0
    for _ in range(200):
        watched = learning()
        while watched.reference is None:
            for halves in streamed(watched, random, WINDOW, 0.2):
                watched.learn(halves)
        assert (watched.reference.split, watched.reference.rows) == ("answers", 2 * WINDOW)
        low += sum(judge(watched.reference, full).p < 0.001 for full in streamed(watched, random, 3000, 0.2))
        *_, last = streamed(watched, random, 2 * WINDOW, 0.4)
        heard += judge(watched.reference, last).p < LEVEL
    # Thirty windows each; sliding ones are low together.
    assert low <= 2 * 0.001 * 200 * 30
    assert heard >= 195


def test_a_first_try_with_other_texts_does_not_become_the_reference():
    """As with the training rows, which a version answers far more surely."""
    random, watched = np.random.default_rng(0), learning()
    tried = streamed(watched, random, WINDOW, 0.2, known=2 * EASY)
    for halves in (*tried, *streamed(watched, random, WINDOW, 0.2)):
        watched.learn(halves)
    assert watched.reference is None
    while watched.reference is None:
        for halves in streamed(watched, random, WINDOW, 0.2):
            watched.learn(halves)
    assert all(judge(watched.reference, full).p > LEVEL for full in streamed(watched, random, 2000, 0.2))


def test_a_text_asked_again_and_again_counts_once():
    random, watched = np.random.default_rng(0), learning()
    streamed(watched, random, 400, 0.2)
    for _ in range(600):
        watched.count([Seen("tone", ("label 1",), 0.99, 1, 7)])
    assert (watched.answers, watched.repeats, watched.window.answers) == (401, 599, 401)


def test_a_reference_of_folds_is_not_used():
    """Earlier files have them, of other, less sure models."""
    reference = counted(300, *drawn(np.random.default_rng(0), 300, 0.2, EASY)).model_dump()
    manifests = [
        parse_manifest(manifest_dict(format=FORMAT, labels=["label 0", "label 1"], reference=reference | {"split": of}))
        for of in ("validation", "folds")
    ]
    assert [Watched.from_manifest(manifest).reference is not None for manifest in manifests] == [True, False]


@pytest.mark.promise("false-alarms")
def test_no_more_false_alarms_than_promised():
    """300 tasks, 10,000 requests a day over all of them, for 40 months without a change: one a month at most."""
    random, tasks, months, rows, part = np.random.default_rng(0), 300, 40, 200, WINDOW // PARTS
    looks = 10_000 * 30 * months // tasks // part
    shares, size = [0.45, 0.3, 0.15, 0.08, 0.02], (tasks, looks + PARTS - 1)
    by_label = labels_p(
        random.multinomial(rows, shares, tasks)[:, None], rows, sliding(random.multinomial(part, shares, size)), WINDOW
    )
    of_bin = np.full(10, rows // 10)
    in_bins = random.dirichlet(of_bin, tasks)[:, None]
    by_score = psi_p(of_bin, sliding(random.multinomial(part, in_bins, size)))
    p = np.minimum(1, 2 * np.minimum(by_label, by_score))
    now = [0.0]
    budget = Budget(1.0, lambda: now[0])
    on, alarms = np.zeros(tasks, bool), 0
    for look in range(looks):
        for task in range(tasks):
            now[0] += months * MONTH / (tasks * looks)
            heard = p[task, look] < budget.spend()
            alarms += heard and not on[task]
            on[task] = heard or (on[task] and p[task, look] < OVER)
    # 40 are allowed; a Poisson number of mean 40 is below 60 in 998 of 1,000 cases.
    assert alarms < 60


@pytest.mark.promise("false-alarms")
def test_a_shift_from_a_fifth_to_a_half_is_heard_within_500_answers():
    """The change comes just after a part has begun, so of the last full window 101 answers are from before it."""
    random, heard, part = np.random.default_rng(0), Counter(), WINDOW // PARTS
    # Levels of 10,000 requests a day over all tasks, and of 300 times as many.
    level, strict = (1 / (requests * 30 / part) for requests in (10_000, 3_000_000))
    for _ in range(200):
        reference = counted(1000, *drawn(random, 1000, 0.2, EASY))
        halves = drawn(random, 101, 0.2, EASY)[1:], drawn(random, 399, 0.5, EASY)[1:]
        heard["right labels"] += (
            judge(reference, live(reference, *map(np.concatenate, zip(*halves, strict=True)))).p < level
        )
        answered = random.multinomial(101, [0.8, 0.2]) + random.multinomial(399, [0.5, 0.5])
        heard["answered labels"] += labels_p(np.array([320, 80]), 400, answered, WINDOW) < strict / 2
    assert heard["right labels"] >= 198
    assert heard["answered labels"] >= 198
