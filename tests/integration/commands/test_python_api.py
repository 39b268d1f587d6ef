"""`import onebert`: training from what is in memory, answers without a server, and the code of docs/guide/python.md."""

import inspect
import re
import subprocess
import sys
from dataclasses import asdict
from typing import get_args, get_type_hints

import datasets
import numpy as np
import pandas
import polars
import pyarrow
import pytest
from typing_extensions import Unpack

import onebert
from bases import tiny_base
from onebert.tables import source_of
from onebert_server import client
from onebert_server.contract.moves import words
from onebert_store import errors
from onebert_store.errors import InvalidData, InvalidInput, InvalidSettings
from onebert_store.file.format import load
from onebert_training.data.dataset import load_dataset
from onebert_training.earlier import GROUPS
from pages import ROOT, blocks
from servers import Server, Task, assert_answers, clean_env

TEXTS = ["my order is late", "the parcel was broken", "what a good day", "no way"] * 10
LABELS = ["bad", "bad", "good", "bad"] * 10
PAIR = ("first", "second")


def train(data, out, **options):
    return onebert.train(data, task="mood", out=out, base=str(tiny_base()), **{"max_steps": 2, **options})


FORMS = {
    "columns": {"text": TEXTS, "label": LABELS},
    "rows": [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)],
    "pairs": list(zip(TEXTS, LABELS, strict=True)),
    "bytes": [(text.encode(), label.encode()) for text, label in zip(TEXTS, LABELS, strict=True)],
    "arrow": pyarrow.table({"text": TEXTS, "label": LABELS}),
    "pandas": pandas.DataFrame({"text": TEXTS, "label": LABELS}),
    "categories": pandas.DataFrame({"text": TEXTS, "label": pandas.Categorical(LABELS)}),
    "polars": polars.DataFrame({"text": TEXTS, "label": LABELS}),
    "data set": datasets.Dataset.from_dict({"text": TEXTS, "label": LABELS}),
    "data set of bytes": datasets.Dataset.from_dict({"text": [text.encode() for text in TEXTS], "label": LABELS}),
    "named labels": datasets.Dataset.from_dict(
        {"text": TEXTS, "label": [int(label == "good") for label in LABELS]},
        features=datasets.Features(
            {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
        ),
    ),
}


def test_every_form_of_a_table_is_the_same_data(tmp_path):
    """Equal data, equal bytes; and those of the file that the command writes for it."""
    digests = {form: load_dataset(source_of(data)).digest for form, data in FORMS.items()}
    assert len(set(digests.values())) == 1, digests
    files = {load(train(FORMS[form], tmp_path / form).file).digest for form in ("columns", "polars")}
    assert len(files) == 1


def test_lists_of_labels_are_lists_from_every_library(tmp_path):
    lists = [["late"], [], ["late", "broken"], ["broken"]] * 10
    pandas.DataFrame({"text": TEXTS, "label": lists}).to_parquet(tmp_path / "a.parquet")
    forms = {
        "columns": {"text": TEXTS, "label": lists},
        "pandas": pandas.DataFrame({"text": TEXTS, "label": lists}),
        "pandas, of arrays": pandas.read_parquet(tmp_path / "a.parquet"),
        "polars": polars.DataFrame({"text": TEXTS, "label": lists}),
        "arrow": pyarrow.table({"text": TEXTS, "label": lists}),
        "data set": datasets.Dataset.from_dict({"text": TEXTS, "label": lists}),
        "file": tmp_path / "a.parquet",
    }
    digests = {form: load_dataset(source_of(data)).digest for form, data in forms.items()}
    assert len(set(digests.values())) == 1, digests
    assert load_dataset(source_of(forms["polars"])).labels == ("broken", "late")


def test_missing_cells_of_a_frame_are_missing(tmp_path):
    frame = pandas.DataFrame({"text": TEXTS, "label": [*LABELS[:-1], float("nan")]})
    with pytest.raises(InvalidData, match="no label"):
        train(frame, tmp_path / "a")
    train(frame, tmp_path / "a", drop_unlabeled=True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (7, "data is a path"),
        ("nowhere.csv", "there is no data"),
        ([], "data is a path"),
        ({}, "no rows"),
        ({"text": [], "label": []}, "no rows"),
        ({"text": TEXTS, "label": LABELS[:-1]}, "different numbers of rows"),
        ({"text": "abc", "label": LABELS}, "a column is a list"),
        (pandas.DataFrame([["a", "b"], ["c", "d"]], columns=["text", "text"]), "two columns have one name"),
        ([("a", "b"), ("a",)], "data is a path"),
        ({"text": TEXTS, "wrong": LABELS}, "no label column"),
        ({"train": [("a", "b")] * 9, "valid": [("a", "b")]}, "valid: no such split"),
    ],
)
def test_data_that_is_none_is_refused(tmp_path, data, message):
    with pytest.raises(InvalidData, match=message):
        train(data, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "^epochs: must be at least 1$"),
        ({"epochs": "3"}, "^epochs: must be a whole number$"),
        ({"learning_rate": float("nan")}, "^learning_rate: "),
        ({"pooling": "max"}, "^pooling: "),
        ({"device": "tpu"}, "^device is cpu"),
        ({"dtype": "fp16"}, "^dtype is float32 or bfloat16"),
    ],
)
def test_options_have_the_rules_of_the_command(tmp_path, options, message):
    with pytest.raises(InvalidSettings, match=message):
        train(FORMS["columns"], tmp_path / "a", **options)


def test_type_checkers_know_the_options_of_the_command():
    """With their types: mypy and pyright refuse a misspelled one, and a text for a number."""
    options = {name: hint for group in GROUPS for name, hint in get_type_hints(group).items()}
    assert get_type_hints(onebert.TrainOptions) == options
    assert get_type_hints(onebert.train, include_extras=True)["options"] == Unpack[onebert.TrainOptions]
    # The page has the same names: options of the command with dashes, and keys.
    page = (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")
    names = {name.replace("-", "_") for name in re.findall(r"^\| `(?:--)?([a-z_-]+)`", page, re.MULTILINE)}
    assert options.keys() <= names


TASKS = {
    "single_label": ({"labels": ["good", "bad", "ugly"]}, ["my order is late", PAIR]),
    "multi_label": ({"task_type": "multi_label"}, ["my order is late", PAIR]),
    "regression": ({"task_type": "regression", "labels": ["score"]}, ["my order is late"]),
    "token": ({"task_type": "token", "pooling": "none", "labels": ["O", "B-x", "I-x"]}, ["my order is late"]),
    "span": (
        {"task_type": "span", "pooling": "none", "labels": ["start", "end"]},
        [("what is late", "my order is late")],
    ),
}


def test_answers_are_those_of_a_server(server, tmp_path):
    with onebert.Client(server.url) as client:
        for seed, (name, (manifest, inputs)) in enumerate(TASKS.items()):
            file = tmp_path / name
            file.write_bytes(Task(seed=seed, **manifest).file)
            client.push(name.replace("_", "-"), file)
            here = onebert.load(file, base=str(tiny_base()))
            for top_k in (None, 1):
                for ours, theirs in zip(
                    here.classify(inputs, top_k), client.classify(name.replace("_", "-"), inputs, top_k), strict=True
                ):
                    assert_close(onebert.as_dict(ours), onebert.as_dict(theirs))
            assert (here.task_type, here.digest) == (name, theirs.digest)


def test_an_explanation_is_that_of_a_server(server, tmp_path):
    file = tmp_path / "a"
    file.write_bytes(Task(seed=1).file)
    here = onebert.load(file, base=str(tiny_base()))
    with onebert.Client(server.url) as client:
        client.push("tone", file)
        for text in ("my order is late , please help", ("where is it", "my order is late")):
            theirs = onebert.as_dict(client.classify("tone", text, explain=True))["explanation"]
            assert_close(asdict(here.explain(text)), theirs)
            gradient = here.explain(text, "gradient_times_input")
            places = [(word.field, word.start, word.end) for word in gradient.words]
            assert places == [(word["field"], word["start"], word["end"]) for word in theirs["words"]]
    with pytest.raises(InvalidInput, match="occlusion or gradient_times_input"):
        here.explain("late", "guessing")


def assert_close(ours, theirs):
    """Equal but for the last digits of numbers; what only a server says is left out."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys() - {"task", "version", "digest"}
        for name, value in ours.items():
            assert_close(value, theirs[name])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for first, other in zip(ours, theirs, strict=True):
            assert_close(first, other)
    else:
        assert ours == (pytest.approx(theirs, abs=1e-4) if isinstance(ours, float) else theirs)


def test_a_classifier_shares_its_base(tmp_path):
    (tmp_path / "a").write_bytes(Task(seed=1).file)
    task = Task(seed=2)
    (tmp_path / "b").write_bytes(task.file)
    first = onebert.load(tmp_path / "a", base=str(tiny_base()))
    second = onebert.load(tmp_path / "b", base=first.base)
    assert second.base is first.base
    assert_answers(onebert.as_dict(second.classify("my order is late")), task.scores("my order is late"))
    assert second.classify([]) == []


@pytest.mark.parametrize(
    ("kind", "inputs", "message"),
    [
        *(
            ("single_label", ["fine", wrong], "input 1")
            for wrong in ("", " ", "\u200b", (), ("a",), ("a", " "), ("a", "b", "c"), "\ud800")
        ),
        *(("span", wrong, "input 0") for wrong in ((), ("q",), "q")),
    ],
)
def test_what_is_no_input_is_refused(tmp_path, kind, inputs, message):
    (tmp_path / "a").write_bytes(Task(seed=1, **TASKS[kind][0]).file)
    with pytest.raises(InvalidInput, match=message):
        onebert.load(tmp_path / "a", base=str(tiny_base())).classify(inputs)


def test_a_classifier_measures_and_shows_what_it_is(tmp_path, capfd):
    data = {"text": TEXTS, "label": LABELS}
    trained = train(data, tmp_path / "mood.safetensors", validation_share=0.3, progress=True)
    assert "step" in capfd.readouterr().err
    assert "record" not in repr(trained)
    mood = onebert.load(trained.file, base=str(tiny_base()))
    assert re.fullmatch(
        r"Classifier\('mood', single_label, labels: bad, good, \w+ [01]\.\d{4} \(validation\)\)", repr(mood)
    )
    measured = mood.evaluate(pandas.DataFrame({"Text": TEXTS, "label": LABELS}), text="Text")
    right = [answer.label == label for answer, label in zip(mood.classify(TEXTS), LABELS, strict=True)]
    assert (measured["rows"], measured["metrics"]["accuracy"]) == (len(TEXTS), pytest.approx(np.mean(right)))
    for kind in (onebert.Client, onebert.AsyncClient):
        assert repr(kind("http://host:8000/below/")) == f"{kind.__name__}('http://host:8000/below')"


def test_every_public_name_is_there_and_no_other():
    assert {name for name in dir(onebert) if not hasattr(onebert, name)} == set()
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert kinds.isdisjoint(dir(onebert))
    assert kinds <= set(dir(onebert.errors))
    assert {"Mapping", "Any", "import_module"}.isdisjoint(dir(onebert))
    with pytest.raises(AttributeError, match="no attribute 'tain'"):
        onebert.tain  # noqa: B018


@pytest.mark.slow
def test_the_code_of_the_page_runs(tmp_path):
    """Every block in order, in one program, against a server of the default base."""
    told = blocks("docs/guide/python.md", "python")
    assert len(told) >= 5
    with Server(tmp_path, base="", front_ends=0) as server:
        code = "\n".join(block.code for block in told).replace("http://127.0.0.1:8000", server.url)
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=clean_env(), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "good" in done.stdout
    # The first training is one to learn from: better than guessing, without a warning.
    scores, warnings, *others, last = done.stdout.splitlines()
    assert float(re.search(r"'accuracy': ([0-9.]+)", scores)[1]) > 0.6
    assert (warnings, last) == ("()", "bad")
    assert "{'live': 1}" in others
    trail = [line.split(maxsplit=3)[3] for line in others if re.match(r"\d{4}-", line)]
    first, second = words(None, None, 1, 2), words(None, None, 2, 1, back=True)
    assert [what for what in trail if what in {first, second}] == [first, second]


@pytest.mark.parametrize("kind", [onebert.Client, onebert.AsyncClient])
def test_what_a_method_of_a_client_takes_is_exported(kind):
    def names(hint):
        parts = [part for kind in get_args(hint) for part in (kind if isinstance(kind, list) else [kind])]
        return {ours[hint]} if hint in ours else set().union(*map(names, parts))

    ours = {var: name for name, var in vars(client).items() if not name.startswith("_") and isinstance(var, type)}
    methods = [method for name, method in inspect.getmembers(kind, callable) if not name.startswith("_")]
    taken = set()
    for method in [*methods, kind.__init__]:
        hints = {name: hint for name, hint in get_type_hints(method).items() if name != "return"}
        taken |= set().union(*map(names, hints.values()))
    assert {"KeyQuotas", "TargetFacts"} <= taken <= set(dir(onebert))


def test_the_table_of_the_clients_methods_is_whole():
    page = (ROOT / "docs/guide/python.md").read_text(encoding="utf-8").partition("## Clients")[2]
    methods = {name: method for name, method in inspect.getmembers(onebert.Client, callable) if name[0] != "_"}
    assert methods.keys() - set(re.findall(r"`(\w+)`", page)) == set()
    # The page leaves their arguments to `help`.
    assert [name for name, method in methods.items() if not inspect.getdoc(method)] == []
