"""Deltas written as PEFT adapters, merged checkpoints and ONNX: what others load from them answers the same."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from onnxruntime import InferenceSession
from peft import PeftModel
from sentence_transformers import SentenceTransformer

from bases import far_delta, manifest_for, tiny_base
from onebert_encoder.adding.adding import add_base
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.fold import expand_cores, to_tensors
from onebert_encoder.text.tokens import Tokens
from onebert_store.errors import InvalidInput
from onebert_store.file.delta import Delta, require_fit
from onebert_store.file.manifest import parse_manifest
from onebert_training.interop.heads import split_head
from onebert_training.interop.merged import merge, write_checkpoint
from onebert_training.interop.onnx_export import write_onnx
from onebert_training.interop.peft_export import export_adapter
from onebert_training.interop.peft_import import import_adapter
from peft_models import assert_equal_logits, base_of, delta_logits, model_logits, texts

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Unsupported layer type:UserWarning"),
]

TASKS = {"pooler": "single_label", "cls": "multi_label", "none": "token", "mean": "single_label"}


def random_delta(
    base: Base, parts: str, pooling: str = "pooler", task_type: str | None = None, activation: str = "tanh"
) -> Delta:
    """A delta of the parts of `far_delta`, joined by `+`; `cls` has a layer of the activation."""
    rng, spec = np.random.default_rng(7), base.spec
    task_type = task_type or TASKS[pooling]
    labels = ["start", "end"] if task_type == "span" else ["O", "B-x", "I-x"]
    tensors: dict[str, np.ndarray] = {}
    for part in parts.split("+"):
        drawn = far_delta(spec, part, pooling, len(labels), seed=3)
        tensors |= {name: tensor for name, tensor in drawn.items() if not name.startswith("head.")}
    shapes = {"head.weight": (len(labels), 32), "head.bias": (len(labels),)}
    if pooling == "cls":
        shapes |= {"head.dense.weight": (32, 32), "head.dense.bias": (32,)}
    tensors |= {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    manifest = {**manifest_for(spec, pooling), "task_type": task_type, "labels": labels}
    if activation != "tanh":
        manifest |= {"format": 3, "head": {"activation": activation}}
    delta = Delta(parse_manifest(manifest), tensors)
    require_fit(delta, spec)
    return delta


PEFT = {
    "lora": ("bert", "lora", "pooler", "LORA"),
    "lora-xs": ("bert", "lora-xs", "pooler", "LORA"),
    "lora-xs beside lora and biases": ("bert", "lora-xs+lora+bitfit", "pooler", "LORA"),
    "lora, own tanh layer": ("bert", "lora", "cls", "LORA"),
    "biases": ("bert", "bitfit", "pooler", "LORA"),
    "biases, roberta with the base's pooler": ("roberta", "bitfit", "pooler", "LORA"),
    "head only": ("xlm-roberta", "frozen", "cls", "LORA"),
    "biases, gains and lora": ("bert", "bitfit+gains+lora", "pooler", "LORA"),
    "gains": ("roberta", "gains", "cls", "LN_TUNING"),
    "scales": ("bert", "scale", "pooler", "IA3"),
    "scales of outputs": ("bert", "output-scale", "pooler", "IA3"),
    "tokens": ("distilbert", "spafit", "none", "LORA"),
    "tokens, electra": ("electra", "layernorm", "none", "LN_TUNING"),
}


@pytest.mark.parametrize(("family", "parts", "pooling", "tuner"), PEFT.values(), ids=PEFT.keys())
def test_peft_loads_the_folder_and_answers_the_same(
    family: str, parts: str, pooling: str, tuner: str, tmp_path: Path
) -> None:
    base, folder = base_of(family), tmp_path / "adapter"
    delta = random_delta(base, parts, pooling)
    written = export_adapter(folder, delta, base, str(tiny_base(family)))
    assert written["peft_type"] == tuner
    config = transformers.AutoConfig.from_pretrained(folder / "task_config.json")
    assert [config.id2label[i] for i in range(3)] == list(delta.manifest.labels)
    auto_class = getattr(transformers, written["loads_with"])
    plain = auto_class.from_pretrained(tiny_base(family), config=config)
    model = PeftModel.from_pretrained(plain, folder).eval()
    tokens = texts()
    ours = delta_logits(base, delta, tokens)
    assert_equal_logits(ours, model_logits(model, tokens))
    # transformers, too, finds base and adapter by the folder alone.
    assert_equal_logits(ours, model_logits(auto_class.from_pretrained(folder, config=config).eval(), tokens))

    again = import_adapter(folder, base)
    assert_equal_logits(delta_logits(base, again, tokens), ours)
    facts = (again.manifest.labels, again.manifest.task_type)
    assert facts == (delta.manifest.labels, delta.manifest.task_type)
    if not (family == "roberta" and pooling == "pooler"):  # there the pooler becomes the head's own layer
        # PEFT has no LoRA-XS: such a difference comes back written out.
        assert again.tensors.keys() == expand_cores(base, to_tensors(delta, base)).keys()
        assert again.manifest.pooling == pooling


def test_spans_go_to_peft_and_back_and_merge(tmp_path: Path) -> None:
    base = base_of("roberta")
    delta = random_delta(base, "lora", "none", "span")
    export_adapter(tmp_path / "adapter", delta, base, str(tiny_base("roberta")))
    plain = transformers.AutoModelForQuestionAnswering.from_pretrained(tiny_base("roberta"))
    model = PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    ours = delta_logits(base, delta, texts())
    assert_equal_logits(ours, model_logits(model, texts()))
    again = import_adapter(tmp_path / "adapter", base).manifest
    assert (again.task_type, list(again.labels), again.pooling) == ("span", ["start", "end"], "none")

    assert write(tmp_path / "merged", delta, base, "roberta") == "AutoModelForQuestionAnswering"
    merged = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "merged").eval()
    assert_equal_logits(ours, model_logits(merged, texts()))


NO_MEAN = "PEFT has no classifier for {} that reads the mean of all tokens: {}export without --peft"
NOT_PEFT = {
    "mean pooling": ("bert", "lora", "mean", NO_MEAN.format("bert", "train with --pooling pooler, or ")),
    "mean pooling, distilbert": ("distilbert", "lora", "mean", NO_MEAN.format("distilbert", "")),
    "relu in the place of tanh": (
        "distilbert",
        "lora",
        "cls",
        "PEFT has no classifier for distilbert that reads the first token",
    ),
    "sparse": ("bert", "sparse", "pooler", "sparse differences"),
    "adapters": ("bert", "adapter", "pooler", "adapters"),
    "scales beside biases": ("bert", "scale+bitfit", "pooler", "scales"),
    "scales of both sides of a map": ("bert", "scale+output-scale", "pooler", "not both"),
}


@pytest.mark.parametrize(("family", "parts", "pooling", "named"), NOT_PEFT.values(), ids=NOT_PEFT.keys())
def test_what_peft_cannot_hold_is_refused_by_name(
    family: str, parts: str, pooling: str, named: str, tmp_path: Path
) -> None:
    base = base_of(family)
    with pytest.raises(InvalidInput) as caught:
        export_adapter(tmp_path / "adapter", random_delta(base, parts, pooling), base, str(tiny_base(family)))
    assert named in caught.value.detail
    assert list(tmp_path.iterdir()) == []


def write(folder: Path, delta: Delta, base: Base, family: str) -> str:
    encoder, head = split_head(to_tensors(delta, base))
    return write_checkpoint(folder, str(tiny_base(family)), merge(base, encoder), head, delta.manifest)


MERGED = {
    "everything": ("bert", "bitfit+gains+lora+lora-xs+sparse+scale+output-scale", "pooler"),
    "scales, roberta with the base's pooler": ("roberta", "scale+bitfit", "pooler"),
    "xlm-roberta": ("xlm-roberta", "lora", "cls"),
    "own relu layer": ("distilbert", "lora", "cls"),
    "own gelu layer": ("electra", "gains", "cls"),
    "mpnet": ("mpnet", "bitfit+lora", "cls"),
    # The class of the base has GELU there: the configuration names the layer's own.
    "own tanh layer, deberta": ("deberta-v2", "lora", "cls"),
    "tokens, distilbert": ("distilbert", "scale+lora", "none"),
    "tokens, electra": ("electra", "bitfit+gains", "none"),
}


@pytest.mark.parametrize(("family", "parts", "pooling"), MERGED.values(), ids=MERGED.keys())
def test_a_merged_checkpoint_answers_the_same(family: str, parts: str, pooling: str, tmp_path: Path) -> None:
    base, folder = base_of(family), tmp_path / "merged"
    activation = {"distilbert": "relu", "electra": "gelu"}.get(family, "tanh") if pooling == "cls" else "tanh"
    delta = random_delta(base, parts, pooling, activation=activation)
    auto_class = getattr(transformers, write(folder, delta, base, family))
    model, info = auto_class.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys"))
    assert model.num_labels == 3
    assert pooling != "cls" or model.config.problem_type == "multi_label_classification"
    assert model.config.label2id == {label: i for i, label in enumerate(delta.manifest.labels)}
    tokens = texts()
    assert_equal_logits(delta_logits(base, delta, tokens), model_logits(model.eval(), tokens))


def test_an_added_base_has_what_an_export_needs(tmp_path: Path) -> None:
    folder = add_base(str(tiny_base("bert")), out=tmp_path / "base").folder
    base = load_base(str(folder))
    delta = random_delta(base, "bitfit", "pooler")
    encoder, head = split_head(to_tensors(delta, base))
    write_checkpoint(tmp_path / "merged", str(folder), merge(base, encoder), head, delta.manifest)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged").eval()
    assert_equal_logits(delta_logits(base, delta, texts()), model_logits(model, texts()))
    text = "the parcel was late"
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")(text)["input_ids"]
    assert again == base.tokenizer.encode([text], 48)[0].input_ids


WITHOUT_A_CLASS = {
    "mean": ("bert", "bitfit+lora", "mean", "single_label"),
    "mean, roberta": ("roberta", "lora", "mean", "regression"),
    "tanh layer": ("distilbert", "lora", "cls", "multi_label"),
    "tanh layer, electra": ("electra", "gains", "cls", "multi_label"),
}


@pytest.mark.parametrize(("family", "parts", "pooling", "task_type"), WITHOUT_A_CLASS.values(), ids=WITHOUT_A_CLASS)
def test_a_head_that_no_class_has_is_loaded_by_sentence_transformers(
    family: str, parts: str, pooling: str, task_type: str, tmp_path: Path
) -> None:
    base, folder = base_of(family), tmp_path / "merged"
    delta = random_delta(base, parts, pooling, task_type)
    assert write(folder, delta, base, family) == "SentenceTransformer"
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    assert model.max_seq_length == delta.manifest.max_length
    assert list(model[0].model.config.id2label.values()) == list(delta.manifest.labels)
    asked = ["the parcel was late", "refund, please! " * 30, "late"]
    tokens = base.tokenizer.encode(asked, delta.manifest.max_length)
    assert tokens[1].truncated
    # Of different lengths in one batch: padding is not averaged.
    assert_equal_logits(delta_logits(base, delta, tokens), list(model.encode(asked, convert_to_tensor=True)))


def test_what_no_checkpoint_holds_is_refused_by_name(tmp_path: Path) -> None:
    base = base_of("bert")
    delta = random_delta(base, "bitfit", "cls", "multi_label")
    per_token = delta.manifest.model_copy(update={"pooling": "none", "task_type": "token"})
    for refused_delta, named in (
        (Delta(per_token, dict(delta.tensors)), "reads every token through such a layer: export with --onnx"),
        (random_delta(base, "adapter", "pooler"), "adapters"),
    ):
        with pytest.raises(InvalidInput, match=named):
            write(tmp_path / "merged", refused_delta, base, "bert")
    assert list(tmp_path.iterdir()) == []


ONNX = {
    "mean": ("bert", "bitfit+gains+lora+sparse+scale", "mean", "single_label"),
    "pooler": ("bert", "spafit", "pooler", "multi_label"),
    "own tanh layer": ("roberta", "lora", "cls", "single_label"),
    "tokens": ("distilbert", "bitfit", "none", "token"),
    "spans": ("electra", "bitfit", "none", "span"),
    **{
        f"{family}'s positions": (family, "gains+lora", "mean", "single_label")
        for family in ("mpnet", "modernbert", "gte", "nomic_bert", "eurobert", "deberta-v2")
    },
}


@pytest.mark.parametrize(("family", "parts", "pooling", "task_type"), ONNX.values(), ids=ONNX)
@pytest.mark.slow
def test_an_onnx_model_answers_the_same(family: str, parts: str, pooling: str, task_type: str, tmp_path: Path) -> None:
    base, folder = base_of(family), tmp_path / "onnx"
    delta = random_delta(base, parts, pooling, task_type)
    encoder, head = split_head(to_tensors(delta, base))
    write_onnx(folder, str(tiny_base(family)), merge(base, encoder), head, delta.manifest)
    session = InferenceSession(folder / "model.onnx")
    names = [output.name for output in session.get_outputs()]
    assert names == (["start_logits", "end_logits"] if task_type == "span" else ["logits"])
    tokens = texts()
    # All in one batch, of other sizes than those it was recorded with; and the longest again alone.
    for some in (tokens, tokens[2:3]):
        outputs = [torch.from_numpy(output) for output in session.run(names, _feeds(session, some))]
        logits = torch.stack(outputs, -1) if task_type == "span" else outputs[0]
        rows = [output[: len(text)] if pooling == "none" else output for output, text in zip(logits, some, strict=True)]
        assert_equal_logits(delta_logits(base, delta, some), rows)
    config = json.loads((folder / "config.json").read_text())
    assert list(config["id2label"].values()) == list(delta.manifest.labels)
    text = "the parcel was late, refund please! " * 9
    again = transformers.AutoTokenizer.from_pretrained(folder)(text, truncation=True)["input_ids"]
    assert again == base.tokenizer.encode([text], delta.manifest.max_length)[0].input_ids


def _feeds(session: InferenceSession, tokens: Sequence[Tokens]) -> dict[str, np.ndarray]:
    """The sequences as one padded batch."""
    shape = len(tokens), max(map(len, tokens))
    ids, mask = np.ones(shape, np.int64), np.zeros(shape, np.int64)
    for row, text in enumerate(tokens):
        ids[row, : len(text)], mask[row, : len(text)] = text.input_ids, 1
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}
    return {get_input.name: given[get_input.name] for get_input in session.get_inputs()}
