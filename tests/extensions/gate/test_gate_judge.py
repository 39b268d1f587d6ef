"""A gate's numbers and verdict, against scikit-learn, SciPy and counting by hand."""

import tomllib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import binomtest, pearsonr, spearmanr
from seqeval.metrics import f1_score as seqeval_f1
from sklearn.metrics import accuracy_score, f1_score
from sklearn.preprocessing import MultiLabelBinarizer

from onebert_server.extensions.gate.judge import JudgedRows, checks_of, measure, missed, wrong_rows
from onebert_server.extensions.gate.rules import Gate, PinnedRow, digest_of_rows, pin
from onebert_store.errors import InvalidInput

LABELS = ("bad", "good", "odd")
ONE = st.sampled_from(LABELS)
SEVERAL = st.lists(st.sampled_from(LABELS), unique=True).map(lambda drawn: tuple(sorted(drawn)))
FLOORS = {"accuracy": 0.5, "macro_f1": 0.5, "micro_f1": 0.5}


def gate(**rules):
    return Gate.model_validate({"min": {"accuracy": 0.5}} | rules)


def sides(answers, least=1):
    """Right answers, those of a candidate, and those of live."""
    rows = st.lists(st.tuples(answers, answers, answers), min_size=least, max_size=40)
    return rows.map(lambda answers: zip(*answers, strict=True))


@given(sides(ONE))
def test_scores_of_single_labels_are_those_of_scikit_learn(rows):
    right, candidate, live = map(list, rows)
    scores = measure(gate(min=FLOORS), JudgedRows(right, candidate, live)).scores
    assert scores["accuracy"] == pytest.approx(accuracy_score(right, candidate))
    present = sorted({*right, *candidate})
    for average in ("macro", "micro"):
        expected = f1_score(right, candidate, labels=present, average=average, zero_division=0)
        assert scores[f"{average}_f1"] == pytest.approx(expected)


@given(sides(SEVERAL))
def test_scores_of_several_labels_are_those_of_scikit_learn(rows):
    right, candidate, live = map(list, rows)
    scores = measure(gate(min=FLOORS), JudgedRows(right, candidate, live)).scores
    table = MultiLabelBinarizer(classes=LABELS)
    ones, others = table.fit_transform(right), table.transform(candidate)
    there = np.flatnonzero((ones | others).any(axis=0))
    assert scores["accuracy"] == pytest.approx(accuracy_score(ones, others))
    for average in ("macro", "micro"):
        expected = f1_score(ones, others, labels=there, average=average, zero_division=0) if there.size else 0.0
        assert scores[f"{average}_f1"] == pytest.approx(expected)


NUMBERS = st.floats(-5, 5).map(lambda drawn: round(drawn, 2))


@given(sides(NUMBERS, least=2))
def test_scores_of_numbers_are_those_of_scipy(rows):
    right, candidate, _ = map(list, rows)
    rules = gate(min={"pearson": 0.0, "spearman": 0.0})
    scores = measure(rules, JudgedRows(right, candidate, None)).scores
    varies = len(set(right)) > 1 and len(set(candidate)) > 1
    assert scores["pearson"] == pytest.approx(pearsonr(right, candidate).statistic if varies else 0.0, abs=1e-9)
    assert scores["spearman"] == pytest.approx(spearmanr(right, candidate).statistic if varies else 0.0, abs=1e-9)


@given(
    st.lists(
        st.tuples(ONE, st.none() | ONE, st.none() | ONE, st.sampled_from(["de", "fr", ""])), min_size=1, max_size=120
    ),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
)
def test_flips_and_slices_are_counted_as_by_hand(rows, bound):
    right, candidate, live, countries = map(list, zip(*rows, strict=True))
    rules = gate(max={"flips": bound}, slices={"columns": ["country"], "worst_drop": bound})
    numbers = measure(rules, JudgedRows(right, candidate, live, [{"country": check} for check in countries]))
    flips = len([1 for check, other in zip(candidate, live, strict=True) if check != other])
    assert numbers.flips == flips
    drops, judged = {}, [country for country, count in Counter(countries).items() if count >= 20]
    for country in judged:
        pairs = [(row[0] == row[1], row[0] == row[2]) for row in rows if row[3] == country]
        wins, losses = pairs.count((True, False)), pairs.count((False, True))
        proven = losses > wins and binomtest(wins, wins + losses).pvalue <= 0.05 / len(judged)
        drops[country] = (losses - wins) / len(pairs) if proven else 0.0
    worst = max(drops.values(), default=0.0)
    assert Counter({check.value: check.rows for check in numbers.slices}) == Counter(countries)
    checks = {check.name: check for check in checks_of(rules, numbers, 0)}
    assert checks["max.flips"].passed == (flips <= bound * len(rows) or flips / len(rows) <= bound)
    assert checks["slices.worst_drop"].value == worst
    assert checks["slices.worst_drop"].passed == (worst <= bound)
    # A task's first version has nothing to be compared with.
    alone = [check.name for check in checks_of(rules, measure(rules, JudgedRows(right, candidate)), 0)]
    assert alone == ["min.accuracy"]


def test_a_share_of_exactly_the_bound_passes():
    rules = gate(min={"accuracy": 0.9}, max={"flips": 0.1})
    right = ["good"] * 10
    numbers = measure(rules, JudgedRows(right, [*right[1:], "bad"], right))
    assert [check.passed for check in checks_of(rules, numbers, 0)] == [True, True]
    numbers = measure(rules, JudgedRows(right, [*right[2:], "bad", "bad"], right))
    assert [check.passed for check in checks_of(rules, numbers, 0)] == [False, False]


def test_wrong_rows_begin_with_those_that_were_right_before():
    right, candidate, live = ["a", "b", "c", "d"], ["a", "x", "x", None], ["a", "x", "c", "x"]
    wrong = wrong_rows(JudgedRows(right, candidate, live))
    assert [(row.row, row.candidate, row.live) for row in wrong] == [(3, "x", "c"), (2, "x", "x"), (4, None, "x")]
    far = wrong_rows(JudgedRows([1.0, 2.0, 3.0], [1.5, 4.0, 3.0]))
    assert [row.row for row in far] == [2, 1]


def test_must_is_about_whole_answers():
    must = [{"text": "a", "label": "good"}, {"text": "b", "label": ["late", "big"]}, {"text": "c", "label": "bad"}]
    rules = gate(must=must)
    misses = missed(rules, ["good", ("big", "late"), None])
    assert [(miss.row, miss.right, miss.candidate) for miss in misses] == [(3, "bad", None)]
    assert checks_of(gate(must=must, min=None), None, 1)[0].passed is False


TOML = """
pinned = "sha256:%s"
[min]
macro_f1 = 1
[max]
flips = 0.05
[slices]
columns = ["country"]
worst_drop = 0.1
[[must]]
text = "my order is late"
label = "complaint"
""" % ("ab" * 32)


def test_a_file_and_the_same_rules_as_json_have_one_digest():
    read = Gate.model_validate(tomllib.loads(TOML))
    assert read.floors == {"macro_f1": 1.0}
    assert Gate.model_validate_json(read.model_dump_json()).digest == read.digest
    assert Gate.model_validate(tomllib.loads(TOML.replace("0.05", "0.06"))).digest != read.digest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a gate has min, max, slices or must"),
        ("[min]", "must name a metric"),
        ("[min]\nmacro = 0.5", "min.macro"),
        ("[min]\naccuracy = 1.5", "min.accuracy"),
        ("[min]\naccuracy = nan", "min.accuracy"),
        ("[max]\nflips = '0.5'", "max.flips"),
        ("aliases = ['7']\n[min]\naccuracy = 1", "an alias is not all digits"),
        ("[[must]]\ntext = ' '\nlabel = 'a'", "must.0.text"),
        ("pinned = 'sha256:12'\n[min]\naccuracy = 1", "pinned"),
    ],
)
def test_rules_that_are_no_gate_are_refused(content, message):
    with pytest.raises((ValidationError, InvalidInput), match=message):
        Gate.model_validate(tomllib.loads(content))


ROWS = [PinnedRow(text="a", label="x", slices={"country": "de"}), PinnedRow(text="b", text_pair="c", label="y")]


def test_a_gate_is_pinned_to_its_rows_in_their_order():
    pinned = pin(gate(), ROWS)
    assert pinned.pinned == digest_of_rows(ROWS) != digest_of_rows(ROWS[::-1])
    assert pin(pinned, ROWS) == pinned
    for rules, rows, message in [
        (pinned, ROWS[:1], "pinned to other rows"),
        (gate(), (), "are about rows"),
        (pinned, (), "are about rows"),
        (gate(min=None, must=[{"text": "a", "label": "x"}]), ROWS, "rows are for min"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            pin(rules, rows)


CITY, PERSON = (3, 7, "city"), (0, 2, "person")
ENTITIES = st.lists(st.sampled_from([CITY, PERSON, (3, 7, "person")]), unique_by=lambda span: span[0]).map(tuple)


@given(sides(ENTITIES))
def test_entity_f1_is_that_of_seqeval(rows):
    right, candidate, _ = map(list, rows)
    scores = measure(gate(min={"entity_f1": 0.5}), JudgedRows(right, candidate, None)).scores

    def tags(spans):
        named = {start: label for start, _, label in spans}
        return [f"B-{named[start]}" if start in named else "O" for start in (0, 3)]

    expected = seqeval_f1([*map(tags, right)], [*map(tags, candidate)], zero_division=0)
    assert scores["entity_f1"] == pytest.approx(expected)


SPANS = [PinnedRow(text="in Bonn", label=[(3, 7, "city")]), PinnedRow(text="nowhere", label=[])]


def test_rules_and_rows_fit_the_task_type():
    gate(min={"entity_f1": 0.5}, max={"flips": 0.1}).check_type("token")
    gate(min={"entity_f1": 0.5}).check_rows(SPANS, "token")
    gate().check_type("single_label")
    gate(min={"pearson": 0.5}).check_type("regression")
    gate().check_rows(ROWS, "single_label")
    number = [PinnedRow(text="a", label=1)]
    gate(min={"pearson": 0.5}).check_rows(number, "regression")
    many = [PinnedRow(text="a", label="x", slices={"country": str(number)}) for number in range(257)]
    sliced = gate(slices={"columns": ["country"], "worst_drop": 0.1})
    for refused in (
        lambda: gate().check_type("token"),
        lambda: gate().check_type("span"),
        lambda: gate(min={"entity_f1": 0.5}, must=[{"text": "a", "label": "x"}]).check_type("token"),
        lambda: gate().check_type("regression"),
        lambda: gate(min={"pearson": 0.5}).check_type("multi_label"),
        lambda: gate(min={"pearson": 0.5}, max={"flips": 1.0}).check_type("regression"),
        lambda: gate().check_rows(ROWS, "multi_label"),
        lambda: gate(min={"entity_f1": 0.5}).check_rows(ROWS, "token"),
        lambda: gate().check_rows(SPANS, "multi_label"),
        lambda: gate().check_rows(number, "single_label"),
        lambda: sliced.check_rows(ROWS, "single_label"),
        lambda: sliced.check_rows(many, "single_label"),
    ):
        with pytest.raises(InvalidInput):
            refused()


def test_rows_of_a_label_that_live_lacks_are_no_flips_and_hide_no_fall():
    rules = gate(max={"flips": 0.4}, slices={"columns": ["half"], "worst_drop": 0.4})
    right, live = [*["bad", "good"] * 10, "new", "new"], ["bad", "good"] * 11
    cells = [{"half": "a"}] * 22
    known = frozenset({"bad", "good"})
    better = measure(rules, JudgedRows(right, right, live, cells, known))
    assert (better.rows, better.compared, better.flips, better.scores) == (22, 20, 0, {"accuracy": 1.0})
    assert all(check.passed for check in checks_of(rules, better, 0))
    # All old rows fall, and the new ones are right.
    worse = measure(rules, JudgedRows(right, [*["good", "bad"] * 10, "new", "new"], live, cells, known))
    assert [(check.name, check.value) for check in checks_of(rules, worse, 0) if not check.passed] == [
        ("min.accuracy", 1 / 11),
        ("max.flips", 1.0),
        ("slices.worst_drop", 1.0),
    ]
    # A label that the candidate has lost is still compared.
    lost = measure(rules, JudgedRows(live, ["bad"] * 22, live, cells, known))
    assert (lost.compared, lost.flips) == (22, 11)
    nothing = measure(rules, JudgedRows(["new"], ["new"], ["bad"], [{"half": "a"}], known))
    assert all(check.passed for check in checks_of(rules, nothing, 0))
