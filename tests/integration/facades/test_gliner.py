"""GLiNER's `/v1/extract` as NeMo Guardrails asks it; test_gateway_clients.py has NeMo itself."""

import pytest

from facade_tasks import LONG, TEXTS

PATH = "/v1/extract"
# What NeMo Guardrails sends beside the text.
NEMO = {"threshold": 0.0, "chunk_length": 384, "overlap": 128, "flat_ner": False}
ENTITY = ("value", "suggested_label", "start_position", "end_position", "score")


def extract(web, text, task="names", **more):
    answer = web.post(f"/t/{task}{PATH}", json={"text": text, **NEMO, **more})
    return answer.status_code, answer.json()


def native(web, text):
    body = {"inputs": text, "window": {"overlap": 12}} if text == LONG else {"inputs": text}
    [result] = web.post("/v1/tasks/names/classify", json=body).json()["results"]
    return [
        (text[entity["start"] : entity["end"]], entity["label"], entity["start"], entity["end"], entity["score"])
        for entity in result["entities"]
    ]


@pytest.mark.parametrize("text", [*TEXTS, f"\U0001f600 {TEXTS[0]}", LONG], ids=["1", "2", "3", "astral", "long"])
def test_it_finds_what_the_native_answer_has(web, text):
    status, answer = extract(web, text)
    assert status == 200
    assert [tuple(entity[name] for name in ENTITY) for entity in answer["entities"]] == native(web, text)
    assert answer["total_entities"] == len(answer["entities"])
    tagged = text
    for value, label, start, end, _ in reversed(native(web, text)):
        tagged = f"{tagged[:start]}[{value}]({label}){tagged[end:]}"
    assert answer["tagged_text"] == tagged


def test_labels_and_the_threshold_choose_among_them(web):
    entities = native(web, LONG)
    assert {label for _, label, *_ in entities} == {"PER", "LOC"}
    for label in ("PER", "LOC"):
        _, answer = extract(web, LONG, labels=[label])
        assert [entity["start_position"] for entity in answer["entities"]] == [
            entity[2] for entity in entities if entity[1] == label
        ]
    middle = sorted(entity[-1] for entity in entities)[len(entities) // 2]
    _, answer = extract(web, LONG, threshold=middle)
    assert [entity["score"] for entity in answer["entities"]] == [
        entity[-1] for entity in entities if entity[-1] > middle
    ]
    for nothing in (None, []):
        assert extract(web, LONG, labels=nothing) == extract(web, LONG)


def test_a_blank_text_has_none(web):
    assert extract(web, " ") == (200, {"entities": [], "total_entities": 0, "tagged_text": " "})


@pytest.mark.parametrize(
    ("task", "more", "says"),
    [
        ("names", {"labels": ["PER", "B-LOC"]}, "labels.1: names@1 finds no such label"),
        ("names", {"threshold": 2}, "threshold: must be"),
        ("names", {"nested": True}, "nested: "),
        ("risk", {}, "risk@1 is a single_label task"),
    ],
)
def test_what_would_find_nothing_is_refused(web, task, more, says):
    status, answer = extract(web, **{"text": TEXTS[0], "task": task} | more)
    assert status == 422
    assert answer["error"].startswith(says)
