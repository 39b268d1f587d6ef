"""Token and span tasks on a real server: words, entities and answers against the plain Hugging Face model."""

import json
import re

import numpy as np
import pytest
from scipy.special import softmax
from seqeval.metrics.sequence_labeling import get_entities

from onebert_store.errors import GoldenMismatch, InvalidInput, TaskNotFound
from servers import Task, assert_answers, run_onebert, tokenizer

TEXT = "please help, my order is late; it's the 2nd parcel!"
CONTEXT = "The parcel was broken. Who found it out? Two people did, after a very long day, I think."
QUESTION = "who found it"
BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
POS = ["NOUN", "VERB", "X"]


def token_task(labels, kind="bitfit", seed=1, **manifest):
    return Task(kind, "none", labels=labels, seed=seed, task_type="token", **manifest)


def span_task(kind="bitfit", seed=1, **manifest):
    return Task(kind, "none", labels=["start", "end"], seed=seed, task_type="span", **manifest)


@pytest.fixture(scope="module")
def tasks(client):
    """Token, span and sequence tasks by name; what they share of the base differs."""
    made = {
        "pos": token_task(POS, "layernorm", seed=1),
        "ner": token_task(BIO, "spafit", seed=2),
        "qa": span_task("everything", seed=3),
        "frozen-pos": token_task(POS, "frozen", seed=4),
        "mood": Task("spafit", "mean", labels=3, seed=5),
        "topic": Task("frozen", "cls", labels=4, seed=6),
    }
    for name, task in made.items():
        client.push(name, task.with_golden().file)
    return made


def encoded(task, *texts):
    return tokenizer()(*texts, truncation=True, max_length=task.manifest["max_length"])


def words_of(task, text):
    """(start, end, label, score) of every word, by the tokenizer's word numbers and the plain model's logits."""
    encoding = encoded(task, text)
    numbers = encoding.word_ids(0)
    scores = softmax(task.logits(text), axis=-1)
    words = []
    for number in sorted({number for number in numbers if number is not None}):
        first = numbers.index(number)
        places = [encoding.token_to_chars(0, i) for i, other in enumerate(numbers) if other == number]
        label = task.manifest["labels"][scores[first].argmax()]
        words.append((places[0].start, places[-1].end, label, scores[first].max()))
    return words


def assert_words(words, wanted):
    assert [(word["start"], word["end"], word["label"]) for word in words] == [word[:3] for word in wanted]
    np.testing.assert_allclose([word["score"] for word in words], [word[3] for word in wanted], rtol=0, atol=1e-4)


def assert_labeling(result, task, text):
    words = words_of(task, text)
    assert_words(result["words"], words)
    if task.manifest["labels"] != BIO:
        assert result.keys() & {"entities", "answers", "label", "score", "scores", "labels"} == set()
        return
    entities = [
        (words[first][0], words[last][1], kind, np.mean([word[3] for word in words[first : last + 1]]))
        for kind, first, last in get_entities([word[2] for word in words])
    ]
    assert_words(result["entities"], entities)


def spans_of(task, question, context, count):
    encoding = encoded(task, question, context)
    inside = [i for i, half in enumerate(encoding.sequence_ids(0)) if half == 1]
    starts, ends = softmax(task.logits(question, context)[inside], axis=0).T
    places = [encoding.token_to_chars(0, i) for i in inside]
    every = [
        (starts[i] * ends[j], places[i].start, places[j].end)
        for i in range(len(inside))
        for j in range(i, min(i + 30, len(inside)))
    ]
    return sorted(every, reverse=True)[:count]


def assert_spans(result, task, question, context, count=1):
    wanted = spans_of(task, question, context, count)
    assert [(answer["start"], answer["end"]) for answer in result["answers"]] == [
        (start, end) for _, start, end in wanted
    ]
    assert [answer["text"] for answer in result["answers"]] == [context[start:end] for _, start, end in wanted]
    scores = [answer["score"] for answer in result["answers"]]
    np.testing.assert_allclose(scores, [score for score, _, _ in wanted], rtol=0, atol=1e-4)
    assert result.keys() & {"label", "words", "entities", "scores"} == set()


def test_words_and_entities_are_the_plain_models(client, tasks):
    texts = [TEXT, "good", "😀 the order-form, of 3 people!", "zq " * 30]
    for name in ("pos", "ner", "frozen-pos"):
        results = client.classify(name, texts)["results"]
        for text, result in zip(texts, results, strict=True):
            assert_labeling(result, tasks[name], text)
            assert result["tokens"] == len(encoded(tasks[name], text)["input_ids"])
        assert [result["truncated"] for result in results] == [False, False, False, True]
    assert any(result["entities"] for result in client.classify("ner", texts)["results"])


def test_answers_are_the_plain_models_spans(client, tasks):
    pairs = [(QUESTION, CONTEXT), ("what", "good"), (QUESTION, "😀 " + CONTEXT * 4)]
    for pair, result in zip(pairs, client.classify("qa", pairs)["results"], strict=True):
        assert_spans(result, tasks["qa"], *pair)
    (result,) = client.classify("qa", (QUESTION, CONTEXT), top_k=5)["results"]
    assert_spans(result, tasks["qa"], QUESTION, CONTEXT, count=5)
    (result,) = client.classify("qa", ("what", "good"), top_k=5)["results"]
    assert len(result["answers"]) == 1, "there is one span"


def test_types_are_mixed_in_one_request(client, tasks):
    texts = {"qa": (QUESTION, CONTEXT), "mood": TEXT, "pos": TEXT, "ner": CONTEXT, "topic": CONTEXT, "frozen-pos": TEXT}
    items = [(name, texts[name]) for name in [*texts] * 8]
    results = client.classify_items(items, top_k=2)
    for (name, text), result in zip(items, results, strict=True):
        assert result["task"] == name
        if name == "qa":
            assert_spans(result, tasks[name], *text, count=2)
        elif name in ("mood", "topic"):
            best = sorted(tasks[name].scores(text).items(), key=lambda entry: -entry[1])[:2]
            assert_answers(result, dict(best))
            assert result.keys() & {"words", "entities", "answers"} == set()
        else:
            assert_labeling(result, tasks[name], text)


def test_fanout_star_is_what_takes_the_input(client, tasks):
    def answered(text):
        return {result["task"] for result in client.fanout(text)} & tasks.keys()

    assert answered(TEXT) == tasks.keys() - {"qa"}
    assert answered((QUESTION, CONTEXT)) == {"qa", "mood", "topic"}


def test_a_task_that_does_not_take_the_input_is_named(client, tasks):
    with pytest.raises(InvalidInput, match="qa@1 is a span task and takes a question as text and its context"):
        client.classify("qa", TEXT)
    with pytest.raises(InvalidInput, match="ner@1 is a token task and takes one text"):
        client.classify("ner", [TEXT, (QUESTION, CONTEXT)])
    with pytest.raises(InvalidInput, match="text_pair: must not be blank"):
        client.classify("qa", ("what", "\x07"))
    with pytest.raises(InvalidInput, match="qa@1"):
        client.fanout(TEXT, ["mood", "qa"])
    with pytest.raises(InvalidInput, match="pos@1"):
        client.classify_items([("mood", TEXT), ("pos", (TEXT, TEXT))])


def test_golden_logits_of_tokens_are_proved(client):
    for task in (token_task(BIO, seed=7), span_task(seed=8)):
        with pytest.raises(GoldenMismatch):
            client.push("unproved", task.with_golden(shift=0.05).file)
    with pytest.raises(TaskNotFound):
        client.task("unproved")
    assert client.push("unrecorded", token_task(BIO, seed=9).file)["created"]


def lines_of(out):
    """Cells of each row of a printed table, two spaces or more apart; an empty one in front is left out."""
    return [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]


def test_classify_command_prints_findings_under_their_text(server, tasks):
    def run(*arguments):
        done = run_onebert("classify", *arguments, url=server.url)
        assert (done.returncode, done.stderr) == (0, "")
        return lines_of(done.stdout)

    text = "my order is late"
    rows = run("pos", text)
    wanted = [[text[a:b], label, f"{score:.3f}"] for a, b, label, score in words_of(tasks["pos"], text)]
    assert ["text", "word", "label", "score"] in rows
    first = rows.index([text, *wanted[0]])
    assert rows[first + 1 : first + 4] == wanted[1:]
    assert ["text", "entity", "label", "score"] in run("ner", text)
    answers = spans_of(tasks["qa"], "what is late", text, 2)
    rows = run("qa", "--pair", "what is late", text, "--top-k", "2")
    assert ["text", "answer", "scores"] in rows
    assert ["what is late | " + text, text[slice(*answers[0][1:])], f"{answers[0][0]:.3f}"] in rows
    assert any(row[-2:] == [text[slice(*answers[1][1:])], f"{answers[1][0]:.3f}"] for row in rows)


def test_classify_command_for_scripts(server, tasks):
    done = run_onebert("classify", "ner", "--json", TEXT, url=server.url)
    record = json.loads(done.stdout)
    assert_labeling(record, tasks["ner"], TEXT)
    assert [word["text"] for word in record["words"]] == [TEXT[word["start"] : word["end"]] for word in record["words"]]
    done = run_onebert("classify", "qa", "--json", "--pair", QUESTION, CONTEXT, url=server.url)
    assert_spans(json.loads(done.stdout), tasks["qa"], QUESTION, CONTEXT)
