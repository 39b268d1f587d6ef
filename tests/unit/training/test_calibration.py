"""Temperatures, thresholds, abstaining: beside plain loops, and by what they promise of rows that were not seen."""

import json
import re

import numpy as np
import pytest
from scipy.special import expit, softmax

import onebert
from bases import far_delta, manifest_for, tiny_base
from onebert_encoder.answering.scores import score
from onebert_encoder.base.base import load_base
from onebert_store.errors import InvalidData, InvalidInput, InvalidSettings
from onebert_store.file.delta import Delta
from onebert_store.file.format import load, save
from onebert_store.file.manifest import parse_manifest
from onebert_training.cli import calibrate as command
from onebert_training.insight.calibration import calibrate, targets_of
from onebert_training.insight.decision_rules import (
    as_rates,
    rates,
    thresholds_for_fpr,
    thresholds_for_precision,
)
from onebert_training.insight.fixed_rules import fixed_rules
from onebert_training.insight.intervals import ScoredRows, interval_on_new_rows
from tiny_delta import manifest_dict
from trainings import invoke

pytestmark = pytest.mark.slow


def drawn(rows, seed, labels=3, spread=2.0):
    """Logits and one label each row, drawn by the probabilities that the logits stand for."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (rows, labels))
    gold = (rng.uniform(size=(rows, 1)) > softmax(logits, axis=1).cumsum(axis=1)).sum(axis=1)
    return logits, np.arange(labels) == gold[:, None]


def judged(rows, seed, labels=3):
    logits, gold = drawn(rows, seed, labels)
    return ScoredRows(softmax(logits, axis=1), gold)


def manifest(task_type="single_label", **decision):
    more = {"format": 2, "decision": decision} if decision else {}
    return parse_manifest(manifest_dict(task_type=task_type, labels=["a", "b", "c"], **more))


@pytest.mark.parametrize("margin", [2.0, 12.0])
def test_rows_that_are_all_answered_rightly_name_no_temperature(margin):
    """By them alone the lowest temperature is the best, and every later wrong answer would have a probability of 1."""
    _, gold = drawn(60, 5)
    logits = margin * gold + np.random.default_rng(6).normal(0, 0.1, gold.shape)
    assert (logits.argmax(axis=1) == gold.argmax(axis=1)).all()
    calibration = calibrate(logits, gold, manifest(), [])
    assert (calibration.decision, calibration.facts["temperature"]["taken"]) == ({}, False)
    assert any("all answers are right" in note for note in calibration.notes)
    assert calibration.facts["auroc_right"] == {"probability": None, "energy": None}


def test_thresholds_for_a_rate_of_false_alarms_are_a_plain_count():
    rows = judged(230, 3)
    for rate in (0.01, 0.05, 0.3):
        cuts = thresholds_for_fpr(rows, rate)
        for label in range(3):
            others = sorted(rows.scores[~rows.right[:, label], label], reverse=True)
            allowed = int(round((len(others) + 1) * rate * 1e9) // 1e9)
            assert cuts[label] == (others[allowed - 1] if allowed else np.inf)


def test_thresholds_for_a_precision_are_the_lowest_that_a_plain_loop_finds():
    rows = judged(300, 5)
    rows = ScoredRows(np.round(rows.scores, 2), rows.right)  # with equal scores
    for precision in (0.6, 0.8, 0.95, 0.999):
        cuts = thresholds_for_precision(rows, precision)
        for label in range(3):
            good = []
            for threshold in [0.0, *rows.scores[:, label]]:
                over = rows.scores[:, label] > threshold
                if over.any() and rows.right[over, label].sum() / (over.sum() + 1) >= precision:
                    good.append(threshold)
            assert cuts[label] == min(good, default=np.inf)


def test_rates_are_counted_for_each_label_and_all_together():
    rows = judged(400, 6)
    cuts = np.array([0.5, 0.9, 1.0])
    counted = as_rates(rates(cuts, rows))
    over = rows.scores > cuts
    for label in range(3):
        hits = (over[:, label] & rows.right[:, label]).sum()
        assert counted.recall[label] == hits / rows.right[:, label].sum()
        assert counted.fpr[label] == (over[:, label] & ~rows.right[:, label]).sum() / (~rows.right[:, label]).sum()
    assert np.isnan(counted.precision[2])  # nothing is over one
    assert counted.precision[3] == (over & rows.right).sum() / over.sum()


@pytest.mark.parametrize(
    "fit",
    [lambda rows: thresholds_for_fpr(rows, 0.05), lambda rows: thresholds_for_precision(rows, 0.8)],
    ids=["fpr", "precision"],
)
def test_rates_on_as_many_new_rows_lie_in_their_intervals(fit):
    """Every rate, whether the thresholds aim at it or not.

    Of 60 calibrations 95 of 100 are promised: fewer than 51 inside would be chance once in 500 times. Intervals of few
    events by the bootstrap are somewhat narrow: 48 are asked of one label, of which a hundred rows are.
    """
    inside = np.zeros(12)
    for seed in range(60):
        low, high = interval_on_new_rows(judged(300, seed), fit, rates)
        new = rates(fit(judged(300, seed)), judged(300, 1000 + seed))
        inside += (low <= new) & (new <= high)
    assert (inside >= 48).all()
    assert (inside[3::4] >= 51).all()


def test_energy_is_taken_where_it_tells_unknown_texts_better():
    """Unknown texts whose logits are all low, and as far apart as those of the others: no probability shows that."""
    logits, gold = drawn(300, 8)
    calibration = calibrate(logits + 5, gold, manifest(), targets_of(["coverage=0.9"]), drawn(100, 9)[0])
    assert calibration.facts["abstain"]["by"] == "energy"
    assert set(calibration.decision["abstain"]) == {"energy"}
    assert calibration.facts["unknown"]["energy"]["auroc"] > 0.95
    assert calibration.facts["unknown"]["probability"]["auroc"] < 0.6
    # Without them, rows that are answered wrongly decide: by probability, which these logits are made for.
    assert set(calibrate(logits, gold, manifest(), targets_of(["coverage=0.9"])).decision["abstain"]) == {"below"}


def test_texts_that_are_cut_count_as_unanswered_where_the_task_abstains_on_them():
    logits, gold = drawn(400, 11)
    truncated = np.arange(400) % 4 == 0

    def calibrated(target, cut):
        return calibrate(logits, gold, manifest(cut=cut), targets_of([target]), truncated=truncated)

    abstaining = calibrated("coverage=0.6", "abstain")
    answered = (softmax(logits, axis=1).max(axis=1) >= abstaining.decision["abstain"]["below"]) & ~truncated
    rates = abstaining.facts["abstain"]
    assert rates["coverage"]["here"] == answered.mean() == pytest.approx(0.6, abs=0.01)
    assert rates["right"]["here"] == gold[answered, logits[answered].argmax(axis=1)].mean()
    assert rates["coverage"]["high"] < 0.75, "no more are ever answered"
    reason = r"the task abstains on texts that are cut, 100 of the 400 here: ask for coverage=0\.7481 or less"
    with pytest.raises(InvalidData, match=reason):
        calibrated("coverage=0.76", "abstain")
    calibrated("coverage=0.7481", "abstain")
    assert calibrated("coverage=0.9", "ends").decision["abstain"]


def test_what_a_delta_decides_already_stays():
    logits, gold = drawn(500, 10)
    decision = {"positives": ["a"], "thresholds": {"a": 0.7}, "window": {"tokens": 8, "overlap": 0, "reduction": "max"}}
    calibration = calibrate(logits * 4, gold, manifest(**decision), [])
    assert calibration.decision == decision
    assert not calibration.facts["temperature"]["taken"]
    assert "thresholds of the delta are for it" in calibration.notes[0]
    assert not calibration.facts["temperature"]["calibrated"]
    calibration = calibrate(logits * 4, gold, manifest(**decision), targets_of(["fpr=0.05"]))
    assert calibration.decision.keys() == {*decision, "temperature"}
    assert calibration.decision["positives"] == ["a"]


@pytest.mark.parametrize("target", ["fpr=0.05", "precision=0.7"])
def test_targets_touch_the_thresholds_of_positive_labels_alone(target):
    logits, gold = drawn(500, 10)
    whole = calibrate(logits, gold, manifest(), targets_of([target]))
    assert whole.decision["thresholds"].keys() == {"a", "b", "c"}
    some = calibrate(logits, gold, manifest(positives=["c", "a"]), targets_of([target]))
    assert some.decision["thresholds"] == {name: whole.decision["thresholds"][name] for name in "ca"}
    by_label = {label["label"]: label for label in whole.facts["thresholds"]["labels"]}
    for label in some.facts["thresholds"]["labels"]:
        assert label["precision"]["here"] == by_label[label["label"]]["precision"]["here"]
    # Both positive labels together are counted without the third.
    thresholds = np.array([some.decision["thresholds"][name] for name in "ac"])
    over = softmax(logits / some.decision.get("temperature", 1.0), axis=1)[:, [0, 2]] > thresholds
    assert some.facts["thresholds"]["all"]["recall"]["here"] == (over & gold[:, [0, 2]]).sum() / gold[:, [0, 2]].sum()
    # A threshold of another label stays, and with it the temperature that it is for.
    calibration = calibrate(
        logits * 4, gold, manifest(positives=["a"], thresholds={"a": 0.7, "b": 0.9}), targets_of([target])
    )
    assert calibration.decision["thresholds"]["b"] == 0.9
    assert "temperature" not in calibration.decision


def test_stated_rules_are_written_as_they_are_and_the_temperature_is_free_of_them():
    logits, gold = drawn(500, 10)
    of = manifest(thresholds={"a": 0.7}, positives=["a"])
    calibration = calibrate(logits * 4, gold, of, [], None, fixed_rules(["a=0.8"], None, of))
    assert calibration.decision["thresholds"] == {"a": 0.8}
    assert calibration.facts["temperature"]["taken"]
    bound = calibrate(logits * 4, gold, of, [], None, fixed_rules(["b=0.8"], None, of))
    assert bound.decision["thresholds"] == {"a": 0.7, "b": 0.8}
    assert not bound.facts["temperature"]["taken"]


@pytest.mark.parametrize(
    ("task_type", "options", "why"),
    [
        ("single_label", (["a"], None), "--threshold a: write LABEL=SCORE, such as spam=0.8"),
        ("single_label", (["d=0.5"], None), "--threshold d is no label of the task; it has 'a', 'b', 'c'"),
        ("single_label", (["A=0.5"], None), "--threshold A is no label of the task; is a meant?"),
        ("single_label", (["a=0.5", "a=0.6"], None), "--threshold: a has two"),
        ("single_label", (["a=8"], None), "--threshold a=8: a score of this task is a probability from 0 to 1"),
        ("single_label", (["a=0,5"], None), "--threshold a=0,5: a score of this task is a probability from 0 to 1"),
        ("single_label", (["\x1b[31m=1"], None), "--threshold ?[31m is no label of the task; it has 'a', 'b', 'c'"),
        ("single_label", ([], "a,b,c"), "--positive: one label of a single_label task is not positive"),
        ("token", (["a=0.5"], None), "--threshold: the labels of a token task have none"),
    ],
)
def test_stated_rules_that_no_task_can_have_are_one_sentence(task_type, options, why):
    more = {"pooling": "none", "golden": None} if task_type == "token" else {}
    of = parse_manifest(manifest_dict(task_type=task_type, labels=["a", "b", "c"], **more))
    with pytest.raises(InvalidSettings) as caught:
        fixed_rules(*options, of)
    assert caught.value.detail == why


def test_a_label_may_have_an_equals_sign_in_its_name():
    of = parse_manifest(manifest_dict(task_type="single_label", labels=["x=1", "x", "y"]))
    assert fixed_rules(["x=1=0.5", "x=0.25"], "x=1", of).thresholds == {"x=1": 0.5, "x": 0.25}


def test_positive_labels_keep_the_usual_threshold_beside_one_that_is_stated():
    of = manifest(positives=["a", "b"])
    decision, notes = fixed_rules(["a=0.8"], None, of).decided(of)
    assert decision.thresholds == {"a": 0.8, "b": 0.5}
    assert notes == ["positive labels without a threshold get the usual 0.5: 'b'"]
    scored = score(np.array([[0.0, 1.5, 0.0]]), of.model_copy(update={"decision": decision}))
    assert scored.selected.tolist() == [[False, True, False]]
    several = manifest("multi_label", positives=["a", "b"])
    decision, notes = fixed_rules(["a=0.8"], None, several).decided(several)
    assert (decision.thresholds, notes) == ({"a": 0.8}, [])  # the others have one half without it


@pytest.mark.parametrize(
    ("rows", "target", "message"),
    [
        (50, "fpr=0.01", r"that at least 99 rows do not have, and here none is absent from more than \d+: give"),
        (50, "precision=0.99", r"needs a label that at least 99 rows have, and here none has more than \d+: give more"),
        (3000, "precision=0.9985", "the highest precision that these rows promise is 0.9"),
        (50, "coverage=0.99", "at least 99 rows, and here are 50: give more rows, or ask for coverage=0.9803 or less"),
    ],
)
def test_what_rows_cannot_promise_is_refused_with_what_they_can(rows, target, message):
    logits, gold = drawn(rows, 11)
    with pytest.raises(InvalidData, match=message):
        calibrate(logits, gold, manifest(), targets_of([target]))


@pytest.mark.parametrize("rows", [30, 49, 50, 77])
@pytest.mark.parametrize("target", ["fpr=0.001", "coverage=0.999"])
def test_what_a_refusal_tells_to_ask_for_can_be_promised(rows, target):
    logits, gold = drawn(rows, 11)
    with pytest.raises(InvalidData) as caught:
        calibrate(logits, gold, manifest(), targets_of([target]))
    other = re.search(r"or ask for (\w+=[\d.]+) or (more|less)$", caught.value.detail)[1]
    assert calibrate(logits, gold, manifest(), targets_of([other])).decision


def test_labels_that_keep_no_promise_are_never_selected():
    logits, gold = drawn(400, 12)
    logits[:, 2] = np.random.default_rng(0).normal(size=400) - 3
    calibration = calibrate(logits, gold, manifest(), targets_of(["precision=0.9"]))
    assert calibration.decision["thresholds"]["c"] == 1.0
    (note,) = calibration.notes
    assert note.startswith("no threshold of these labels keeps precision=0.9, and they are never selected: 'c' (")
    order = np.argsort(-softmax(logits / calibration.decision.get("temperature", 1.0), axis=1)[:, 2])
    best = max(np.cumsum(gold[order, 2]) / (np.arange(400) + 2))
    assert note.endswith(f"(the highest precision that one promises is {best:.3g})")


def test_a_label_that_nearly_all_rows_have_is_said_to_lack_rows_without_it():
    logits, gold = drawn(400, 12)
    gold[:] = np.eye(3, dtype=bool)[np.where(np.arange(400) < 330, 0, 1)]
    calibration = calibrate(logits, gold, manifest(), targets_of(["fpr=0.01"]))
    assert calibration.notes[-1].endswith("they are never selected: 'a' (70 rows without it, and 99 are needed)")


def test_targets_and_tasks_that_are_none_are_refused():
    for targets in (["fpr"], ["fpr=1"], ["fpr=nan"], ["recall=0.9"], ["fpr=0.1", "precision=0.9"], ["coverage=0"]):
        with pytest.raises(InvalidSettings, match=r"--target (is|takes)"):
            targets_of(targets)
    for of in (manifest("regression"), manifest(activation="none")):
        with pytest.raises(InvalidInput, match="can be calibrated"):
            calibrate(*drawn(20, 0), of, [])


def ask(*arguments):
    done = invoke(command, *arguments)
    assert done.exception is None, done.exception
    return done.stdout


@pytest.fixture
def task(tmp_path):
    """A delta, rows that it is far too unsure of, and how it scores them."""
    spec = load_base(str(tiny_base())).spec
    tensors = far_delta(spec, "bitfit", "mean", 3, seed=3)
    tensors["head.weight"] *= 3
    training = {"task": "tone"}
    made = manifest_for(spec, labels=3, task_type="multi_label", training=training)
    save(tmp_path / "tone.safetensors", Delta(parse_manifest(made), tensors))
    rng = np.random.default_rng(13)
    words = "the a parcel order invoice password screen late broken thanks please help good bad refund".split()
    texts = [" ".join(rng.choice(words, 5)) for _ in range(300)]
    model = onebert.load(tmp_path / "tone.safetensors", base=str(tiny_base()), device="cpu")
    scores = np.array([[result.scores[name] for name in model.labels] for result in model.classify(texts)])
    gold = rng.uniform(size=scores.shape) < expit(4 * np.log(scores / (1 - scores)))
    names = np.array(model.labels)
    rows = [json.dumps({"text": text, "label": list(names[result])}) for text, result in zip(texts, gold, strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    return tmp_path, texts, gold


def test_no_file_that_is_read_is_written_over(task):
    folder, _, _ = task
    rows = (folder / "rows.jsonl").read_bytes()
    done = invoke(command, folder / "tone.safetensors", "--data", folder / "rows.jsonl", "--out", folder / "rows.jsonl")
    assert (type(done.exception), str(done.exception)) == (InvalidSettings, "--out is a file that is read")
    assert (folder / "rows.jsonl").read_bytes() == rows


def test_the_new_file_has_equal_tensors_and_answers_as_the_command_says(task):
    folder, texts, gold = task
    before, out = folder / "tone.safetensors", folder / "tone-calibrated.safetensors"
    common = (before, "--data", folder / "rows.jsonl", "--target", "fpr=0.1", "--target", "coverage=0.8")
    record = json.loads(ask(*common, "--json"))
    first, two = load(before), load(out)
    assert record["out"] == {"file": str(out), "digest": two.digest}
    assert record["digest"] == first.digest != two.digest
    assert {name: value.tobytes() for name, value in first.tensors.items()} == {
        name: value.tobytes() for name, value in two.tensors.items()
    }
    assert first.manifest.model_dump(
        exclude={"format", "decision", "training", "reference"}
    ) == two.manifest.model_dump(exclude={"format", "decision", "training", "reference"})
    assert two.manifest.training["calibration"]["of"] == first.digest
    assert two.manifest.training["calibration"]["thresholds"]["target"] == "fpr=0.1"
    assert two.manifest.training["calibration"]["temperature"] == record["temperature"]
    assert two.manifest.decision.temperature == pytest.approx(0.25, rel=0.3)  # labels were drawn at that
    assert record["notes"] == []

    answers = onebert.load(out, base=str(tiny_base()), device="cpu").classify(texts)
    selected = np.array([[name in first.labels for name in two.manifest.labels] for first in answers])
    together = record["thresholds"]["all"]
    # A row whose score is the threshold itself may be rounded over it: its text is computed in other company here.
    assert (selected & ~gold).sum() / (~gold).sum() == pytest.approx(together["fpr"]["here"], abs=0.01)
    assert (selected & gold).sum() / gold.sum() == pytest.approx(together["recall"]["here"], abs=0.01)
    assert np.mean([not first.abstained for first in answers]) == pytest.approx(
        record["abstain"]["coverage"]["here"], abs=0.01
    )
    assert together["fpr"]["low"] < 0.1 < together["fpr"]["high"]

    shown = ask(*common)
    assert "Thresholds for fpr=0.1" in shown
    assert f"next: onebert push {out}" in shown.replace("\n", "")


def test_a_threshold_and_positive_labels_are_written_without_rows(task):
    folder, texts, _ = task
    before, out = folder / "tone.safetensors", folder / "tone-calibrated.safetensors"
    labels = load(before).manifest.labels
    stated = ("--threshold", f"{labels[0]}=0.8", "--threshold", f"{labels[2]}=0", "--positive", labels[0])
    record = json.loads(ask(before, *stated, "--json"))
    first, two = load(before), load(out)
    assert two.manifest.decision.thresholds == {labels[0]: 0.8, labels[2]: 0.0}
    assert two.manifest.decision.positives == [labels[0]]
    assert two.manifest.training["calibration"] == {"of": first.digest, "stated": record["stated"]}
    assert {name: value.tobytes() for name, value in first.tensors.items()} == {
        name: value.tobytes() for name, value in two.tensors.items()
    }
    for answer in onebert.load(out, base=str(tiny_base()), device="cpu").classify(texts[:50]):
        over = {labels[0]: 0.8, labels[1]: 0.5, labels[2]: 0.0}
        assert set(answer.labels) == {name for name, score in answer.scores.items() if score > over[name]}

    again = ask(out, "--positive", labels[0], "--out", folder / "again.safetensors")
    assert "nothing is written: the decision of the delta has all that already" in again
    shown = ask(before, "--threshold", f"{labels[0]}=0.8")
    assert f"thresholds {labels[0]} 0.8" in " ".join(shown.split())
    assert f"next: onebert push {out}" in shown.replace("\n", "")


def test_a_calibrated_file_keeps_its_history_and_its_reference_where_answers_stay(task):
    folder, *_ = task
    rows = folder / "rows.jsonl"
    ask(folder / "tone.safetensors", "--data", rows, "--out", folder / "one.safetensors")
    manifest_ = load(folder / "one.safetensors").manifest
    assert manifest_.reference is not None
    ask(folder / "one.safetensors", "--positive", manifest_.labels[0], "--out", folder / "two.safetensors")
    two = load(folder / "two.safetensors").manifest
    assert two.reference == manifest_.reference
    assert two.decision.temperature == manifest_.decision.temperature
    assert two.training["calibration"]["data"] == manifest_.training["calibration"]["data"]
    ask(folder / "two.safetensors", "--threshold", f"{manifest_.labels[0]}=0.9", "--out", folder / "three.safetensors")
    assert load(folder / "three.safetensors").manifest.reference is None  # it counts other answers


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "give --data to fit to, or --threshold or --positive"),
        (["--target", "fpr=0.1"], "only --threshold and --positive need no rows: give --data"),
        (["--positive", "a", "--text", "t"], "only --threshold and --positive need no rows: give --data"),
        (
            ["--threshold", "a=1", "--target", "fpr=0.1", "--data", "rows.csv"],
            "--threshold states the thresholds that --target fpr or precision would fit: give one",
        ),
    ],
)
def test_options_that_contradict_each_other_are_one_sentence(tmp_path, options, why):
    done = invoke(command, tmp_path / "none.safetensors", *options)
    assert (type(done.exception), str(done.exception)) == (InvalidSettings, why)
