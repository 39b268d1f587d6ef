"""`onebert explain`: what it prints is what texts without a word, and files without a layer, say."""

import json

import numpy as np
import pytest

from bases import Reference, far_delta, manifest_for, tiny_base
from onebert_encoder.base.base import load_base
from onebert_store.errors import InvalidInput
from onebert_store.file.delta import Delta
from onebert_store.file.format import save
from onebert_store.file.manifest import parse_manifest
from onebert_training.cli import evaluate, explain
from trainings import invoke

TEXT = "my order is late please help"
ROWS = [("the order is good", "label 0"), ("a late parcel", "label 1"), ("broken screen again", "label 1")]


def facts(command, *arguments):
    done = invoke(command, *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def made(tmp_path):
    """Writes a delta file; gives it, and its tensors."""

    def write(kind="bitfit", pooling="mean", labels=2, **manifest):
        spec = load_base(str(tiny_base())).spec
        made = parse_manifest(manifest_for(spec, pooling, labels, **manifest))
        delta = Delta(made, far_delta(spec, kind, pooling, labels, 4))
        save(tmp_path / "a.safetensors", delta)
        return tmp_path / "a.safetensors", delta

    return write


def logits(tensors, text, pooling="mean"):
    [tokens] = load_base(str(tiny_base())).tokenizer.encode([text], 48)
    return Reference(tiny_base(), tensors, pooling).logits(tokens.input_ids, tokens.type_ids).double()


def test_words_and_parts_of_one_text(made):
    file, delta = made()
    record = facts(explain, file, TEXT, "--layers")
    whole = logits(delta.tensors, TEXT).softmax(0)
    label = int(whole.argmax())
    assert (record["label"], record["score"]) == (f"label {label}", pytest.approx(float(whole[label]), abs=1e-4))
    left, gradient = record["explanations"]
    assert (left["method"], gradient["method"]) == ("occlusion", "gradient_times_input")
    words = TEXT.split()
    for explanation in (left, gradient):
        assert [TEXT[word["start"] : word["end"]] for word in explanation["words"]] == words
    without = [" ".join(words[:at] + words[at + 1 :]) for at in range(len(words))]
    expected = [float(whole[label] - logits(delta.tensors, text).softmax(0)[label]) for text in without]
    np.testing.assert_allclose([word["effect"] for word in left["words"]], expected, atol=2e-4)
    for part in record["removed"]:
        if part["kind"] == "layer" and part["name"] != "embeddings":
            tensors = {name: tensor for name, tensor in delta.tensors.items() if f"layer.{part['name']}." not in name}
            effect = float(whole[label] - logits(tensors, TEXT).softmax(0)[label])
            assert part["score"] == pytest.approx(effect, abs=2e-4)
    kinds = [part["kind"] for part in record["removed"]]
    assert (kinds.count("base"), kinds.count("layer"), kinds[-1]) == (1, 4, "symbol")
    shown = invoke(explain, file, TEXT, "--layers").stdout
    assert "gradient × input" in shown
    assert "all that it changes of the base" in shown
    assert "removed" not in facts(explain, file, TEXT)


def test_words_of_a_pair_say_their_text_and_those_left_out_are_counted(made):
    file, _ = made()
    printed = invoke(explain, file, TEXT, f"{TEXT} now and then").stdout
    rows = [line.split()[:2] for line in printed.splitlines()]
    lines = [row for row in rows if row and row[0] in ("first", "second")]
    assert len(lines) == 12
    assert {which for which, _ in lines} == {"first", "second"}
    words = {"first": TEXT.split(), "second": [*TEXT.split(), "now", "and", "then"]}
    assert all(word in words[which] for which, word in lines)
    assert "and 3 more, which --json has\n" in printed
    alone = invoke(explain, file, TEXT).stdout
    assert "first" not in alone
    assert "more, which" not in alone


def test_how_much_of_a_long_text_is_explained_is_said(made, tmp_path):
    """The special tokens stand around the words, of which each is a token."""
    window = {"tokens": 8, "overlap": 2, "reduction": "mean"}
    file, _ = made(max_length=8, format=2, decision={"window": window})
    for text, tokens in ((TEXT, 8), (f"{TEXT} now", 9), (f"{TEXT} {TEXT}", 14)):
        record, printed = facts(explain, file, text), invoke(explain, file, text).stdout
        assert record["tokens"] == {"read": 8, "of": tokens}
        for explanation in record["explanations"]:
            assert [text[word["start"] : word["end"]] for word in explanation["words"]] == text.split()[:6]
        note = f"8 of {tokens} tokens were read; effects are of these; a server reads all, in windows\n"
        assert (note in printed) == ("tokens were read" in printed) == (tokens > 8)
    data = tmp_path / "rows.csv"
    data.write_text(f"text,label\n{TEXT},label 0\n{TEXT} now,label 1\n")
    longer = "1 texts are longer than a window: a server reads them whole, and here they are truncated"
    assert longer in facts(evaluate, file, "--data", data)["warnings"]


def test_parts_of_a_delta_on_labeled_rows(made, tmp_path):
    """The whole is what `evaluate` says; without a layer, what it says of a file without that layer's tensors."""
    file, delta = made("lora")
    data = tmp_path / "rows.csv"
    data.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS * 4))
    record = facts(explain, file, "--data", data)
    assert (record["rows"], record["split"], record["metric"]) == (12, "all", "accuracy")
    assert record["accuracy"] == facts(evaluate, file, "--data", data)["metrics"]["accuracy"]

    def loss(tensors):
        return -np.mean([float(logits(tensors, text).log_softmax(0)[int(label[-1])]) for text, label in ROWS])

    assert record["loss"] == pytest.approx(loss(delta.tensors), abs=1e-4)
    layers = [part for part in record["removed"] if part["kind"] == "layer"]
    assert [part["name"] for part in layers] == ["0", "1", "2"]
    for part in layers:
        tensors = {name: tensor for name, tensor in delta.tensors.items() if f"layer.{part['name']}." not in name}
        assert part["loss"] == pytest.approx(loss(tensors) - loss(delta.tensors), abs=2e-4)
        save(tmp_path / "less.safetensors", Delta(delta.manifest, tensors))
        less = facts(evaluate, tmp_path / "less.safetensors", "--data", data)["metrics"]["accuracy"]
        assert part["accuracy"] == pytest.approx(less - record["accuracy"])
    assert facts(explain, file, "--data", data, "--rows", 4)["rows"] == 4


def test_a_token_task_has_parts_and_no_words(made, tmp_path):
    file, _ = made(pooling="none", task_type="token")
    assert "token task" in str(invoke(explain, file, TEXT).exception)
    data = tmp_path / "rows.jsonl"
    rows = [{"words": text.split(), "tags": ["label 0", "label 1"] * (len(text.split()) // 2)} for text in [TEXT] * 3]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = facts(explain, file, "--data", data)
    assert {part["kind"] for part in record["removed"]} == {"base", "layer", "symbol"}
    assert all(np.isfinite(part["loss"]) for part in record["removed"])


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_what_is_no_number_is_said_in_one_line(made, tmp_path, options):
    _, delta = made()
    file = tmp_path / "far.safetensors"
    weight = (np.sign(delta.tensors["head.weight"]) * 3e38).astype(np.float32)
    save(file, Delta(delta.manifest, delta.tensors | {"head.weight": weight}))
    data = tmp_path / "rows.csv"
    data.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in ROWS))
    assert "is not a finite number" in str(invoke(explain, file, TEXT, "--layers", *options).exception)
    assert "a loss is NaN or infinite" in str(invoke(explain, file, "--data", data, *options).exception)


@pytest.mark.parametrize("text", [" ", "\u200b", "\udcff late"])
def test_a_text_that_is_none_is_one_line(made, text):
    file, _ = made()
    assert isinstance(invoke(explain, file, text).exception, InvalidInput)


def test_of_a_single_word_a_line_stands_in_place_of_an_empty_table(made):
    file, _ = made()
    message = "can be removed: nothing of what was read would remain\n"
    printed = invoke(explain, file, "late").stdout
    assert f"no word of the text {message}" in printed
    assert "gradient" not in printed
    assert facts(explain, file, "late")["explanations"][0]["words"] == []
    of_pair = invoke(explain, file, "late order", "late").stdout
    assert f"no word of the second text {message}" in of_pair
    assert of_pair.count("first") == 2


def test_what_is_explained_is_a_text_or_rows(made, tmp_path):
    file, _ = made()
    for arguments in ((), ("one", "two", "three"), (TEXT, "--data", tmp_path)):
        done = invoke(explain, file, *arguments)
        assert done.exit_code == 2
        assert "a TEXT, or the two of a pair, or --data" in " ".join(done.output.replace("│", " ").split())
