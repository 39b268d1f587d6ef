"""`onebert import` of what `onebert train --method full` writes where no class of transformers has the task's head."""

import csv
import json
import re
import shutil
from pathlib import Path

import joblib
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from scipy.special import expit, softmax
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier

from bases import manifest_for, tiny_base
from ended import refused, succeeded
from onebert_encoder.base.base import load_base
from onebert_store.file.format import load
from onebert_store.file.manifest import parse_manifest
from onebert_training.interop.merged import write_checkpoint
from peft_models import delta_logits
from trainings import remembering

TEXTS = [f"the {thing} was {word}" for thing in ("screen", "water", "order", "time") for word in ("great", "late")]
LABELS = ["late" if "late" in text else "fine" for text in TEXTS]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "validation"):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["text", "label"], *zip(TEXTS, LABELS, strict=True)])
    return folder


def trained(onebert, data, folder, family="bert", pooling="mean"):
    like = remembering(folder.parent, head_learning_rate=0.05)
    where = ("--task", "tone", "--data", data, "--base", tiny_base(family), "--device", "cpu", "--out", folder)
    rates = ("--like", like, "--learning-rate", "1e-4", "--max-steps", "20", "--batch-size", "8")
    printed, _ = succeeded(onebert("train", *where, "--method", "full", "--pooling", pooling, *rates))
    assert f"next: onebert import {folder} --data DATA --out tone.safetensors\n" in printed
    return folder


@pytest.mark.parametrize(("family", "pooling"), [("bert", "mean"), ("bert", "cls"), ("distilbert", "mean")])
def test_what_full_training_writes_is_imported_with_its_head(onebert, data, tmp_path, family, pooling):
    folder, out = trained(onebert, data, tmp_path / "tone", family, pooling), tmp_path / "tone.safetensors"
    # The embeddings of a tiny random base, which are left out, are as small as the steps of an optimizer.
    asked = ("--base", tiny_base(family), "--data", data, "--out", out, "--agree", "0.8")
    succeeded(onebert("import", folder, *asked))
    delta, base = load(out), load_base(str(tiny_base(family)))
    assert (sorted(delta.manifest.labels), delta.manifest.task_type) == (["fine", "late"], "single_label")
    ours = np.stack(delta_logits(base, delta, base.tokenizer.encode(TEXTS, delta.manifest.max_length)))
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(TEXTS)
    written = load_file(folder / "2_Dense" / "model.safetensors")
    assert np.array_equal(delta.tensors["head.weight"], written["linear.weight"])
    assert delta.manifest.pooling == pooling
    assert (theirs.argmax(-1) == ours.argmax(-1)).mean() >= 0.8


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_modules_of_changed_biases_and_two_layers_are_exact(onebert, data, tmp_path, pooling):
    base, folder, out = load_base(str(tiny_base("distilbert"))), tmp_path / "tone", tmp_path / "tone.safetensors"
    torch.manual_seed(0)
    size = base.spec.hidden_size
    shapes = {"weight": (2, size), "bias": (2,), "dense.weight": (size, size), "dense.bias": (size,)}
    head = {f"head.{name}": torch.randn(shape) for name, shape in shapes.items()}
    params = {
        name: param + torch.randn_like(param) if param.dim() == 1 else param for name, param in base.params.items()
    }
    manifest = parse_manifest(manifest_for(base.spec, pooling))
    write_checkpoint(folder, str(tiny_base("distilbert")), params, head, manifest)
    succeeded(onebert("import", folder, "--base", tiny_base("distilbert"), "--data", data, "--out", out))
    delta = load(out)
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(TEXTS)
    ours = delta_logits(base, delta, base.tokenizer.encode(TEXTS, delta.manifest.max_length))
    assert np.abs(np.stack(ours) - theirs).max() < 1e-3 * np.abs(theirs).max()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The bare base with a head of zeros."""
    folder, base = tmp_path_factory.mktemp("whole") / "tone", load_base(str(tiny_base()))
    head = {"head.weight": torch.zeros(2, base.spec.hidden_size), "head.bias": torch.zeros(2)}
    write_checkpoint(folder, str(tiny_base()), base.params, head, parse_manifest(manifest_for(base.spec)))
    return folder


def changed(folder, name, **values):
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def listed(folder, place, path):
    modules = json.loads((folder / "modules.json").read_text())
    modules[place]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))


def weighed(folder, **tensors):
    path = folder / "2_Dense" / "model.safetensors"
    save_file(load_file(path) | {f"linear.{name}": tensor for name, tensor in tensors.items()}, path)


POOLING, DENSE = "1_Pooling/config.json", "2_Dense/config.json"
MISFIT = "the weight and the bias of 2_Dense do not fit together"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "modules.json").unlink(), "the checkpoint is for BertModel; what is imported is"),
        (lambda f: (f / "modules.json").write_text("[1]"), "has no head that a delta can hold: its modules are none"),
        (lambda f: listed(f, 1, ".."), "a path leads out of the folder"),
        (lambda f: (f / DENSE).write_text("[]"), "config.json of 2_Dense cannot be read: it is no JSON object"),
        (lambda f: weighed(f, bias=np.zeros((), "f")), MISFIT),
        (lambda f: changed(f, POOLING, pooling_mode_max_tokens=True), "mean_tokens and max_tokens"),
        (lambda f: changed(f, DENSE, activation_function="torch.nn.GELU"), "cannot hold the layer"),
    ],
)
def test_modules_that_are_no_head_are_refused_in_one_line(onebert, data, whole, tmp_path, damage, words):
    folder = shutil.copytree(whole, tmp_path / "tone")
    damage(folder)
    out = ("--data", data, "--out", tmp_path / "x.safetensors")
    assert words in refused(onebert("import", folder, "--base", tiny_base(), *out))


PAGE = (Path(__file__).parents[3] / "docs/guide/interop.md").read_text(encoding="utf-8")
[LINES] = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "joblib" in block]


def setfit_folder(folder, classes, *more, several=False):
    """What `SetFitModel.save_pretrained` writes: the body by sentence-transformers, the head by joblib."""
    body = Transformer(str(tiny_base()), max_seq_length=48)
    model = SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), "mean"), *more], device="cpu")
    head, wanted = LogisticRegression(max_iter=1000), np.arange(len(TEXTS)) % classes
    if several:
        head, wanted = OneVsRestClassifier(head), np.stack([wanted == 0, wanted != 1, wanted == 2]).T.astype(int)
    head.fit(model.encode(TEXTS), wanted)
    model.save(str(folder))
    joblib.dump(head, folder / "model_head.pkl")
    return head.predict_proba(model.encode(TEXTS))


@pytest.mark.parametrize("classes", [2, 3, "several"])
def test_a_setfit_models_pickled_head_is_named_and_never_read_and_the_pages_lines_make_it_a_module(
    onebert, data, tmp_path, monkeypatch, classes
):
    monkeypatch.chdir(tmp_path)
    several = classes == "several"
    theirs = setfit_folder(Path("my-setfit"), 3 if several else classes, several=several)
    names = ["late", "fine", "odd"][: theirs.shape[1]]
    Path("my-setfit/config_setfit.json").write_text(json.dumps({"normalize_embeddings": False, "labels": names}))
    arguments = ("--base", tiny_base(), "--data", data, "--out", "tone.safetensors")
    before = {path: path.read_bytes() for path in Path("my-setfit").rglob("*") if path.is_file()}
    exec(LINES, {})
    assert before == {path: path.read_bytes() for path in Path("my-setfit").rglob("*") if path.is_file()}
    for folder in ("my-setfit", "my-setfit-dense"):
        Path(folder, "model_head.pkl").write_bytes(b"cos\nabort\n(tR.")
    status, _, says = onebert("import", "my-setfit", *arguments)
    assert status == 1
    assert "a pickle, model_head.pkl, which is never read: write its coef_ and intercept_ as a Dense module" in says
    assert "docs/guide/interop.md" in says
    kind = ("--task-type", "multi_label") * several
    printed, _ = succeeded(onebert("import", "my-setfit-dense", *arguments, *kind))
    assert "compared with: SentenceTransformer.encode" in printed
    delta, base = load(Path("tone.safetensors")), load_base(str(tiny_base()))
    ours = np.stack(delta_logits(base, delta, base.tokenizer.encode(TEXTS, delta.manifest.max_length)))
    assert list(delta.manifest.labels) == names
    assert delta.manifest.max_length == 48
    assert np.abs((expit(ours) if several else softmax(ours, axis=1)) - theirs).max() < 1e-5


SETFIT, SENTENCE, CUT = "config_setfit.json", "config_sentence_transformers.json", "sentence_bert_config.json"
PROMPTS = {"prompts": {"query": "find: ", "none": ""}}
# Settings beside the weights, and what is refused of them by name; None is read, or changes no answer.
BESIDE = [
    (SETFIT, {"normalize_embeddings": True}, "normalize_embeddings"),
    (SETFIT, {"span_context": 2, "spacy_model": "en"}, "spacy_model, span_context"),
    (SETFIT, {"normalize_embeddings": False, "labels": ["bad", "good"]}, None),
    (SENTENCE, PROMPTS | {"default_prompt_name": "query"}, "default_prompt_name"),
    (SENTENCE, PROMPTS | {"default_prompt_name": "none"}, None),
    (SENTENCE, PROMPTS | {"default_prompt_name": None, "similarity_fn_name": "cosine"}, None),
    (SENTENCE, {"truncate_dim": 16}, "truncate_dim"),
    (CUT, {"do_lower_case": True}, "do_lower_case"),
    (CUT, {"max_seq_length": 12}, None),
    (CUT, {"tokenizer_args": {"padding_side": "left"}}, "tokenizer_args"),
    (CUT, {"module_output_name": "sentence_embedding"}, "module_output_name"),
    (DENSE, {"use_residual": True}, "use_residual"),
    (DENSE, {"module_output_name": "other"}, "module_output_name"),
    ("config.json", {"function_to_apply": "sigmoid"}, "function_to_apply"),
    ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side"),
]


@pytest.mark.parametrize(("file", "values", "named"), BESIDE)
def test_a_setting_beside_the_weights_is_read_or_refused_by_its_name(
    onebert, data, whole, tmp_path, file, values, named
):
    folder, out = shutil.copytree(whole, tmp_path / "tone"), tmp_path / "x.safetensors"
    torch.manual_seed(0)
    weighed(folder, weight=np.random.default_rng(0).normal(size=(2, 32)).astype("f"), bias=np.zeros(2, "f"))
    (folder / file).touch()
    (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text() or "{}"), **values}))
    done = onebert("import", folder, "--base", tiny_base(), "--data", data, "--out", out)
    if named:
        assert named in refused(done)
        return
    succeeded(done)
    delta, base = load(out), load_base(str(tiny_base()))
    long = [f"{text} and so on and on and on and on and on and on" for text in TEXTS]
    theirs = SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(long)
    ours = delta_logits(base, delta, base.tokenizer.encode(long, delta.manifest.max_length))
    assert np.abs(np.stack(ours) - theirs).max() < 1e-4
    assert list(delta.manifest.labels) == values.get("labels", ["label 0", "label 1"])


def test_agreement_is_taken_against_the_program_and_not_against_a_reading_of_the_folder(
    onebert, data, whole, tmp_path, monkeypatch
):
    """A class of sentence-transformers that answers otherwise stands for every setting that a later release brings."""
    folder = shutil.copytree(whole, tmp_path / "tone")
    weighed(folder, weight=np.random.default_rng(0).normal(size=(2, 32)).astype("f"))
    asked = ("import", folder, "--base", tiny_base(), "--data", data, "--out", tmp_path / "x.safetensors")
    encode = SentenceTransformer.encode
    monkeypatch.setattr(SentenceTransformer, "encode", lambda *of, **more: -encode(*of, **more))
    assert "agreement 0.0000" in refused(onebert(*asked))
