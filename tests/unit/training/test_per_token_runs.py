"""Token and span tasks from data to file: they learn, and metrics are those of other tools on the plain model."""

from functools import cache
from itertools import chain

import numpy as np
import pytest
from seqeval.metrics import f1_score
from sklearn.metrics import accuracy_score
from transformers import AutoTokenizer

from bases import Reference, tiny_base
from onebert_store.errors import InvalidData
from onebert_store.file.format import dumps, loads
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import train
from onebert_training.fit.settings import Settings
from trainings import short_run

LONGEST_ANSWER = 30


@cache
def tokenizer():
    """The tokenizer of Hugging Face, as its users load it."""
    return AutoTokenizer.from_pretrained(tiny_base("bert"))


def make_run(base, data, method="bitfit", **changes):
    return short_run(base, data, Settings(epochs=12, learning_rate=2e-2, batch_size=8), method=method, **changes)


def plain_model(result):
    delta = loads(dumps(result.delta))
    assert delta.manifest.pooling == "none"
    return Reference(tiny_base("bert"), {name: array.copy() for name, array in delta.tensors.items()}, "none")


def predicted_tags(model, words, labels):
    """Of pre-split words, by the first piece of each, as `run_ner` of the transformers examples does."""
    encoded = tokenizer()(words, is_split_into_words=True)
    logits = model.logits(encoded["input_ids"])
    pieces = encoded.word_ids()
    return [labels[int(logits[pieces.index(i)].argmax())] for i in range(len(words))]


def predicted_answer(model, question, context):
    """The best of all spans of the context, by brute force."""
    encoded = tokenizer()(question, context, return_offsets_mapping=True, return_token_type_ids=True)
    logits = model.logits(encoded["input_ids"], encoded["token_type_ids"])
    inside = [i for i, half in enumerate(encoded.sequence_ids()) if half == 1]
    spans = [(i, j) for i in inside for j in inside if i <= j < i + LONGEST_ANSWER]
    first, last = max(spans, key=lambda span: float(logits[span[0], 0] + logits[span[1], 1]))
    return context[encoded["offset_mapping"][first][0] : encoded["offset_mapping"][last][1]]


def plain_words(text):
    """As SQuAD compares: without articles and punctuation; these texts repeat no word."""
    return set(text.replace(",", " ").split()) - {"the"}


def shared_words(text, other):
    ours, theirs = plain_words(text), plain_words(other)
    return 2 * len(ours & theirs) / (len(ours) + len(theirs))


@pytest.mark.parametrize("method", ["bitfit", "full"])
def test_a_token_task_is_learned(base, tags, method):
    result = train(make_run(base, tags, method, **({"learning_rate": 2e-3} if method == "full" else {})))
    assert result.metric == "entity_f1"
    assert result.test["entity_f1"] > 0.9


@pytest.mark.parametrize(("method", "max_steps"), [("bitfit", 9), ("lora:r=2", 12), ("frozen", 20)])
def test_a_token_tasks_metrics_are_seqevals_and_scikit_learns_on_the_plain_model(base, tags, method, max_steps):
    result = train(make_run(base, tags, method, max_steps=max_steps))
    model, split = plain_model(result), tags.splits["test"]
    words = [text.split() for text in split.texts]
    assert any(len(tokenizer().tokenize(word)) > 1 for word in words[0] + words[1] + words[2])
    gold = [[tags.labels[tag] for tag in row] for row in split.gold]
    tags_of_rows = [predicted_tags(model, row, tags.labels) for row in words]
    assert result.test["entity_f1"] == pytest.approx(f1_score(gold, tags_of_rows))
    accuracy = accuracy_score(list(chain(*gold)), list(chain(*tags_of_rows)))
    assert result.test["token_accuracy"] == pytest.approx(accuracy)


def test_a_span_task_is_learned(base, questions):
    result = train(make_run(base, questions, epochs=25))
    assert result.metric == "f1"
    assert result.test["exact_match"] > 0.7


@pytest.mark.parametrize(("method", "max_steps"), [("bitfit", 25), ("spafit:0-1-II", 30)])
def test_a_span_tasks_metrics_are_those_of_a_full_search_with_the_plain_model(base, questions, method, max_steps):
    result = train(make_run(base, questions, method, max_steps=max_steps))
    model, split = plain_model(result), questions.splits["test"]
    spans = [predicted_answer(model, *pair) for pair in split.texts]
    gold = [answers[0][1] for answers in split.gold]
    exact = np.mean([plain_words(answer) == plain_words(other) for answer, other in zip(spans, gold, strict=True)])
    assert result.test["exact_match"] == pytest.approx(exact)
    assert result.test["f1"] == pytest.approx(np.mean(list(map(shared_words, spans, gold))))


def test_what_is_cut_before_every_answer_is_refused_before_training(base, questions):
    with pytest.raises(InvalidData, match=r"^train split: the inputs are cut before every answer"):
        TaskInputs(base, questions, 3).check_targets()
    TaskInputs(base, questions, 40).check_targets()
