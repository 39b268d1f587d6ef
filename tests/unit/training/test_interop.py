"""Which Hugging Face class holds a head, or that none does; an exported folder is complete or does not exist."""

import errno
import os
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from onebert_encoder.base.families import FAMILIES
from onebert_store.disk import whole_folder
from onebert_store.errors import InvalidInput, InvalidSettings, StorageFull
from onebert_training.interop.folders import write_json, write_tensors
from onebert_training.interop.heads import TaskOptions, fitting_layout, layout_of, outputs_of, peft_layout
from tiny_delta import make_delta

HEAD = ("head.weight", "head.bias")


@pytest.fixture
def new_family(monkeypatch):
    """A family without an entry for its sequence head."""
    monkeypatch.setattr(
        "onebert_encoder.base.families.FAMILIES",
        {**FAMILIES, "newbert": replace(FAMILIES["bert"], heads={})},
    )
    return "newbert"


def manifest_of(model_type, pooling):
    manifest = make_delta().manifest
    base = manifest.base.model_copy(update={"model_type": model_type})
    return manifest.model_copy(update={"base": base, "pooling": pooling, "task_type": "single_label"})


def test_a_family_without_a_known_head_is_refused_by_name(new_family):
    with pytest.raises(InvalidInput, match="sequence classifier of newbert keeps its layers is not known"):
        layout_of(new_family, "sequence")
    assert fitting_layout(manifest_of(new_family, "pooler"), HEAD) is None
    with pytest.raises(InvalidInput, match="PEFT has no classifier for newbert"):
        peft_layout(manifest_of(new_family, "pooler"), HEAD)
    assert layout_of(new_family, "token").linear == "classifier"


SIGMOID, IDENTITY = (
    {"activation_fn": f"torch.nn.modules.{name}"} for name in ("activation.Sigmoid", "linear.Identity")
)


@pytest.mark.parametrize(
    ("config", "count", "task_type", "assumed"),
    [
        ({}, 3, "single_label", False),
        ({"problem_type": "multi_label_classification"}, 3, "multi_label", False),
        ({"sentence_transformers": SIGMOID}, 3, "multi_label", False),
        ({"sentence_transformers": IDENTITY}, 3, "single_label", False),
        ({}, 1, "multi_label", True),
        ({"problem_type": "regression"}, 1, "regression", False),
        ({"problem_type": "regression", "sentence_transformers": SIGMOID}, 1, "regression", False),
        ({"problem_type": "multi_label_classification"}, 1, "multi_label", False),
        # transformers' pipeline gives the sigmoid here, too.
        ({"problem_type": "single_label_classification"}, 1, "multi_label", True),
        ({"sentence_transformers": SIGMOID}, 1, "multi_label", False),
        ({"sentence_transformers": IDENTITY}, 1, "regression", False),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, 1, "regression", False),
        ({"sentence_transformers": {"activation_fn": 5}}, 1, "multi_label", True),
        ({"sentence_transformers": []}, 1, "multi_label", True),
    ],
)
def test_a_task_type_is_the_one_by_which_the_model_itself_is_asked(config, count, task_type, assumed):
    names = [f"label {i}" for i in range(count)]
    (named_type, _), warnings = outputs_of(config, "sequence", count, TaskOptions(names))
    assert (named_type, len(warnings)) == (task_type, assumed)
    assert outputs_of(config, "sequence", count, TaskOptions(names, "regression")) == (("regression", names), [])


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({"id2label": {"0": "no", "1": "yes"}}, ["no", "yes"]),
        ({"id2label": {"1": "yes", "0": "no"}, "label2id": {"yes": 1, "no": 0}}, ["no", "yes"]),
        ({"id2label": {"0": "no", "1": "yes"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}, ["no", "yes"]),
        ({"id2label": {"0": 0, "1": 1}, "label2id": None}, ["0", "1"]),
    ],
)
def test_names_are_read_in_the_order_of_the_outputs(config, labels):
    assert outputs_of(config, "sequence", 2, TaskOptions()) == (("single_label", labels), [])


def test_outputs_without_names_are_said():
    for config in ({}, {"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}):
        outputs, warnings = outputs_of(config, "token", 2, TaskOptions())
        assert outputs == ("token", ["LABEL_0", "LABEL_1"])
        assert warnings == ["the outputs have no names but LABEL_0, …; --labels gives them names, in their order"]
    assert outputs_of({}, "span", 2, TaskOptions()) == (("span", ["start", "end"]), [])


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}}, r'{"0":"a","1":"b"}: {"a":1,"b":0}; give'),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"x": 0, "y": 1}}, "is not what id2label says"),
        ({"label2id": {"neg": 0, "pos": 1}}, "is not what id2label says.*give --labels in the order of the outputs"),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": [5]}, r"is not what id2label says.*: \[5\]"),
        ({"id2label": {"0": "a", "1": ["b"]}}, "not names by numbers"),
        ({"id2label": {"0": "a", "1": None}}, "not names by numbers"),
        ({"id2label": "ab"}, "not names by numbers"),
        ({"id2label": {"0": "a"}}, "names 0, and the classifier has the outputs 0 to 1"),
        ({"problem_type": ["regression"]}, r'problem_type in config\.json is not one of .*: \["regression"\]'),
        ({"problem_type": "ranking"}, "give --task-type"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused_unless_the_caller_decides(config, why):
    with pytest.raises(InvalidInput, match=why):
        outputs_of(config, "sequence", 2, TaskOptions())
    assert outputs_of(config, "sequence", 2, TaskOptions(["no", "yes"], "multi_label")) == (
        ("multi_label", ["no", "yes"]),
        [],
    )


def fill(folder):
    with whole_folder(folder) as filling:
        write_json(filling / "config.json", {"label": "größer"})
        write_tensors(filling / "model.safetensors", {"x": torch.ones(2, 3, dtype=torch.float64).T})


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_folder_is_filled(tmp_path, exists):
    folder = tmp_path / "out"
    if exists:
        folder.mkdir()
    fill(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert list(tmp_path.iterdir()) == [folder]
    assert "größer" in (folder / "config.json").read_text(encoding="utf-8")
    tensor = load_file(folder / "model.safetensors")["x"]
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.float32, (3, 2))


@pytest.mark.parametrize("place", ["full/out", "out", "no/out"], ids=["full folder", "broken link", "no parent"])
def test_a_place_that_is_not_free_is_refused_and_left_as_it_is(tmp_path, place):
    (tmp_path / "full" / "out" / "mine").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "nothing")
    folder = tmp_path / place
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidSettings):
        fill(folder)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_is_typed_and_leaves_nothing(tmp_path, monkeypatch, call):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageFull):
        fill(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
