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
from fine_tuned import TEXTS, fine_tune
from onebert_encoder.base.base import load_base
from onebert_store.file.format import load
from peft_models import delta_logits

SMALL = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
# Positions have maps of their own, which no delta holds.
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
    options = [part for option in files.items() for part in option]
    return ("import", folder, "--base", tiny_base(), *options, "--out", out, "--agree", "0.8", *more)


def both_logits(folder, auto_class, delta, texts):
    """What transformers computes with the folder's own tokenizer, and what a server would with the base's."""
    model, tokenizer = auto_class.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        theirs = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.numpy()
    base = load_base(str(tiny_base()))
    return theirs, np.stack(delta_logits(base, delta, base.tokenizer.encode(texts, delta.manifest.max_length)))


def another_bert(vocab_size, pad_token_id, **config):
    """The base's shapes, with other weights: embeddings, too, which no delta holds."""
    return transformers.AutoConfig.from_pretrained(tiny_base(), **config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "task", "fresh", "missed"),
    [
        # Without its embeddings no rank agrees: the concordance is near 0.
        ("bert", "regression", another_bert, "no rank gives more"),
        # Another tokenizer, of bytes.
        ("roberta", "multi_label", None, "another architecture"),
        ("bert", "single_label", DEBERTA, "share_att_key in its config.json"),
    ],
)
def test_a_delta_learns_the_answers_that_no_rank_gives(onebert, files, tmp_path, family, task, fresh, missed):
    folder, out = tmp_path / "tone", tmp_path / "tone.safetensors"
    model = fine_tune(folder, family, task, everything, steps=60, fresh=fresh)
    # DeBERTa does not write it down.
    options = ("--task-type", task) if fresh is DEBERTA else ()
    record, error = recorded(onebert(*ask(folder, out, files, *options, "--epochs", "8", "--json")))
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
    assert missed in record["not_by_rank"]
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


def test_a_lower_agreement_takes_up_the_training(onebert, foreign, tmp_path):
    """Pairs, a fifth of which are held out to compare on."""
    path, out = tmp_path / "pairs.csv", tmp_path / "tone.safetensors"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text", "text_pair"], *zip(TEXTS, reversed(TEXTS), strict=True)])
    asked = ask(foreign, out, {"--distil": path}, "--task-type", "single_label", "--method", "bitfit", "--epochs", "2")
    status, _, error = onebert(*asked, "--max-difference", "1e-6")
    assert status == 1
    assert "and not 0.8 with differences up to 1e-06, although bitfit learned 256 other texts; with a lower" in error
    assert not out.exists()
    record, error = recorded(onebert(*asked, "--agree", "0.1", "--json"))
    # All steps were taken before.
    assert error.count("note: continued at step ") == 1
    assert "on validation" not in error
    assert (record["texts"], record["learned_texts"]) == (64, 256)
    assert load(out).manifest.training["data"]["pairs"] is True
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.csv", "tone.safetensors"]


def with_config(**changed):
    def damage(folder):
        path = folder / "config.json"
        config = json.loads(path.read_text()) | changed
        path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))

    return damage


def without_tensor(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["classifier.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def without_fast_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


REMOTE = {"model_type": "newbert", "auto_map": {"AutoConfig": "code.Config"}}
SINGLE = ("--task-type", "single_label")
FUNNEL = {"model_type": "funnel", "architectures": ["FunnelForSequenceClassification"], "num_hidden_layers": None}
ALBERT = {"model_type": "albert", "architectures": ["AlbertForSequenceClassification"]}


@pytest.mark.parametrize(
    ("damage", "asked", "words"),
    [
        (None, (), "does not tell one label of a text from several: give --task-type single_label or multi_label"),
        (None, (*SINGLE, "--method", "full"), "full changes the base itself, which no delta holds"),
        (None, (*SINGLE, "--method", "nothing"), "nothing"),
        (with_config(**REMOTE), SINGLE, "newbert is no architecture of transformers, and the code of a checkpoint is"),
        (with_config(architectures=["DebertaV2ForTokenClassification"]), SINGLE, "only answers to whole texts are le"),
        (with_config(num_hidden_layers=10**9), SINGLE, "a number in its config.json is over 16,777,216"),
        (with_config(pooler_hidden_size=2**24), SINGLE, "describes a far larger model than it has weights for"),
        (with_config(hidden_size="wide"), SINGLE, "its config.json cannot be read: "),
        # Layers by other names than "layer".
        (with_config(**FUNNEL, block_sizes=[1] * 100_000), SINGLE, "describes a far larger model than it has weights"),
        (with_config(**ALBERT, inner_group_num=100_000), SINGLE, "describes a far larger model than it has weights"),
        (with_config(hidden_size=48), SINGLE, "transformers does not load the checkpoint: "),
        (without_tensor, SINGLE, "the checkpoint has no classifier.weight"),
        (without_fast_tokenizer, SINGLE, "it has no tokenizer, none of "),
    ],
)
def test_what_teaches_nothing_is_refused_in_one_line(onebert, foreign, files, tmp_path, capsys, damage, asked, words):
    folder = shutil.copytree(foreign, tmp_path / "tone")
    if damage is not None:
        damage(folder)
    capsys.readouterr()
    assert words in refused(onebert(*ask(folder, tmp_path / "x.safetensors", files, *asked)))
    assert [path.name for path in tmp_path.iterdir()] == ["tone"]
