"""The whole road of a correction: train, calibrate, push, gate, feedback, train again, gate, promote, roll back.

Other tests are of one station each; here tasks of every kind pass all of them, with few rows, which folds measure, and
with enough to hold some out.
"""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.fernet import Fernet

from bases import tiny_base
from ended import recorded, refused, succeeded
from onebert_server.client import Client
from onebert_store.comparison import answer_from
from onebert_store.file.card import card_of
from onebert_store.file.format import load
from servers import Server
from trainings import THINGS

BASE = str(tiny_base())
MACHINE = ("--base", BASE, "--device", "cpu")
SWAPPED = {"spam": "ham", "ham": "spam", "same": "other", "other": "same"}
CORRECTED, FREE, NEW, LINKED = 40, 10, 16, 20  # rows of feedback
HELD_OUT = 60  # of 600 rows
UNCALIBRATED = "error: only single_label and multi_label tasks with probabilities can be calibrated\n"


def number(i):
    """Another one for each row, in no order."""
    return i * 7919 % 100_000


def mail(i):
    label, word = (("spam", "bad"), ("ham", "good"))[i % 2]
    return {"text": f"the {THINGS[i % 6]} was very {word if i % 7 else 'late'} {number(i)}", "label": label}


def labels(i):
    row, late = mail(i), i % 3 == 0
    return {"text": row["text"] + " please" * late, "label": [row["label"], *["late"] * late]}


def pair(i):
    """Two rows have one premise."""
    premise = f"the {THINGS[i // 2 % 6]} was very good {number(i // 2)}"
    return {
        "text": premise,
        "text_pair": f"it was {('good', 'bad')[i % 2]} {number(i)}",
        "label": ("same", "other")[i % 2],
    }


def tagged(i):
    thing, rest = f"{THINGS[i % 6]} {('stamps', 'box', 'code')[i % 3]}", ("was", "was very", "was very late")[i % 3]
    return {"text": f"my {thing} {rest} {number(i)}", "label": [[3, 3 + len(thing), "THING"]]}


def wrong(row):
    label = row["label"]
    names = [SWAPPED.get(name, name) for name in label if isinstance(name, str)]
    return row | {"label": SWAPPED[label] if isinstance(label, str) else names}


class Kind(NamedTuple):
    """A kind of task: its rows and columns, the field of feedback, a new label, targets of `calibrate`, the metric."""

    row: Callable[[int], dict[str, Any]]
    read: dict[str, str]
    field: str
    new: Any  # a name in brackets, which a table might take for a list
    targets: tuple[str, ...]
    metric: str
    added: tuple[str, ...] = ("(lost)",)  # labels of the next version

    def write(self, name, rows):
        """A file with the columns of the kind."""
        path, between = Path(f"{name}.jsonl").absolute(), self.read.get("label_separator")
        rows = [row | {"label": between.join(row["label"])} if between else row for row in rows]
        renamed = [{self.read.get(column, column): cell for column, cell in row.items()} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in renamed))
        return path

    def feedback(self, row):
        right = row["label"]
        if self.field == "spans":
            right = [dict(zip(("start", "end", "label"), span, strict=True)) for span in right]
        return {name: row[name] for name in ("text", "text_pair") if name in row} | {self.field: right}


KINDS = {
    "mail": Kind(
        *(mail, {"text": "Message", "label": "Queue"}, "label", "(lost)"), ("precision=0.6", "coverage=0.9"), "accuracy"
    ),
    "labels": Kind(labels, {"label_separator": "|"}, "labels", ["(lost)"], ("fpr=0.05",), "micro_f1"),
    "pairs": Kind(
        *(pair, {"text": "Premise", "text_pair": "Claim", "label": "Is"}, "label", "(lost)"),
        ("coverage=0.9",),
        "accuracy",
    ),
    "tokens": Kind(
        *(tagged, {"text": "Body", "label": "Marks"}, "spans", [[14, 21, "WHO"]], (), "entity_f1"), ("B-WHO", "I-WHO")
    ),
}


class Road:
    """One task on its way, by the command line; feedback by the client, since it comes from programs.

    The first rows of the data have wrong labels, which feedback corrects.
    """

    def __init__(self, onebert, client, name, rows):
        self.onebert, self.client, self.name, self.kind = onebert, client, f"{name}-{rows}", KINDS[name]
        self.rows = [self.kind.row(i) for i in range(rows)]
        self.others = [self.kind.row(i) | {"shop": "ab"[i // 3 % 2]} for i in range(10_000, 10_200)]
        self.data = self.kind.write("data", [*map(wrong, self.rows[:CORRECTED]), *self.rows[CORRECTED:]])
        self.kind.write("others", self.others)
        columns = [word for name, value in self.kind.read.items() for word in (f"--{name.replace('_', '-')}", value)]
        method = ("--method", "head") if rows == 200 else ("--method", "bitfit", "--max-steps", "8")
        self.options = ("--task", self.name, *columns, *method)

    def run(self, *arguments):
        return succeeded(self.onebert(*arguments))[0]

    def train(self, *arguments):
        record, error = recorded(self.onebert("train", "--data", self.data, *arguments, *MACHINE, "--json"))
        return record, load(Path(record["out"])).manifest, error

    def calibrate(self, file):
        """A task without such decisions says so, and nothing before that."""
        targets = [word for target in self.kind.targets for word in ("--target", target)]
        targets += ["--positive", "spam"] if "precision=0.6" in self.kind.targets else []
        done = self.onebert("calibrate", file, "--data", "others.jsonl", *targets, "--out", file, *MACHINE)
        assert succeeded(done) if targets else refused(done) == UNCALIBRATED

    def status(self, advised):
        """The status; `advised` is what it says to do next."""
        status = self.client.status(self.name)
        shown = self.run("status", self.name)
        assert status.next == advised
        assert [line[6:] for line in shown.splitlines() if line.startswith("next: ")] == [advised] * bool(advised)
        return status

    def new_row(self, i):
        claim = {"text_pair": f"it was good {i}"} if "text_pair" in self.rows[0] else {}
        return {"text": f"where is your courier {i}", **claim, "label": self.kind.new}

    def give_feedback(self):
        """Corrections, also of rows that are held out; further rows, some of a new label, or linked with the data."""
        rows = self.rows[:CORRECTED] + [self.kind.row(i) for i in range(20_000, 20_000 + FREE)]
        rows += map(self.new_row, range(NEW))
        if "text_pair" in self.rows[0]:
            rows += [self.rows[2 * i] | {"text_pair": f"it was late {i}", "label": "other"} for i in range(LINKED)]
        self.client.set_samples(self.name, 1.0)
        for at in range(0, len(rows), 64):
            self.client.feedback([{"task": self.name, **self.kind.feedback(row)} for row in rows[at : at + 64]])
        return len(rows)

    def apply_gate(self, must=()):
        metric = "entity_f1" if self.kind.field == "spans" else "accuracy"
        gate = f'data = "others.jsonl"\nmin.{metric} = 0.1\nmax.flips = 0.9\n'
        gate += 'slices = { columns = ["shop"], worst_drop = 0.1 }\n'
        for row in must:
            cells = "".join(f"{name} = {json.dumps(cell)}\n" for name, cell in row.items())
            gate += f"[[tasks.{self.name}.gate.must]]\n{cells}"
        Path("tasks.toml").write_text(f"[tasks.{self.name}.gate]\n{gate}")
        self.run("apply", "-f", "tasks.toml")
        assert f"pinned to {len(self.others)} rows" in self.run("gate", self.name)

    def check_gate(self, report, file):
        """The gate, `evaluate`, and counting by hand agree; an abstention is not right."""
        assert (report["numbers"]["rows"], report["numbers"]["trained_on"]) == (len(self.others), 0)
        evaluated, _ = recorded(self.onebert("evaluate", file, "--data", "others.jsonl", "--json", *MACHINE))
        [(metric, score)] = report["numbers"]["scores"].items()
        assert evaluated["metrics"][metric] == pytest.approx(score)
        if metric == "accuracy":
            inputs = [(row["text"], row["text_pair"]) if "text_pair" in row else row["text"] for row in self.others]
            results = self.client.classify(f"{self.name}@{report['candidate']['version']}", inputs)
            answers = [result.labels if self.kind.field == "labels" else result.label for result in results]
            right = sum(
                not result.abstained and answer_from(answer) == answer_from(row["label"])
                for row, result, answer in zip(self.others, results, answers, strict=True)
            )
            assert score == pytest.approx(right / len(self.others))

    def check_decision(self, manifest):
        """The parts that the targets ask for, and no others."""
        kinds = {target.partition("=")[0] for target in self.kind.targets}
        decision = manifest.decision.model_dump(exclude_none=True) if manifest.decision else {}
        thresholds = ["spam"] if "precision" in kinds else manifest.labels if "fpr" in kinds else []
        assert {*decision.get("thresholds", ())} == {*thresholds}
        assert ("abstain" in decision) == ("coverage" in kinds)
        assert card_of(manifest).decide.targets == [*self.kind.targets]
        return decision or None


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("road"), base=BASE, samples_key=Fernet.generate_key().decode()) as running:
        yield running


@pytest.fixture
def road(onebert, server, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONEBERT_URL", server.url)
    with Client(server.url) as client:
        yield Road(onebert, client, *request.param)


TASKS = {f"{name}-{rows}": (name, rows) for name in KINDS for rows in (200, 600)}


@pytest.mark.parametrize("road", TASKS.values(), ids=TASKS, indirect=True)
def test_a_correction_goes_the_whole_road(road):
    kind, task, rows = road.kind, road.name, len(road.rows)
    few = rows == 200

    first, before, _ = road.train(*road.options)
    assert first["rows"] == ({"train": rows} if few else {"train": rows - HELD_OUT, "validation": HELD_OUT})
    assert (first["folds"], first["metric"]) == (5 * few, kind.metric)
    assert card_of(before).read.model_dump(exclude_defaults=True) == kind.read
    road.calibrate(first["out"])
    before = load(Path(first["out"])).manifest
    decision = road.check_decision(before)
    assert "next: " not in road.run("push", first["out"])
    assert road.status(None).decision == decision
    road.apply_gate()
    given = road.give_feedback()
    status = road.status(None)
    assert (status.feedback, [*status.new_labels.values()]) == (given, [NEW])

    # The same rows are measured, some by corrected labels; added rows are trained on, unless one of them is linked.
    second, after, error = road.train("--like", task, "--feedback")
    more = second["data"]["more"]
    assert (given - more["rows"] > 0) == ("text_pair" in road.rows[0] and not few)
    assert second["rows"] == first["rows"] | {"train": first["rows"]["train"] + more["rows"] - CORRECTED}
    assert more["relabeled"] == CORRECTED if few else 0 < more["relabeled"] < CORRECTED
    assert (second["folds"], second["metric"]) == (first["folds"], first["metric"])
    assert second["data"]["digest"] == first["data"]["digest"]
    right = second["validation"].get("accuracy", 0) * (rows if few else HELD_OUT)
    assert right == pytest.approx(round(right), abs=1e-6)
    assert after.labels == [*before.labels, *kind.added]
    assert (card_of(after).read, card_of(after).train) == (card_of(before).read, card_of(before).train)

    # Folds leave no rows to meet targets on: the version is not moved before the note's command has met them.
    out, version = second["out"], 2
    lacks = [*kind.targets] if few else []
    assert sorted(card_of(after).decide.lacks) == sorted(lacks)
    if lacks:
        road.run("push", out)
        for moved in (("promote", task, 2), ("rollout", task, "--split", "1=90,2=10")):
            assert f"{task}@2 does not keep {', '.join(sorted(lacks))}" in refused(road.onebert(*moved))
        assert road.client.status(task).lacks == {"2": sorted(lacks)}
        why = f"version 2 does not keep {lacks[0]}: no rows were held out"
        for shown in (("status", task), ("promote", task, 2, "--force", "--message", "urgent")):
            assert why in " ".join(road.run(*shown).split())
        road.run("promote", task, 1)
        [command] = [line.partition("; onebert ")[2] for line in error.splitlines() if "note: not kept of " in line]
        road.run(*shlex.split(command.replace("ROWS", "others.jsonl")), "--out", out, *MACHINE)
        after, version = load(Path(out)).manifest, 3
    new_decision = road.check_decision(after)

    shadow = f"onebert rollout {task} --shadow {version}"
    assert f"live is 1\nnext: {shadow}\n" in road.run("push", out, "--task", task)
    road.status(shadow)
    road.run(*shlex.split(shadow)[1:])
    road.status(None)
    road.apply_gate(() if kind.field == "spans" else [road.new_row(3)])
    [report] = json.loads(road.run("promote", task, version, "--json"))["gate"]
    road.check_gate(report, out)
    status = road.status(None)
    assert (status.live.words, status.live.previous, status.feedback) == (str(version), 1, 0)
    assert status.decision == new_decision
    # A score that a decision on other rows has outdated is gone; every other one is that of the training.
    assert (status.score and status.score.value) == (None if lacks else second["validation"][kind.metric])

    assert "rolled back to 1" in road.run("promote", task, "--rollback")
    status = road.status(None)
    assert status.decision == decision
    assert [move.what for move in status.moves][:2] == ["rolled back to 1", f"1 → {version}, shadow {version} ended"]
