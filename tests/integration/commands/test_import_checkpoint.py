"""`onebert import` of fine-tuned checkpoints: trained here by transformers, and held against its answers."""

import csv
import json
import os
import shutil
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import onebert as onebert_api
from bases import tiny_base, write_base
from ended import refused, succeeded
from fine_tuned import TEXTS, WORDS, fine_tune
from onebert_encoder.base.base import load_base
from onebert_store.file.format import load
from onebert_training.interop.checkpoint.search import Agreement, concordance, fewest
from peft_models import delta_logits, model_logits


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in TEXTS)])
    return path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A BERT of which all is trained above the embeddings."""
    folder = tmp_path_factory.mktemp("tuned") / "tone"
    return folder, fine_tune(folder)


def both_logits(model, delta, family="bert"):
    """Of every text what transformers computes, and what a server would, of the same tokens."""
    base = load_base(str(tiny_base(family)))
    tokens = base.tokenizer.encode(TEXTS, delta.manifest.max_length)
    return (
        np.stack([logits.numpy() for logits in side])
        for side in (model_logits(model, tokens), delta_logits(base, delta, tokens))
    )


def imported(onebert, folder, data, out, *more, family="bert"):
    """The record and the delta."""
    printed, _ = succeeded(
        onebert("import", folder, "--base", tiny_base(family), "--data", data, "--out", out, "--json", *more)
    )
    return json.loads(printed), load(out)


@pytest.mark.parametrize("family", ["bert", "distilbert", "deberta-v2"])
def test_a_fine_tuned_model_becomes_a_delta_that_answers_as_it_does(onebert, data, tmp_path, family):
    model = fine_tune(tmp_path / "tone", family)
    # DeBERTa's configuration does not tell it.
    options = ("--task-type", "single_label") * (family == "deberta-v2")
    record, delta = imported(onebert, tmp_path / "tone", data, tmp_path / "tone.safetensors", *options, family=family)
    theirs, ours = both_logits(model, delta, family)
    same = theirs.argmax(-1) == ours.argmax(-1)
    assert same.mean() == record["agreement"] >= 0.99
    assert record["texts"] == len(TEXTS)
    probabilities = [torch.tensor(side).softmax(-1).numpy() for side in (theirs, ours)]
    assert np.abs(probabilities[0] - probabilities[1]).max() == pytest.approx(record["largest_difference"], abs=1e-4)
    # Something was learned, so that agreeing means something.
    assert len(set(theirs.argmax(-1))) > 2
    manifest = delta.manifest
    assert list(manifest.labels) == WORDS
    assert (manifest.task_type, manifest.max_length, manifest.pooling) == ("single_label", 64, "cls")
    assert manifest.activation == {"distilbert": "relu", "deberta-v2": "gelu"}.get(family, "tanh")
    assert manifest.training["imported_from"] == "checkpoint"
    ranks = [len(tensor) for name, tensor in delta.tensors.items() if name.startswith("lora_A")]
    assert (len(ranks), max(ranks)) == (record["changed_matrices"], record["largest_rank"])
    # Far fewer than the 32 that a matrix has.
    assert 0 < record["mean_rank"] < 16
    assert record["file_bytes"] == (tmp_path / "tone.safetensors").stat().st_size
    assert record["checkpoint_bytes"] == (tmp_path / "tone" / "model.safetensors").stat().st_size
    left_out = [part.partition(" ")[0] for part in record["left_out"]]
    assert left_out == [f"encoder.LayerNorm.{kind}" for kind in ("weight", "bias")] * (family == "deberta-v2")


def bias_or_classifier(name):
    """BitFit as people write it for transformers."""
    return name.endswith(".bias") or name.startswith("classifier")


def test_what_was_fine_tuned_by_biases_alone_is_exact(onebert, data, tmp_path):
    model = fine_tune(tmp_path / "tone", trained=bias_or_classifier)
    # Further from the base than a few steps lead: then being exact means something.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if bias_or_classifier(name) else 0.0))
    model.save_pretrained(tmp_path / "tone")
    record, delta = imported(onebert, tmp_path / "tone", data, tmp_path / "tone.safetensors")
    theirs, ours = both_logits(model, delta)
    assert np.abs(theirs).max() > 0.3
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert {name.partition(".")[0] for name in delta.tensors} == {"delta", "head"}
    assert (record["agreement"], record["texts"], record["largest_rank"], record["left_out"]) == (
        1.0,
        len(TEXTS),
        0,
        [],
    )
    assert delta.manifest.pooling == "pooler"


@pytest.mark.parametrize("task", ["multi_label", "regression", "token"])
def test_every_task_type_is_compared_by_its_answers(onebert, data, tmp_path, task):
    model = fine_tune(tmp_path / "tone", task=task)
    record, delta = imported(onebert, tmp_path / "tone", data, tmp_path / "tone.safetensors", "--agree", "0.98")
    theirs, ours = both_logits(model, delta)
    if task == "regression":
        correlation = np.corrcoef(theirs[:, 0], ours[:, 0])[0, 1]
        # A shift or another scale lowers concordance below correlation.
        assert correlation + 1e-6 >= record["agreement"] >= 0.98
        assert record["mean_difference"] == pytest.approx(np.abs(theirs - ours).mean(), abs=1e-4)
    else:
        agreed = {
            "multi_label": lambda: ((theirs > 0) == (ours > 0)).all(-1),
            # First and last token are special.
            "token": lambda: (theirs.argmax(-1) == ours.argmax(-1))[:, 1:-1],
        }[task]()
        assert record["agreement"] >= 0.98
        assert record["agreement"] == pytest.approx(agreed.mean())
    assert delta.manifest.task_type == record["task_type"] == task


def test_answers_are_found_where_the_checkpoint_finds_them(onebert, tmp_path):
    torch.manual_seed(0)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(tiny_base())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "attention" in name or "qa_outputs" in name:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(tmp_path / "asked")
    rows = [{"question": f"what was {word}?", "context": text} for word, text in zip(WORDS * 20, TEXTS, strict=False)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "asked.safetensors"
    record, delta = imported(onebert, tmp_path / "asked", tmp_path / "asked.jsonl", out, "--agree", "0.9")
    assert record["agreement"] >= 0.9
    assert (delta.manifest.task_type, delta.manifest.pooling) == ("span", "none")
    # The folder has no tokenizer, and so no length: the base's.
    assert delta.manifest.max_length == 66
    asked = ("--base", tiny_base(), "--data", tmp_path / "asked.jsonl", "--text", "question", "--out", out)
    status, _, error = onebert("import", tmp_path / "asked", *asked)
    assert status == 1
    assert "a span task takes a question as text and its context as text_pair" in error


def test_what_is_no_checkpoint_of_the_base_is_refused_in_one_line(onebert, tuned, data, tmp_path, capsys):
    folder, _ = tuned
    write_base("bert", tmp_path / "headless")
    out = ("--data", data, "--out", tmp_path / "x.safetensors")
    bert, roberta = (("--base", tiny_base(family)) for family in ("bert", "roberta"))
    cases = [
        ([folder, *roberta, *out], "another architecture than the base"),
        ([folder, *roberta, *out], "model_type bert and not roberta"),
        ([tmp_path / "headless", *bert, *out], "the checkpoint is for BertModel; what is imported is Bert"),
        ([folder, *bert, *out[2:]], "give texts with --data"),
        ([folder, *bert, *out, "--labels", "a,b"], "2 labels for a classifier of 4 outputs"),
        ([folder, *bert, *out, "--task-type", "token"], "no token task"),
        ([folder, *bert, *out, "--max-length", "67"], "67 is over the base's 66"),
        ([folder, *bert, *out, "--max-rank", "1"], "on 320 texts, and not 0.99: --max-rank 1 allows no more"),
    ]
    capsys.readouterr()  # what transformers said of the models made here
    for arguments, words in cases:
        error = refused(onebert("import", *arguments))
        assert words in error
    assert not (tmp_path / "x.safetensors").exists()


def with_json(name, **changed):
    def damage(folder):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | changed))

    return damage


def with_tensor(name, change):
    def damage(folder):
        tensors = load_file(folder / "model.safetensors")
        changed = tensors | {name: change(tensors[name])}
        tensors = {name: tensor for name, tensor in changed.items() if tensor is not None}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


config = partial(with_json, "config.json")
QUERY = "bert.encoder.layer.0.attention.self.query.weight"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (config(architectures=5), "the checkpoint is for no class"),
        (config(id2label=["great", "late"]), 'is not names by numbers: ["great","late"]'),
        (config(id2label={"0": "a", "1": "b", "2": "c"}), "names 0, 1, 2, and the classifier has the outputs 0 to 3"),
        (
            config(model_type="gpt2"),
            "is not supported; supported: bert, roberta, xlm-roberta, camembert, data2vec-text, ",
        ),
        (config(num_attention_heads=0), "num_attention_heads in its config.json is not"),
        (lambda folder: os.mkfifo(folder / "vocab.txt"), "vocab.txt is a pipe, a socket or a device"),
        (lambda folder: (folder / "tokenizer.json").write_text("{"), "imported: its tokenizer cannot be read"),
        (lambda folder: (folder / "model.safetensors").unlink(), "imported: it has no model.safetensors"),
        (with_tensor("classifier.weight", lambda old: torch.full_like(old, 3e38)), "of the checkpoint is not a finite"),
        (with_tensor(QUERY, lambda old: 1e30 * old), "too large for half precision"),
        (with_tensor("classifier.weight", lambda _: None), "the checkpoint has no classifier.weight"),
        (
            with_tensor(QUERY, lambda old: old.where(old < old.max(), float("nan"))),
            "not finite: encoder.layer.0.attention.self.query.weight",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused_in_one_line(onebert, tuned, data, tmp_path, damage, words):
    damage(shutil.copytree(tuned[0], tmp_path / "damaged"))
    out = ("--data", data, "--out", tmp_path / "x.safetensors")
    error = refused(onebert("import", tmp_path / "damaged", "--base", tiny_base(), *out))
    assert words in error


def test_differences_of_probabilities_are_bounded(onebert, tuned, data, tmp_path):
    asked = ("--agree", "0.5", "--max-difference")
    loose, _ = imported(onebert, tuned[0], data, tmp_path / "loose.safetensors", *asked, "0.5")
    close, _ = imported(onebert, tuned[0], data, tmp_path / "close.safetensors", *asked, "0.02")
    assert close["largest_difference"] <= 0.02 < loose["largest_difference"] <= 0.5
    assert close["mean_rank"] > loose["mean_rank"]
    out = ("--data", data, "--out", tmp_path / "x.safetensors", *asked)
    status, _, error = onebert("import", tuned[0], "--base", tiny_base(), *out, "0.02", "--max-rank", "1")
    assert status == 1
    assert " on 320 texts, and not 0.5 with differences up to 0.02: --max-rank 1 allows no more" in error
    assert not (tmp_path / "x.safetensors").exists()


def test_what_is_assumed_is_said(onebert, data, tmp_path, monkeypatch):
    """One output that nothing explains is read by the sigmoid, as transformers' pipeline reads it."""
    model = fine_tune(tmp_path / "toxic", task="regression", trained=bias_or_classifier, steps=1)
    config(problem_type=None)(tmp_path / "toxic")
    path = tmp_path / "toxic" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pre_tokenizer": {"type": "Whitespace"}}))
    monkeypatch.chdir(tmp_path)
    asked = ("import", "toxic", "--base", tiny_base(), "--data", data)
    printed, _ = succeeded(onebert(*asked))
    # Without --out the file is named after the folder.
    delta = load(tmp_path / "toxic.safetensors")
    assert delta.manifest.task_type == "multi_label"
    notes = [line for line in printed.splitlines() if line.startswith("note: ")]
    assert [note[:60] for note in notes] == [
        "note: the outputs have no names but LABEL_0, …; --labels giv",
        "note: config.json does not define the one output: it is read",
        "note: the checkpoint's own tokenizer differs from the base's",
    ]
    assert "--task-type regression reads it as a number" in notes[1]
    assert [f"note: {warning}" for warning in delta.manifest.training["warnings"]] == notes
    text = TEXTS[0]
    pipeline = transformers.pipeline("text-classification", model=str(tmp_path / "toxic"))
    assert onebert_api.load(tmp_path / "toxic.safetensors", base=str(tiny_base())).classify(text).scores[
        "LABEL_0"
    ] == pytest.approx(pipeline(text)[0]["score"], abs=1e-5)
    assert model.config.num_labels == 1

    printed = onebert(*asked, "--task-type", "regression", "--labels", "toxicity", "--json")[1]
    assert json.loads(printed)["task_type"] == "regression"
    assert len(json.loads(printed)["warnings"]) == 1


def test_what_a_delta_leaves_out_counts_and_is_said(onebert, tuned, data, tmp_path):
    """Embeddings of another model, and a tokenizer with other numbers: neither can be in a delta."""
    folder, _ = tuned
    other = shutil.copytree(folder, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    torch.manual_seed(0)
    words = tensors["bert.embeddings.word_embeddings.weight"]
    words[50:] = torch.randn_like(words[50:])
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    path = other / "tokenizer.json"
    written = json.loads(path.read_text())
    vocab = written["model"]["vocab"]
    vocab["great"], vocab["broken"] = vocab["broken"], vocab["great"]
    path.write_text(json.dumps(written))
    status, _, error = onebert(
        "import", other, "--base", tiny_base(), "--data", data, "--out", tmp_path / "x.safetensors"
    )
    assert status == 1
    assert "no rank gives more; the checkpoint's own tokenizer differs from the base's, which reads the texts" in error
    assert "in its model: it splits 160 of these 320 texts otherwise; " in error
    assert f"embeddings.word_embeddings.weight ({len(words) - 50} of {len(words)} rows differ, by " in error


def test_few_parts_are_found_that_agree():
    """Whatever number of parts is needed is found up to a thirty-second of itself."""

    def agrees(agreement):
        return agreement.reaches(0.99, None)

    for most, needed in [(0, 0), (1, 1), (7, 3), (1000, 1), (1000, 0), (1000, 640), (20_000, 900)]:
        asked = []

        def probe(count, asked=asked, needed=needed):
            asked.append(count)
            return Agreement(1.0 if count >= needed else 0.5, 0.0, 0.0)

        count, parts = fewest(probe, most, agrees)
        assert parts.share == 1.0
        assert needed <= count <= needed + needed / 31
        assert len(asked) <= 12
    assert fewest(lambda _: Agreement(0.7, 0.0, 0.0), 10, agrees) == (10, Agreement(0.7, 0.0, 0.0))


def test_concordance_is_one_only_for_the_same_numbers():
    a = np.array([1.0, 2.0, 4.0])
    assert concordance(a, a) == concordance(np.ones(2), np.ones(2)) == 1.0
    assert concordance(a, a + 1) < 1
    assert concordance(np.float32([3e38, -3e38]), np.float32([3e38, -3e38])) == 1.0
    # Lin's formula by hand: 2 s_ab / (s_a² + s_b² + (mean a - mean b)²), with b = 2a.
    assert concordance(a, 2 * a) == pytest.approx(2 * 2 * a.var() / (5 * a.var() + a.mean() ** 2))
