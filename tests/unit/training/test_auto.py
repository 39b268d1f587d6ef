"""`--method auto`: the choice is that of the methods trained apart, by scores, standard errors and sizes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bases import tiny_base
from onebert_store.errors import InvalidMethod, InvalidSettings
from onebert_store.file.format import load
from onebert_training.contest.auto import choice_file, choose, dear, make_comparison
from onebert_training.contest.contest import train_kept
from onebert_training.contest.few import fold_runs
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import take_step, train
from onebert_training.fit.settings import DEFAULT_METHOD, Settings, methods_for
from onebert_training.fit.state import State
from onebert_training.methods.methods import parse_method
from onebert_training.prepared import prepare
from trainings import interrupted

pytestmark = pytest.mark.nightly("trainings")


QUICK = Settings(method="auto", epochs=4, batch_size=8, learning_rate=5e-3, patience=0)  # 24 steps: fewer than a look's


def comparison_of(base, data, **changes):
    return make_comparison(TaskInputs(base, data, 40), replace(QUICK, **changes), "tone")


@pytest.fixture(scope="module")
def hard(data):
    """Rows of which every fifth says the opposite of its text, so that nothing answers all of them rightly."""
    splits = {
        name: replace(split, gold=np.where(np.arange(len(split)) % 5, split.gold, 1 - split.gold))
        for name, split in data.splits.items()
    }
    return replace(data, splits=splits)


@pytest.fixture(scope="module")
def few(hard):
    """The same without a validation split: its rows are judged by folds."""
    return replace(hard, splits={"train": hard.splits["train"]})


def right_apart(run):
    """Which rows a method trained by itself answers rightly: validation rows, or each row by the fold without it."""
    split = "validation" if run.validates else "train"
    if run.plan.exact:
        logits = run.yardsticks.answers.logits
    elif run.validates:
        logits = run.logits(run.model(last_values(run)), "validation")
    else:
        answered = {}
        for fold in fold_runs(run):
            answered |= zip(fold.held_out.tolist(), train(fold).held_out, strict=True)
        logits = [answered[row] for row in range(len(answered))]
    return (np.stack(logits).argmax(axis=1) == run.data.splits[split].gold).astype(float)


def last_values(run):
    state = State(run.init_values(), run.averaged_steps)
    while state.step < run.steps:
        take_step([(run, state)])
    return state.averaged


@pytest.mark.parametrize("kind", ["hard", "few"])
def test_what_is_compared_scores_as_it_does_apart_and_the_smallest_near_the_best_is_chosen(base, kind, request):
    data = request.getfixturevalue(kind)
    comparison = comparison_of(base, data)
    choice = choose(comparison)
    methods = choice.facts["methods"]
    apart = {run.method.text: right_apart(run) for run in comparison.runs}
    rows = len(data.splits["validation" if kind == "hard" else "train"])
    assert list(methods) == list(apart)
    assert [*apart][:3] == ["head", "layernorm", "bitfit"]
    assert (choice.facts["rows"], choice.facts["folds"]) == (rows, 0 if kind == "hard" else 5)
    going = [name for name, said in methods.items() if said["left"] is None]
    for name in going:
        # Neighbors in a batch change the rounding, by which an answer or two near the middle may turn.
        assert methods[name]["score"] == pytest.approx(apart[name].mean(), abs=2.01 / rows)
        assert methods[name]["lead"] == pytest.approx(methods[name]["score"] - methods[choice.facts["chosen"]]["score"])
    best = max(going, key=lambda name: methods[name]["score"])
    for name in going[: going.index(choice.facts["chosen"])]:
        assert methods[name]["score"] < methods[best]["score"]
    assert choice.run.method.text == choice.facts["chosen"]
    assert f"chosen: {choice.facts['chosen']}, accuracy {methods[choice.facts['chosen']]['score']:.4f}" in choice.line
    assert all(name in choice.line for name in methods)


def test_the_dearest_leave_until_the_rest_fits_a_budget():
    prices = {"layernorm": 20.0, "bitfit": 30.0, "low-rank": 10.0}
    assert dear(prices, 60.0, spare=False) == []
    assert dear(prices, 59.0, spare=False) == ["bitfit"]
    assert dear(prices, 29.0, spare=False) == ["bitfit", "layernorm"]
    assert dear(prices, 1.0, spare=False) == ["bitfit", "layernorm", "low-rank"]
    assert dear(prices, 1.0, spare=True) == ["bitfit", "layernorm"]


def test_a_budget_without_room_leaves_what_costs_no_step_and_says_so(base, few):
    notes = []
    comparison = comparison_of(base, few, time_budget=1e-6)
    choice = choose(comparison, lambda _, progress: notes.append(progress.note))
    assert choice.facts["chosen"] == choice.run.method.text == "head"
    left = {name for name, said in choice.facts["methods"].items() if said["left"] == "left out for the time budget"}
    assert left == {run.method.text for run in comparison.runs} - {"head"}
    assert sorted(note.split(" is left out")[0] for note in notes) == sorted(left)
    assert "left out for the time budget" in choice.line


def test_a_head_that_is_chosen_has_the_rows_that_were_held_out_too(base, hard):
    own, held = hard.splits["train"], hard.splits["validation"]
    run = choose(comparison_of(base, replace(hard, whole=own.joined(held)), time_budget=1e-6)).run
    assert run.data.splits["train"].texts == (*own.texts, *held.texts)
    assert "validation" not in run.data.splits
    result = train(run)
    assert result.folds == run.yardsticks.folds == 5
    assert result.validation == run.yardsticks.exact.scores["validation"]
    assert result.delta.manifest.training["data"]["rows"]["train"] == len(own) + len(held)


def test_a_budget_that_does_not_bite_changes_nothing(base, hard):
    free, bound = (comparison_of(base, hard, max_steps=6, time_budget=budget) for budget in (None, 1e6))
    assert choose(bound).facts == choose(free).facts


def test_a_task_without_an_exact_head_leaves_it_out_and_keeps_one_method(base, questions):
    comparison = comparison_of(base, questions, max_steps=4)
    methods = [run.method.text.partition(":")[0] for run in comparison.runs]
    assert methods == ["layernorm", "bitfit", "spafit", "bitfit+gamma"]
    assert choose(comparison).run in comparison.runs
    (kept,) = (s for s in choose(replace(comparison, budget=1e-6)).facts["methods"].values() if not s["left"])
    assert kept["score"] is None


@pytest.mark.parametrize("kind", ["numbers", "tags", "several", "pairs"])
@pytest.mark.parametrize("validated", [True, False])
def test_every_other_task_type_is_chosen_for(base, data, tags, tmp_path, kind, validated):
    if kind == "tags":
        found = tags
    else:
        for split, count in {"train": 40, "validation": 12}.items():
            rows = [written(kind, i) for i in range(count)]
            (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        found = load_dataset(str(tmp_path))
    if not validated:
        found = replace(found, splits={"train": found.splits["train"]})
    choice = choose(comparison_of(base, found, max_steps=6))
    assert len(choice.facts["methods"]) == 5
    best = max(said["score"] for said in choice.facts["methods"].values() if said["left"] is None)
    assert best >= choice.facts["methods"][choice.facts["chosen"]]["score"]
    json.dumps(choice.facts, allow_nan=False)


def written(kind, i):
    text = f"the order was very {('good', 'bad', 'late')[i % 3]} {i}"
    if kind == "pairs":
        return {"text": text, "text_pair": "was it late?", "label": ("no", "yes")[i % 3 == 2]}
    if kind == "answers":
        thing = ("parcel", "order", "screen")[i % 3]
        answers = {"text": [thing], "answer_start": [4]}
        return {"question": "what was it?", "context": f"the {thing} was broken {i}", "answers": answers}
    if kind == "several":
        return {"text": text, "labels": ["late", "order"][i % 3 != 2 :] if i % 2 else ["order"]}
    return {"text": text, "label": 0.5 + (i % 3) + i / 100}


def test_bases_of_any_depth_have_candidates():
    assert methods_for(12) == ("head", "layernorm", "bitfit", "spafit:5-5-I", DEFAULT_METHOD)
    assert methods_for(6)[-2] == "spafit:2-2-I"
    assert methods_for(3)[-2] == methods_for(2)[-2] == "spafit:0-0-I"
    assert methods_for(1) == ("head", "layernorm", "bitfit", DEFAULT_METHOD)


def test_a_choice_is_read_again_where_the_same_is_compared(base, hard, tmp_path):
    file, notes = choice_file(tmp_path / "tone.checkpoint"), []
    first = choose(comparison_of(base, hard, max_steps=2), file=file)
    again = choose(comparison_of(base, hard, max_steps=2), lambda _, progress: notes.append(progress.note), file)
    assert (again.facts, again.seconds, again.run.fingerprint) == (first.facts, first.seconds, first.run.fingerprint)
    assert notes == [f"{first.facts['chosen']} was chosen before"]
    whole = file.read_bytes()
    other = choose(
        comparison_of(base, hard, max_steps=2, seed=1), lambda _, progress: notes.append(progress.note), file
    )
    assert f"{other.facts['chosen']} was chosen before" not in notes[1:]
    assert file.read_bytes() != whole
    file.write_text('{"of": 1}')
    assert choose(comparison_of(base, hard, max_steps=2), file=file).facts == first.facts


def test_the_training_is_that_of_the_chosen_method_and_an_interrupted_one_goes_on_with_it(tmp_path):
    rows, files = [written("answers", i) for i in range(60)], tmp_path / "files"
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files.mkdir()

    def prepared(name, **changes):
        asked, reading = replace(QUICK, max_steps=12, **changes), DataOptions(validation_share=0.2)
        data = str(tmp_path / "answers.jsonl")
        return prepare("tone", data, reading, asked, str(tiny_base("bert")), device="cpu", out=files / name)

    job = prepared("whole").chosen()
    whole, _ = job.finish(train_kept(job.run, checkpoint_file=job.checkpoint))

    job = prepared("again").chosen()
    with interrupted(lambda _, progress: progress.validation is not None) as report:
        train_kept(job.run, report, job.checkpoint)
    notes = []
    job = prepared("again").chosen(lambda _, progress: notes.append(progress.note))
    again, _ = job.finish(train_kept(job.run, checkpoint_file=job.checkpoint))
    assert notes == [f"{whole['choice']['chosen']} was chosen before"]
    assert again["choice"]["methods"] == whole["choice"]["methods"]
    assert again["resumed_at"] > 0
    assert (files / "again").read_bytes() == (files / "whole").read_bytes()
    named = prepared("named", method=whole["choice"]["chosen"])
    assert named.chosen() is named
    record, _ = named.finish(train_kept(named.run))
    assert record["choice"] is None
    delta, other = load(files / "named"), load(files / "whole")
    assert {name: one.tobytes() for name, one in delta.tensors.items()} == {
        name: one.tobytes() for name, one in other.tensors.items()
    }
    assert other.manifest.method == record["method"]
    said = dict(other.manifest.training)
    assert said.pop("choice") == {name: one for name, one in whole["choice"].items() if name != "seconds"}
    assert said == delta.manifest.training
    assert sorted(path.name for path in files.iterdir()) == ["again", "named", "whole"]


def test_auto_is_refused_where_nothing_chooses():
    for method in ("auto", "bitfit+auto", "auto:3"):
        with pytest.raises(InvalidMethod, match="auto is no method but chooses one"):
            parse_method(method)
    with pytest.raises(InvalidSettings, match="--time-budget is for --method auto"):
        Settings(time_budget=3.0)
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidSettings, match="--time-budget is a number of seconds above 0"):
            Settings(method="auto", time_budget=wrong)
