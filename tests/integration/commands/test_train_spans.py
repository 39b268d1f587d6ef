"""Spans that people draw, from a file through reviews of kept answers to the next version, end as tags do."""

import json

import pytest
from cryptography.fernet import Fernet

from bases import tiny_base
from ended import recorded, succeeded
from onebert_server.client import Client
from servers import Server, wait_until

BASE = str(tiny_base("bert"))
CITIES = ("Oslo", "New York", "Lima", "San Juan", "Rome")
PEOPLE = ("Ana", "Ben Horvat", "Mia", "Ana Silva")
FORMS = ("call {person} in {city} today", "ship it to {city}", "{person} left", "from {city} to {city} with {person}")


def rows(start, count):
    """Texts with the spans of their cities and people, by where the parts are put."""
    made = []
    for n in range(start, start + count):
        text, spans = "", []
        for word in FORMS[n % len(FORMS)].split(" "):
            at = len(text) + bool(text)
            kind = word.strip("{}")
            names = {"city": CITIES, "person": PEOPLE}.get(kind, (word,))
            part = names[(n + at) % len(names)]
            text = f"{text} {part}" if text else part
            spans += [[at, at + len(part), kind]] if kind != word else []
        made.append((f"{text} {n}", spans))
    return made


def tags_of(text, spans):
    """The tags of words between blanks; the first word of a span begins it."""
    tags, at = [], 0
    for word in text.split(" "):
        inside = [(start, label) for start, end, label in spans if start <= at < end]
        tags.append("O" if not inside else f"{'B' if inside[0][0] == at else 'I'}-{inside[0][1]}")
        at += len(word) + 1
    return tags


def write(path, lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def annotated(task, spans):
    """The task as Label Studio exports it, once a person has drawn the spans."""
    control = {"from_name": "label", "to_name": "text", "type": "labels"}
    result = [control | {"value": {"start": start, "end": end, "labels": [label]}} for start, end, label in spans]
    return task | {"id": 1, "annotations": [{"id": 1, "was_cancelled": False, "result": result}]}


def scores(record):
    return {name: value for name, value in record.items() if name in ("test", "validation")}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("spans"), base=BASE, samples_key=Fernet.generate_key().decode()) as running:
        yield running


def test_spans_reviewed_on_kept_answers_end_at_the_scores_of_the_same_rows_as_tags(onebert, server, tmp_path):
    first, later, test = rows(0, 40), rows(40, 8), rows(100, 20)
    # Files have the names of their data.
    drawn, words, more = tmp_path / "drawn/data", tmp_path / "words/data", tmp_path / "feedback.jsonl"
    for folder in (drawn, words):
        folder.mkdir(parents=True)
    for name, part in (("train", first), ("test", test)):
        write(drawn / f"{name}.jsonl", [{"text": text, "label": spans} for text, spans in part])
        write(
            words / f"{name}.jsonl",
            [{"tokens": text.split(" "), "ner_tags": tags_of(text, spans)} for text, spans in part],
        )
    write(more, [{"tokens": text.split(" "), "ner_tags": tags_of(text, spans)} for text, spans in later])
    settings = ("--method", "bitfit", "--max-steps", "6", "--base", BASE, "--device", "cpu")

    def train(name, *options):
        out = tmp_path / f"{name}.safetensors"
        record, _ = recorded(onebert("train", *options, *settings, "--out", out, "--json"))
        return out, record

    by_spans, record = train("names", "--task", "names", "--data", drawn)
    by_tags, same = train("tagged", "--task", "names", "--data", words)
    assert by_spans.read_bytes() == by_tags.read_bytes()
    assert scores(record) == scores(same)
    succeeded(onebert("push", by_spans, "--url", server.url, "--promote"))

    with Client(server.url) as client:
        client.set_samples("names", 1.0)
        client.classify("names", [text for text, _ in later])
        wait_until(lambda: client.samples("names").kept == len(later))
    queue, labeled = tmp_path / "queue.json", tmp_path / "labeled.json"
    review = ("review", "names", "--tool", "label-studio", "--url", server.url)
    succeeded(onebert(*review, "--out", queue))
    right = dict(later)
    tasks = sorted(json.loads(queue.read_text()), key=lambda task: [*right].index(task["data"]["text"]))
    labeled.write_text(json.dumps([annotated(task, right[task["data"]["text"]]) for task in tasks]))
    assert succeeded(onebert(*review, "--in", labeled))[0] == f"names: feedback on {len(later)} texts\n"
    like = ("--like", "names", "--url", server.url)
    _, reviewed = train("reviewed", *like, "--data", drawn, "--feedback")
    _, added = train("added", *like, "--data", words, "--more", more)
    assert reviewed["data"] == added["data"], "the digest of all rows, those added included"
    assert scores(reviewed) == scores(added)
    assert reviewed["rows"]["train"] == record["rows"]["train"] + len(later)
