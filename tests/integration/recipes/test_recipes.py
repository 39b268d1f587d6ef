"""The recipes of docs/recipes, run as they stand against a server, with the other program from PyPI beside them."""

import json
import re

import pytest

from bases import tiny_base
from environments import python_environment
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.settings import DEFAULT_METHOD
from onebert_training.methods.table import METHODS
from pages import ROOT, blocks, run_block
from servers import Server, Task

TEXTS = ["the soup was late", "great parcel", "please help", "bad screen"]


def told(environment, name, url, *more):
    """What the page's Python, and a line behind it, prints in the environment against the server at the URL."""
    code = "\n".join([*(block.code for block in blocks(f"docs/recipes/{name}", "python")), *more])
    return python_environment(environment).prints(code.replace("http://127.0.0.1:8000", url))


@pytest.mark.slow
def test_langchain(server):
    task = Task(seed=16, labels=["positive", "negative"])
    with server.client() as client:
        client.push("tone", task.file)
    more = f"import json; print(json.dumps(OneBert('tone').batch({TEXTS * 20!r})))"
    printed = told("langchain", "langchain.md", server.url, more).splitlines()
    labels = [max(scores, key=scores.get) for scores in map(task.scores, TEXTS)]
    assert json.loads(printed[-1]) == labels * 20
    asked = "The soup was cold and nobody cared."
    scores = task.scores(asked)
    begins = {"negative": "an apology for", "positive": "thanks for"}[max(scores, key=scores.get)]
    assert printed[0] == f"{begins}: {asked}"


@pytest.mark.slow
def test_presidio(server):
    task = Task(pooling="none", seed=4, task_type="token", labels=["O", "B-PERSON", "I-PERSON", "B-PLACE", "I-PLACE"])
    text = "Please refund Ada in London."
    with server.client() as client:
        client.push("personal", task.file)
        (expected,) = client.classify("personal", text)["results"]
    spans = {(entity["label"], entity["start"], entity["end"]) for entity in expected["entities"]}
    assert spans, "a test of nothing"
    printed = told("presidio", "presidio.md", server.url)
    rows = [line.split() for line in printed.splitlines()]
    # Presidio leaves out what another finding of the same type holds; entities of one answer do not overlap.
    assert {(label, int(start), int(end)) for label, start, end, _ in rows} == spans


@pytest.mark.slow
def test_label_studio(tmp_path):
    """An export with an annotation that was cancelled, a row that two labeled alike, and one on which they disagree."""

    def annotation(choice, cancelled=False):
        value = {"value": {"choices": [choice]}, "type": "choices", "from_name": "sentiment", "to_name": "text"}
        return {"result": [value], "was_cancelled": cancelled, "completed_by": 1}

    words = {"good": "great lovely thanks", "bad": "bad broken late"}
    rows = [
        (f"{word} parcel {number}", label) for label in words for word in words[label].split() for number in range(6)
    ]
    tasks = [
        {"id": n, "data": {"text": text}, "annotations": [annotation(label)]} for n, (text, label) in enumerate(rows)
    ]
    tasks[0]["annotations"] = [annotation("good"), annotation("good"), annotation("bad", cancelled=True)]
    tasks[1]["annotations"] = [annotation("good"), annotation("bad")]
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    quickly = f"onebert train --base {tiny_base()} --device cpu --max-steps 2"
    with Server(tmp_path) as server, server.client() as client:
        for block in blocks("docs/recipes/label-studio.md", "bash"):
            run_block("bash", block.code.replace("onebert train", quickly), tmp_path, ONEBERT_URL=server.url)
        assert client.task("opinions")["aliases"] == {"live": 1}
        rows_learned = client.version("opinions", 1)["manifest"]["training"]["data"]["rows"]
    assert sum(rows_learned.values()) == len(tasks) - 1


@pytest.mark.slow
def test_exports_of_label_studio_and_spacy_are_the_same_rows(tmp_path):
    """Their own libraries write the files."""
    text = "ship it to New York, Ana"
    spans = [[11, 19, "city"], [21, 24, "person"]]
    rows = [(text, spans, ["good", "fast"]), ("nothing to see", [], ["good"])]
    python_environment("label").run("label_studio.py", tmp_path, json.dumps(rows))
    python_environment("presidio").run("spacy_training.py", tmp_path, json.dumps(rows))

    def read(name, **options):
        options = DataOptions(**options)
        return load_dataset(options.read(str(tmp_path / name)), options, keep_few=True)

    (tmp_path / "plain.json").write_text(json.dumps([{"text": each, "label": drawn} for each, drawn, _ in rows]))
    plain = read("plain.json")
    assert plain.labels == ("B-city", "B-person", "I-city", "O")
    for name in ("tasks.json", "result.json", "result.csv"):
        assert read(name, label="ner").digest == plain.digest
        tones = read(name, label="tone")
        assert (tones.task_type, tones.labels) == ("multi_label", ("fast", "good"))
        assert tones.splits["train"].gold.tolist() == [[1, 1], [0, 1]]
    for name in ("training.json", "docs.json"):
        assert read(name).digest == plain.digest


def test_every_method_that_is_recommended_is_one():
    table = (ROOT / "docs/guide/tasks.md").read_text().split("## Which method")[1]
    taken = [row.split("|")[2] for row in table.splitlines() if row.startswith("| ")]
    methods = {method for cell in taken for method in re.findall(r"`([\w:=,+]+)`", cell)}
    assert {"head", "bitfit", "layernorm", "full", DEFAULT_METHOD} <= methods
    assert {part.partition(":")[0] for method in methods for part in method.split("+")} <= set(METHODS)
