"""The recipes of docs/recipes, run as they stand against a server, with the other program from PyPI beside them."""

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bases import tiny_base
from environments import RUNNING, foreign_env, python_environment
from onebert_training.methods.methods import METHODS
from servers import Server, Task, run_onebert

RECIPES = Path(__file__).parents[3] / "docs" / "recipes"
TEXTS = ["the soup was late", "great parcel", "please help", "bad screen"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("recipes")) as running:
        yield running


def blocks(name, language):
    """The code of a page, block by block."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (RECIPES / name).read_text(), re.DOTALL | re.MULTILINE)


def told(environment, name, url, *more):
    """What the page's code, and a line behind it, prints in the environment; the last line of it as JSON."""
    code = "\n".join([*blocks(name, "python"), *more]).replace("http://127.0.0.1:8000", url)
    done = subprocess.run(
        [*environment.interpreter, "-c", code],
        env=foreign_env(),
        capture_output=True,
        text=True,
        timeout=RUNNING,
        check=False,
    )
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
def test_langchain(server):
    task = Task(seed=16, labels=["positive", "negative"])
    with server.client() as client:
        client.push("tone", task.file)
    more = f"import json; print(json.dumps(OneBert('tone').batch({TEXTS * 20!r})))"
    printed = told(python_environment("langchain"), "langchain.md", server.url, more).splitlines()
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
    found = {(one["label"], one["start"], one["end"]) for one in expected["entities"]}
    assert found, "a test of nothing"
    printed = told(python_environment("presidio"), "presidio.md", server.url)
    rows = [line.split() for line in printed.splitlines()]
    # Presidio leaves out what another finding of the same type holds; entities of one answer do not overlap.
    assert {(label, int(start), int(end)) for label, start, end, _ in rows} == found


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
    (code,) = blocks("label-studio.md", "python")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "1 rows with more than one opinion\n"
    with (tmp_path / "rows.csv").open(newline="") as file:
        written = list(csv.reader(file))
    assert written == [["text", "label"], *(list(row) for place, row in enumerate(rows) if place != 1)]
    with (tmp_path / "export.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("annotator", "id", "sentiment", "text"), *((1, n, b, a) for n, (a, b) in enumerate(rows))]
        )
    for line in (
        blocks("label-studio.md", "bash")[0].splitlines() + blocks("label-studio.md", "bash")[1].splitlines()[:1]
    ):
        arguments = line.split()[1:]
        for place, argument in enumerate(arguments):
            if argument.endswith((".csv", ".safetensors")):
                arguments[place] = tmp_path / argument
        done = run_onebert(*arguments, "--base", tiny_base(), "--device", "cpu", "--max-steps", "2")
        assert done.returncode == 0, done.stderr


def test_every_method_that_is_recommended_is_one():
    page = (RECIPES / "which-method.md").read_text()
    named = {found.partition(":")[0] for found in re.findall(r"--method ([\w:=,]+)", page)} | {"bitfit", "frozen"}
    assert len(named) == 5
    assert named <= set(METHODS)
