"""Trainings on pairs: what each head reads, whose answers are the plain model's, and what is compared with what."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from bases import Reference, tiny_base
from onebert_encoder.maths.fold import fold, to_tensors
from onebert_store.errors import InvalidInput, InvalidSettings
from onebert_store.file.format import save
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.features import predict, predict_delta, tokenize
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import train
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.interop.commands import run_export
from onebert_training.prepared import prepare
from onebert_training.selection.few import make_run, read_pairs, train_judged
from onebert_training.selection.selection import train_and_select
from trainings import short_run

QUICK = Settings(epochs=4, batch_size=8, learning_rate=5e-3)
SIZES = {"train": 48, "validation": 20, "test": 12}


@pytest.fixture(scope="module")
def pair_folder(tmp_path_factory):
    """Pairs of praise or complaint, of which it is asked whether both are the same."""
    path = tmp_path_factory.mktemp("pairs")
    for split, count in SIZES.items():
        rows = []
        for i in range(count):
            first, other = ("good", "bad")[i % 2], ("good", "bad")[i // 2 % 2]
            rows.append(
                f"the parcel was very {first} {i},my order of {i} was {other},{'yes' if first == other else 'no'}"
            )
        (path / f"{split}.csv").write_text("\n".join(["text,text_pair,label", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def pairs(pair_folder):
    return load_dataset(str(pair_folder))


@pytest.fixture(scope="module")
def few(tmp_path_factory, pair_folder):
    """Two dozen pairs, all of which are trained on."""
    path = tmp_path_factory.mktemp("few")
    rows = (pair_folder / "train.csv").read_text().splitlines()[:25]
    (path / "train.csv").write_text("\n".join(rows) + "\n")
    return load_dataset(str(path), keep_few=True)


def test_inputs_are_read_as_asked_from_either_reading(base, pairs):
    whole = TaskInputs(base, pairs, 40)
    apart = whole.reading("siamese")
    assert apart.siamese
    for inputs in (whole, apart):
        assert (inputs.reading("mean"), inputs.reading("siamese")) == (whole, apart)


run_of = partial(short_run, settings=QUICK)


@pytest.mark.parametrize("method", ["bitfit", "spafit:0-1-II,r=2", "lora-xs:r=2", "svd:r=2", "frozen", "head"])
def test_a_siamese_file_answers_as_the_plain_model(base, pairs, method):
    run = run_of(base, pairs, method=method, pooling="siamese", epochs=1)
    delta = train(run).delta
    assert delta.manifest.pooling == "siamese"
    reference = Reference(tiny_base("bert"), delta.tensors, "siamese")
    texts = pairs.splits["test"].texts
    logits = predict_delta(base, delta, tokenize(base, delta.manifest, texts))
    above = predict(base, fold(base, to_tensors(delta, base), "siamese"), run.features("test"))
    for (text, other), got, entered_above in zip(texts, logits, above, strict=True):
        first, two = (base.tokenizer.encode([half], 40)[0].input_ids for half in (text, other))
        wanted = reference.logits(first + two, second=len(first)).numpy()
        # Sums of another order, through three layers and a norm: as in tests/integration/exactness.
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4)
        np.testing.assert_allclose(entered_above, wanted, rtol=0, atol=1e-4)


def test_a_run_on_both_as_one_text_is_compared_with_the_exact_head_on_each(base, pairs):
    selected = train_and_select(run_of(base, pairs))
    assert set(selected.facts["validation"]) == {"fresh", "head", "alone"}
    alone = train(run_of(base, pairs, method="head"))
    measured = run_of(base, pairs, method="head").baselines.answers.scores
    assert selected.facts["validation"]["alone"] == measured[selected.result.metric]
    poolings = {"fresh": "mean", "head": "siamese", "alone": "siamese"}
    assert selected.result.delta.manifest.pooling == poolings[selected.facts["kept"]]
    assert alone.delta.manifest.pooling == "siamese"


def scores_of(base, data, pooling):
    run = run_of(base, data, method="head", pooling=pooling)
    return run.baselines.answers.scores[run.metric]


@pytest.mark.parametrize("turned", [False, True])
def test_few_pairs_are_read_as_the_exact_head_answers_better(base, pairs, turned):
    """One set where that is each text on its own, and one whose labels are a word's, which both readings find."""
    data = pairs
    if turned:
        by_first = {
            name: replace(split, gold=np.array(["good" in text for text, _ in split.texts], dtype=np.int64))
            for name, split in pairs.splits.items()
        }
        data = replace(pairs, splits=by_first)
    asked = replace(QUICK, method="bitfit")
    settings = read_pairs(TaskInputs(base, data, 40), asked, "same")
    together, apart = (scores_of(base, data, pooling) for pooling in ("mean", "siamese"))
    assert (apart > together) is not turned
    assert settings == replace(asked, pooling="siamese" if apart > together else "mean")
    head = Run(TaskInputs(base, data, 40), settings, "same").baselines.answers
    assert head.scores["accuracy"] == max(together, apart)
    (note,) = (note for note in Run(TaskInputs(base, data, 40), settings, "same").notes if "of a pair" in note)
    assert ("each text of a pair is read on its own" in note) == (apart > together)


@pytest.mark.parametrize("pooling", [None, "siamese"])
def test_few_pairs_are_trained_and_judged_in_folds(base, few, pooling):
    run = make_run(TaskInputs(base, few, 40), replace(QUICK, max_steps=8, pooling=pooling), "same")
    result = train_judged(run)
    assert result.folds > 1
    assert len(result.measured.logits) == 24
    assert all(np.isfinite(logits).all() for logits in result.measured.logits)
    assert result.delta.manifest.pooling == (pooling or "mean")


def test_what_no_checkpoint_can_hold_is_refused_before_training_and_at_export(base, pair_folder, pairs, tmp_path):
    settings = replace(QUICK, method="full", pooling="siamese")
    with pytest.raises(InvalidSettings, match="none compares two texts"):
        prepare("same", str(pair_folder), DataOptions(), settings, base=str(tiny_base("bert")), out=tmp_path / "out")
    save(tmp_path / "same.safetensors", train(run_of(base, pairs, method="head")).delta)
    with pytest.raises(InvalidInput, match="compares two texts"):
        run_export(tmp_path / "same.safetensors", None, None, None, str(tiny_base("bert")), as_json=True)


def test_single_texts_are_not_compared(base, data):
    with pytest.raises(InvalidSettings, match="siamese pooling compares the two texts of a pair"):
        run_of(base, data, pooling="siamese")
