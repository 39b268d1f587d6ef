"""`onebert gate` and `onebert promote` of a real server, with the file of docs/guide/release.md."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from onebert_server.client import Client
from onebert_store.errors import GateFailed
from servers import Task, run_onebert

PAGE = (Path(__file__).parents[3] / "docs/guide/release.md").read_text(encoding="utf-8").partition("\n## Gates\n")[2]
LABELS = ["complaint", "question", "praise"]
WORDS = "late broken lovely bad good great parcel invoice screen refund help password".split()
TEXTS = [f"{word} {other}" for word in WORDS[:6] for other in WORDS[6:]]


def answer(task, text):
    return LABELS[np.argmax(task.logits(text))]


class Case:
    """A task of three versions: the second answers as the first, the third otherwise; and the files of its gate."""

    def __init__(self, server, folder, name):
        self.name, self.url, self.folder = name, server.url, folder
        self.tasks = [Task(seed=16, labels=LABELS), Task(seed=16, labels=LABELS), Task(seed=21, labels=LABELS)]
        self.tasks[1].tensors["head.bias"] = self.tasks[1].tensors["head.bias"] + np.float32(1e-5)
        with server.client() as client:
            for task in self.tasks:
                client.push(name, task.file)
        rules = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)[1]
        [must] = re.findall(r'^text = "(.*)"$', rules, re.MULTILINE)
        rules = rules.replace("tasks.tone", f"tasks.{name}").replace("demo/onebert_demo/data/review-tone", "data")
        self.gate, self.data = folder / "tasks.toml", folder / "data"
        self.gate.write_text(rules.replace('label = "negative"', f'label = "{answer(self.tasks[0], must)}"'))
        self.data.mkdir()
        rows = [f"{text},{answer(self.tasks[0], text)},{'de' if at % 2 else 'fr'}" for at, text in enumerate(TEXTS)]
        (self.data / "test.csv").write_text("\n".join(["text,label,country", *rows, ""]))

    def run(self, *arguments):
        return run_onebert(*arguments, url=self.url)

    def done(self, *arguments):
        made = self.run(*arguments)
        assert made.returncode == 0, made.stderr
        return made.stdout

    def refused(self, *arguments):
        made = self.run(*arguments)
        assert made.returncode == 1
        assert "Traceback" not in made.stderr
        return made

    @property
    def live(self):
        with Client(self.url) as client:
            return client.task(self.name).aliases["live"]


@pytest.fixture
def case(server, tmp_path, request):
    return Case(server, tmp_path, re.sub("[^a-z]", "-", request.node.name)[:60])


def flips(case):
    return sum(answer(case.tasks[0], text) != answer(case.tasks[2], text) for text in TEXTS)


def test_the_example_of_the_page_keeps_rows_and_decides_on_the_server(case):
    case.done("apply", "-f", case.gate)
    assert "pinned to 36 rows" in case.done("gate", case.name)
    assert "slices of country: worst_drop" in case.done("gate", case.name)
    case.done("promote", case.name, 2)
    made = case.refused("promote", case.name, 3)
    assert f"{case.name}@3 does not pass its gate: min.macro_f1 is" in made.stderr
    assert f"max.flips is {flips(case) / 36:.4g}, bound 0.1" in made.stderr
    assert "failed" in made.stdout
    report = json.loads(case.refused("promote", case.name, 3, "--json").stdout)
    assert report["numbers"]["flips"] == flips(case)
    assert case.live == 2
    # Any other client is refused alike, and a move by hand too.
    with Client(case.url) as client, pytest.raises(GateFailed) as refused:
        client.move_alias(case.name, "live", 3, 2)
    assert refused.value.report == report
    assert "does not pass" in case.refused("rollout", case.name, "--split", "2=50,3=50").stderr
    case.done("promote", case.name, 3, "--force", "--message", "labels of May were wrong")
    assert "labels of May were wrong" in case.done("status", case.name)
    with Client(case.url) as client:
        assert client.audit(task=case.name)[-1].reason == "labels of May were wrong"
    # Back again without a gate.
    case.done("promote", case.name, "--rollback")
    assert case.live == 2
    case.gate.write_text(f"[tasks.{case.name}]\ngate = false\n")
    case.done("apply", "-f", case.gate)
    assert "has no gate" in case.refused("gate", case.name).stderr
    case.done("promote", case.name, 3)


def test_wrong_entities_are_shown_as_spans(server, tmp_path):
    for seed in (4, 5):
        task = Task("bitfit", "none", ["O", "B-THING", "I-THING"], seed=seed, task_type="token")
        with server.client() as client:
            client.push("things", task.file)
    row = {"text": "late parcel", "entities": [{"start": 5, "end": 11, "label": "THING"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    file = tmp_path / "tasks.toml"
    file.write_text('[tasks.things.gate]\ndata = "rows.jsonl"\nmin = { entity_f1 = 1.0 }\n')
    made = run_onebert("apply", "-f", file, url=server.url)
    assert made.returncode == 0, made.stderr
    made = run_onebert("promote", "things", "2", url=server.url)
    assert "Traceback" not in made.stderr
    assert re.search("row 1 +THING 5–11 +none", made.stdout)
    made = run_onebert("diff", "things@1", "things@2", "--data", tmp_path / "rows.jsonl", url=server.url)
    assert "of 1 rows are answered differently" in made.stdout
    assert "right by" not in made.stdout  # no label of whole texts has a count
