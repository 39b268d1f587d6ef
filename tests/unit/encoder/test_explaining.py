"""Explanations: gradients of the plain model, effects of what a text without its word says, rows of files."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bases import Reference, far_delta, manifest_for, tiny_base, torch_tensors
from bases import loaded as base
from onebert_encoder.explaining.layers import RemovedRows, removals
from onebert_encoder.explaining.texts import TextExplainer, gradient_times_input
from onebert_encoder.explaining.words import Stretch, joined, removable, without, words_of
from onebert_encoder.maths.fold import fold
from onebert_store.errors import InvalidInput
from onebert_store.file.decision import Decision
from onebert_store.file.delta import DELTA, Delta
from onebert_store.file.manifest import parse_manifest

TEXTS = ["my order is late , please help !", "great screen", "the the parcel was broken again and they said nothing"]


def made(kind="bitfit", pooling="mean", labels=3, seed=0, family="bert", **manifest):
    tensors = far_delta(base(family).spec, kind, pooling, labels, seed)
    return Delta(parse_manifest(manifest_for(base(family).spec, pooling, labels, **manifest)), tensors)


def of_the_plain_model(family, delta, tokens, label, task_type, decision=None):
    """At the output of Hugging Face's embeddings, by its own forward and backward pass."""
    reference = Reference(tiny_base(family), delta.tensors, delta.manifest.pooling)
    embeddings = []
    reference.model.embeddings.register_forward_hook(lambda _, __, out: embeddings.append(out) or out.retain_grad())
    logits = reference.differentiable_logits(tokens.input_ids, tokens.type_ids)
    activation = decision.activation if decision else None
    if decision:
        logits = logits / decision.temperature
    if task_type == "single_label" and activation is None:
        logits[label].sub(torch.logsumexp(logits[torch.arange(len(logits)) != label], 0)).backward()
    else:
        logits[label].backward()
    x = embeddings[0].detach()[0]
    return (embeddings[0].grad[0] * (x - x.mean(dim=0))).sum(dim=1).numpy()


@pytest.mark.parametrize(
    ("family", "kind", "pooling", "task_type", "decision"),
    [
        ("bert", "everything", "mean", "single_label", None),
        ("bert", "everything", "mean", "single_label", Decision(temperature=3.0)),
        ("bert", "everything", "mean", "single_label", Decision(temperature=0.5, activation="sigmoid")),
        ("bert", "frozen", "pooler", "multi_label", None),
        ("bert", "scale", "cls", "regression", None),
        ("roberta", "lora", "cls", "single_label", None),
        ("distilbert", "adapter", "mean", "multi_label", Decision(temperature=3.0)),
        ("electra", "bitfit", "mean", "single_label", None),
    ],
)
def test_gradient_times_input_is_that_of_the_plain_model(family, kind, pooling, task_type, decision):
    labels = 1 if task_type == "regression" else 3
    delta = made(kind, pooling, labels, family=family, task_type=task_type)
    tokens = base(family).tokenizer.encode(TEXTS, 48)
    row = fold(base(family), torch_tensors(delta.tensors), pooling)
    chosen = [at % labels for at in range(len(tokens))]
    outputs = delta.manifest.model_copy(update={"decision": decision})
    gradients = gradient_times_input(base(family), row, tokens, chosen, outputs)
    for token, got, label in zip(tokens, gradients, chosen, strict=True):
        expected = of_the_plain_model(family, delta, token, label, task_type, decision)
        # Two backward passes in float32 that sum in another order.
        np.testing.assert_allclose(got, expected, atol=1e-3 * np.abs(expected).max(), rtol=0)


def test_words_are_explained_by_both_ways():
    delta = made("lora", labels=3, seed=3)
    explainer, text = TextExplainer.for_delta(base(), delta), TEXTS[0]
    left, gradient = explainer.by_occlusion(text), explainer.by_gradient(text)
    places = [(word.start, word.end) for word in left.words]
    assert [text[start:end] for start, end in places] == text.split()
    assert [(word.start, word.end) for word in gradient.words] == places
    reference = Reference(tiny_base(), delta.tensors, "mean")

    def score(text):
        [tokens] = base().tokenizer.encode([text], 48)
        return reference.logits(tokens.input_ids, tokens.type_ids).double().softmax(0).numpy()

    whole, words = score(text), text.split()
    label = int(whole.argmax())
    assert left.label == gradient.label == f"label {label}"
    expected = [whole[label] - score(" ".join(words[:at] + words[at + 1 :]))[label] for at in range(len(words))]
    np.testing.assert_allclose([word.effect for word in left.words], expected, atol=1e-4)
    [tokens] = base().tokenizer.encode([text], 48, align=True)
    by_token = of_the_plain_model("bert", delta, tokens, label, "single_label")
    expected = [sum(by_token[at] for at in word.tokens) for word in words_of(tokens.alignment)]
    np.testing.assert_allclose([word.effect for word in gradient.words], expected, atol=1e-3 * np.abs(expected).max())


def test_a_task_per_token_has_no_words_that_explain_it():
    with pytest.raises(InvalidInput, match="token task"):
        TextExplainer.for_delta(base(), made(pooling="none", task_type="token"))


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize(
    "text", [TEXTS[0], "it (don't help) me", "great \n news", ("my parcel", "they said it's late")]
)
def test_a_text_without_a_word_has_the_rest_of_it(family, text):
    [tokens] = base(family).tokenizer.encode([text], 48, align=True)
    halves = (text,) if isinstance(text, str) else text
    words = words_of(tokens.alignment)
    for number, half in enumerate(halves):
        parts = [half[word.start : word.end] for word in words if word.half == number]
        assert "".join(parts) == "".join(half.split())
    for word in words:
        left = without(text, word)
        for number, got in enumerate((left,) if isinstance(left, str) else left):
            half = halves[number]
            rest = half[: word.start] + half[word.end :] if number == word.half else half
            assert got.split() == rest.split()
            assert "  " not in got
            assert got == got.strip()


@given(st.lists(st.integers(1, 400), min_size=1, max_size=2), st.integers(1, 70))
def test_many_words_are_joined_evenly_and_none_is_lost(counts, most):
    words = [Stretch(half, 2 * at, 2 * at + 1, (at,)) for half, count in enumerate(counts) for at in range(count)]
    groups = joined(words, most)
    assert len(groups) <= max(most, 2)
    assert [token for stretch in groups for token in stretch.tokens] == [word.tokens[0] for word in words]
    assert {stretch.half for stretch in groups} == {*range(len(counts))}
    for stretch in groups:
        assert (stretch.start, stretch.end) == (2 * stretch.tokens[0], 2 * stretch.tokens[-1] + 1)
    if len(words) <= most:
        assert groups == words


# The rest has no token, though it is no whitespace: a zero-width space, a soft hyphen, a character that is not one.
@pytest.mark.parametrize("behind", ["", " ", " \u200b", "\u00ad", " \ufffd "])
def test_the_only_word_of_a_half_stays(behind):
    for text, left_out in (
        (f" late{behind}", []),
        (f"late order{behind}", ["late", "order"]),
        ((f"late{behind}", "my order"), ["my", "order"]),
    ):
        [tokens] = base().tokenizer.encode([text], 48, align=True)
        halves = (text,) if isinstance(text, str) else text
        removable_words = removable(words_of(tokens.alignment))
        assert [halves[word.half][word.start : word.end] for word in removable_words] == left_out
        for word in removable_words:
            [pieces] = base().tokenizer.split([without(text, word)], 48)
            assert all(pieces.lengths)


@pytest.mark.parametrize(
    ("family", "kind", "pooling"),
    [("bert", "everything", "pooler"), ("electra", "bitfit", "mean"), ("distilbert", "spafit", "none")],
)
def test_a_removed_layer_is_a_file_without_its_tensors(family, kind, pooling):
    task_type = "token" if pooling == "none" else "single_label"
    delta, spec = made(kind, pooling, family=family, task_type=task_type), base(family).spec
    removed = removals(torch_tensors(delta.tensors), spec)
    named = {(removal.kind, removal.name): removal.tensors.keys() for removal in removed}
    layers = [removal.name for removal in removed if removal.kind == "layer"]
    numbers = sorted({name.split("layer.")[1].split(".")[0] for name in delta.tensors if "layer." in name})
    outside = any(name.startswith(DELTA) and "LayerNorm" in name and "layer." not in name for name in delta.tensors)
    assert layers == [*(["embeddings"] if outside else []), *numbers, *(["pooler"] if pooling == "pooler" else [])]
    for layer in numbers:
        gone = {name for name in delta.tensors if f"layer.{layer}." in name}
        assert named["layer", layer] == delta.tensors.keys() - gone
    for symbol in {removal.name for removal in removed if removal.kind == "symbol"}:
        gone = delta.tensors.keys() - named["symbol", symbol]
        assert gone
        assert all(spec.symbols[path_of(name)] == symbol for name in gone)
    assert named["base", ""] == {name for name in delta.tensors if name.startswith("head.")}
    assert named["whole", ""] == delta.tensors.keys()
    tokens = base(family).tokenizer.encode(TEXTS, 48)
    all_logits = RemovedRows(base(family), removed, delta.manifest).logits(tokens)
    for removal, logits in zip(removed, all_logits, strict=True):
        tensors = {name: delta.tensors[name] for name in removal.tensors}
        reference = Reference(tiny_base(family), tensors, pooling)
        for text, got in zip(tokens, logits, strict=True):
            np.testing.assert_allclose(got.numpy(), reference.logits(text.input_ids, text.type_ids).numpy(), atol=2e-3)


def path_of(name):
    prefix, _, path = name.partition(".")
    return path if prefix == "delta" else path.removesuffix(".weight").removesuffix(".bias")
