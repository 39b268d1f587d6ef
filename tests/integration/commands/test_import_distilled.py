"""`onebert import --distil`: a delta learns what models of other architectures answer, and is held against them."""

import csv
import hashlib
import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from scipy import stats
from transformers import AutoTokenizer

from bases import tiny_base
from ended import recorded, refused
from fine_tuned import TEXTS, WORDS, fine_tune
from onebert_encoder.base.base import load_base
from onebert_store.file.format import load
from peft_models import delta_logits

SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
# No family of ours, and with position and content kept apart.
DEBERTA = partial(
    transformers.DebertaV2Config, **SMALL, max_position_embeddings=64, relative_attention=True, pos_att_type="c2p|p2c"
)
# Every fifth text is compared on: all four words are there.
COMPARED = TEXTS[::5]
LEARNED = [text for text in TEXTS if text not in COMPARED]


def everything(_):
    return True


def write(path, texts):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return {"--distil": write(folder / "learned.csv", LEARNED), "--data": write(folder / "compared.csv", COMPARED)}


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A DeBERTa of which all is trained, as transformers saves it."""
    folder = tmp_path_factory.mktemp("foreign") / "tone"
    fine_tune(folder, trained=everything, steps=60, fresh=DEBERTA)
    return folder


def ask(folder, out, files, *more):
    options = [one for option in files.items() for one in option]
    return ("import", folder, "--base", tiny_base(), *options, "--out", out, "--agree", "0.8", *more)


def both_logits(folder, auto_class, delta, texts):
    """What transformers computes with the folder's own tokenizer, and what a server would with the base's."""
    model, tokenizer = auto_class.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        theirs = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.numpy()
    base = load_base(str(tiny_base()))
    return theirs, np.stack(delta_logits(base, delta, base.tokenizer.encode(texts, delta.manifest.max_length)))


@pytest.mark.parametrize(
    ("family", "task", "fresh"),
    [
        ("bert", "single_label", DEBERTA),
        # Another tokenizer, of bytes.
        ("roberta", "multi_label", None),
        ("distilbert", "regression", None),
    ],
)
def test_a_delta_learns_the_answers_of_another_architecture(onebert, files, tmp_path, family, task, fresh):
    folder, out = tmp_path / "tone", tmp_path / "tone.safetensors"
    model = fine_tune(folder, family, task, everything, steps=60, fresh=fresh)
    said = ("--task-type", task) if fresh else ()
    record, error = recorded(onebert(*ask(folder, out, files, *said, "--epochs", "8", "--json")))
    delta = load(out)
    theirs, ours = both_logits(folder, transformers.AutoModelForSequenceClassification, delta, COMPARED)
    assert theirs.std(axis=0).min() > 0.1, "a teacher that answers all texts alike teaches nothing"
    if task == "regression":
        correlation = np.corrcoef(theirs[:, 0], ours[:, 0])[0, 1]
        # A shift or another scale lowers concordance below correlation.
        assert correlation + 1e-6 >= record["agreement"] >= 0.8
        low, high = record["agreement_interval"]
        assert low < record["agreement"] < high
    else:
        same = theirs.argmax(-1) == ours.argmax(-1) if task == "single_label" else ((theirs > 0) == (ours > 0)).all(-1)
        assert same.mean() == record["agreement"] >= 0.8
        interval = stats.binomtest(int(same.sum()), len(same)).proportion_ci(method="wilson")
        assert record["agreement_interval"] == pytest.approx([interval.low, interval.high])
    assert (record["texts"], record["learned_texts"]) == (len(COMPARED), len(LEARNED))
    assert "another architecture" in record["not_by_rank"] or "is not supported" in record["not_by_rank"]
    assert "of the checkpoint's answers on validation" in error
    manifest = delta.manifest
    assert (manifest.task_type, manifest.max_length) == (task, 64)
    assert list(manifest.labels) == list(model.config.id2label.values())
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    training = manifest.training
    assert training["teacher"] == {"digest": f"sha256:{weights}", "texts": len(LEARNED)}
    assert training["agreement"]["interval"] == record["agreement_interval"]
    assert (training["imported_from"], training["checkpoint"]) == ("checkpoint", "tone")
    assert "task" not in training
    # Nothing is left of the training.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tone", "tone.safetensors"]
