"""`onebert import` and `onebert export` as a user meets them: files and folders, JSON, one-line errors, their page."""

import json
import re
import subprocess
import sys

import pytest
import torch
import transformers
from onnxruntime import InferenceSession
from peft import LoraConfig, PeftModel
from sentence_transformers import SentenceTransformer

from bases import tiny_base
from ended import recorded, refused, succeeded
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_store.file.format import load, save
from pages import ROOT, blocks, run_block
from peft_models import random_adapter
from servers import Task
from tiny_delta import make_delta

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    random_adapter("bert", LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], bias="all"), folder)
    return folder


def test_an_adapter_comes_in_and_goes_out_again(onebert, adapter, tmp_path):
    out, base = tmp_path / "tone.safetensors", ("--base", tiny_base())
    record, error = recorded(onebert("import", adapter, *base, "--out", out, "--labels", "bad, fair,good", "--json"))
    delta = load(out)
    assert record["digest"] == delta.digest
    assert record["labels"] == list(delta.manifest.labels) == ["bad", "fair", "good"]
    assert (record["method"], record["pooling"], record["max_length"]) == ("peft:lora", "pooler", 66)
    assert record["compared_with"].startswith("PeftModel of peft ")
    assert 0 <= record["largest_difference"] < 1e-4

    assert "is replaced" not in error
    printed, error = succeeded(onebert("import", adapter, *base, "--out", out, "--labels", "bad, fair,good"))
    assert f"note: {out} is there, and is replaced when the import is done" in error
    assert printed.splitlines()[-1] == f"next: onebert push {out} --task NAME"

    record, _ = recorded(onebert("export", out, *base, "--peft", tmp_path / "peft", "--json"))
    assert (record["peft_type"], record["loads_with"]) == ("LORA", "AutoModelForSequenceClassification")
    assert json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["bias"] == "all"
    # What comes back is the same content, names of labels included.
    printed = onebert("import", tmp_path / "peft", *base, "--out", tmp_path / "again", "--json")[1]
    assert json.loads(printed)["labels"] == ["bad", "fair", "good"]
    assert load(tmp_path / "again").tensors.keys() == delta.tensors.keys()

    printed, _ = succeeded(onebert("export", out, *base, "--merged", tmp_path / "merged"))
    assert "loads with: AutoModelForSequenceClassification" in printed
    assert (tmp_path / "merged" / "model.safetensors").is_file()


def test_errors_are_one_line(onebert, adapter, tmp_path):
    out, foreign = tmp_path / "x.safetensors", tmp_path / "foreign.safetensors"
    save(foreign, make_delta())
    base, somewhere = ("--base", tiny_base()), tmp_path / "peft"
    cases = [
        (["import", tmp_path / "nothing", *base, "--out", out], "is no folder"),
        (["import", tmp_path, *base, "--out", out], "it holds no PEFT adapter and no model"),
        (["import", adapter, *base, "--out", tmp_path / "no" / "x"], "--out: there is no folder"),
        (["import", adapter, *base, "--out", out, "--labels", "a,b"], "2 labels for a classifier of 3 outputs"),
        (["import", adapter, *base, "--out", out, "--max-length", "67"], "67 is over the base's 66"),
        (["export", foreign, *base, "--onnx", somewhere, "--merged", somewhere], "name one folder"),
        (["export", foreign, *base], "made for tiny"),
        (["export", foreign, *base, "--peft", somewhere, "--merged", somewhere], "name one folder"),
        (["export", foreign, *base, "--peft", somewhere], "made for tiny"),
        (["export", foreign, *base, "--merged", adapter], "name a new or an empty folder"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for arguments, words in cases:
        error = refused(onebert(*arguments))
        assert words in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.parametrize(("pooling", "onnx"), [("pooler", False), ("mean", True)])
def test_the_lines_that_are_shown_load_the_folder_and_print_an_answer(onebert, tmp_path, pooling, onnx):
    task = Task("bitfit", pooling, labels=2, seed=1)
    (tmp_path / "tone.safetensors").write_bytes(task.file)
    # Without a folder's name it is the file's.
    named, folder = (("--onnx", tmp_path / "o"), "o") if onnx else ((), "tone")
    record, _ = recorded(onebert("export", tmp_path / "tone.safetensors", "--base", tiny_base(), *named, "--json"))
    assert record["out"] == str(tmp_path / folder)
    done = subprocess.run([sys.executable, "-c", record["example"]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The answer by the same lines' own tokens: a probability of each label, of ONNX its logits.
    numbers = [float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", done.stdout)]
    logits = torch.from_numpy(task.logits("The soup was cold."))
    expected = logits if onnx else logits.softmax(-1)
    assert sorted(numbers) == pytest.approx(sorted(expected.tolist()), abs=1e-3)


TEXT = "the parcel was late"


def decided(tmp_path, decision, pooling, task_type="single_label"):
    """A file with a decision, and its plain model's logits of a text."""
    task = Task("bitfit", pooling, labels=2, seed=1, task_type=task_type, format=2, decision=decision)
    (tmp_path / "tone.safetensors").write_bytes(task.file)
    return tmp_path / "tone.safetensors", torch.from_numpy(task.logits(TEXT))


ACTIVATED = {"softmax": lambda logits: logits.softmax(-1), "sigmoid": lambda logits: logits.sigmoid()}


@pytest.mark.parametrize("activation", [None, "softmax", "sigmoid", "none"])
@pytest.mark.parametrize("task_type", ["single_label", "multi_label"])
@pytest.mark.parametrize("form", ["--merged", "--peft"])
def test_a_pipeline_gives_the_scores_that_the_decision_is_for(onebert, tmp_path, activation, task_type, form):
    temperature = None if activation == "none" else 2.5
    decision = {"activation": activation, "temperature": temperature, "positives": ["label 1"]}
    decision = {name: value for name, value in decision.items() if value is not None}
    file, logits = decided(tmp_path, decision, "pooler", task_type)
    succeeded(onebert("export", file, "--base", tiny_base(), form, tmp_path / "out"))
    model = str(tmp_path / "out")
    if form == "--peft":
        config = transformers.AutoConfig.from_pretrained(tmp_path / "out" / "task_config.json")
        plain = transformers.AutoModelForSequenceClassification.from_pretrained(tiny_base(), config=config)
        model = PeftModel.from_pretrained(plain, tmp_path / "out").eval().get_base_model()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_base())
    scores = transformers.pipeline("text-classification", model, tokenizer=tokenizer)(TEXT, top_k=None)
    default = {"single_label": "softmax", "multi_label": "sigmoid"}[task_type]
    activate = ACTIVATED.get(activation or default, lambda logits: logits)
    expected = activate(logits / (temperature or 1.0)).tolist()
    assert {score["label"]: score["score"] for score in scores} == {
        f"label {i}": pytest.approx(score, abs=1e-4) for i, score in enumerate(expected)
    }


@pytest.mark.slow
def test_what_no_model_does_is_said_and_written_beside_it(onebert, tmp_path):
    decision = {
        "temperature": 2.0,
        "thresholds": {"label 1": 0.75},
        "positives": ["label 1"],
        "abstain": {"energy": -3.0},
        "window": {"tokens": 40, "overlap": 8, "reduction": "max"},
    }
    file, logits = decided(tmp_path, decision, "mean")
    # Of logits that are divided by 2 energy is half of what it was.
    left = {**decision, "abstain": {"energy": -1.5}}
    del left["temperature"]
    for form in ("--merged", "--onnx"):
        printed, _ = succeeded(onebert("export", file, "--base", tiny_base(), form, tmp_path / form, "--json"))
        assert json.loads(printed)["left_to_callers"] == left
        assert json.loads((tmp_path / form / "config.json").read_text())["decision"] == left
    model = SentenceTransformer(str(tmp_path / "--merged"), device="cpu", local_files_only=True)
    assert model.encode(TEXT).tolist() == pytest.approx((logits / 2).tolist(), abs=1e-4)
    session = InferenceSession(tmp_path / "--onnx" / "model.onnx")
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path / "--onnx")(TEXT, return_tensors="np")
    feeds = {get_input.name: tokens[get_input.name].astype("int64") for get_input in session.get_inputs()}
    assert session.run(["logits"], feeds)[0][0].tolist() == pytest.approx((logits / 2).tolist(), abs=1e-4)
    printed, _ = succeeded(onebert("export", file, "--base", tiny_base(), "--merged", tmp_path / "again"))
    note = 'note: left to callers of the model, and written into its configuration: thresholds {"label 1": 0.75}, '
    assert note in printed


@pytest.mark.slow
def test_following_the_page_works(tmp_path):
    """What stands in its blocks, in order, where the README has left its first delta."""
    # The lines for SetFit's folders run in test_import_modules.py.
    page = [block for block in blocks("docs/guide/interop.md") if "my-setfit" not in block.code]
    code = [(block.language, block.code) for block in page]
    assert [language for language, _ in code] == [
        *("bash", "python", "bash", "bash", "bash", "python", "bash", "python")
    ]
    (tmp_path / "demo").symlink_to(ROOT / "demo")
    first = "onebert train --task tone --data demo/onebert_demo/data/review-tone --max-steps 30 --out tone.safetensors"
    for language, block in [("bash", first), *code]:
        # The Hub may be out of reach; the default base is there as a package.
        script = block.replace(DEFAULT_BASE, str(find_base(DEFAULT_BASE))).replace(
            "--pooling", "--max-steps 30 --pooling"
        )
        run_block(language, script, tmp_path)
