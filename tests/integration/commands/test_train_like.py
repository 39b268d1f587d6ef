"""`onebert train --like`: a training repeated by the manifest of its version, of a file or of a real server."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

import onebert
from bases import tiny_base
from ended import recorded, refused, succeeded
from onebert_server.client import Client
from onebert_store.file.format import load
from servers import Server, Task, wait_until
from trainings import CHANGED, READING, write_tone

PAGE = (Path(__file__).parents[3] / "docs/guide/feedback.md").read_text(encoding="utf-8")
BASE = str(tiny_base("bert"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("like"), base=BASE, samples_key=Fernet.generate_key().decode()) as running:
        yield running


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_tone(tmp_path_factory.mktemp("tone"))


@pytest.fixture
def train(onebert, tmp_path):
    """Runs `onebert train` and returns the file's path, the record and what it said."""

    def run(name, *options, data, base=("--base", BASE)):
        out = tmp_path / f"{name}.safetensors"
        record, error = recorded(
            onebert("train", *options, "--data", data, *base, "--device", "cpu", "--out", out, "--json")
        )
        return out, record, error

    return run


# What single texts of a CSV can have.
OF_OTHERS = ("text_pair", "encoding", "sheet", "label_separator", "more", "new_label_rows")
READ = replace(READING, **dict.fromkeys(OF_OTHERS))


@pytest.fixture
def first(tmp_path):
    """Trains in Python, where every setting is an argument, and returns the file and the record."""

    def run(data, **options):
        trained = onebert.train(
            str(data), task="tone", base=BASE, device="cpu", out=tmp_path / "first.safetensors", **options
        )
        return trained.file, trained.record

    return run


def test_a_training_with_every_option_changed_is_repeated_to_the_byte(first, train, data, tmp_path):
    named = tmp_path / "tone.csv"
    rows = (data / "train.csv").read_text().replace("text,label", "words,kind")
    named.write_text(rows + ",complaint\nno label,\n")
    file, record = first(named, **asdict(CHANGED), **asdict(READ), dtype="bfloat16")
    again, repeated, error = train("again", "--like", file, data=named)
    assert again.read_bytes() == file.read_bytes()
    assert repeated["settings"] == record["settings"]
    assert "are not those of" not in error


def test_a_version_whose_exact_head_was_kept_is_repeated_by_the_method_that_was_asked_for(first, train, data, tmp_path):
    """It has more rows than a head alone holds out of: the digest is of the data before that."""
    many = tmp_path / "many.csv"
    rows = (data / "train.csv").read_text().splitlines()
    many.write_text("\n".join([rows[0], *(f"{row.replace(',', f' {i},')}" for i in range(8) for row in rows[1:])]))
    # A rate that forgets what the exact head knows.
    file, record = first(many, method="bitfit", max_steps=10, learning_rate=1e-30, head_learning_rate=1000.0)
    again, repeated, error = train("again", "--like", file, data=many)
    manifest = load(file).manifest.training
    assert (record["contest"]["kept"], record["method"], manifest["card"]["train"]["method"]) == (
        "alone",
        "head",
        "bitfit",
    )
    assert again.read_bytes() == file.read_bytes()
    assert repeated["rows"] == record["rows"]
    assert "are not those of" not in error


def test_options_beside_like_replace_its_settings_and_other_data_are_noted(train, data, tmp_path):
    first, _, _ = train("first", "--task", "tone", "--method", "bitfit", "--max-steps", "4", "--seed", "3", data=data)
    again, record, error = train("again", "--like", first, "--task", "mood", "--seed", "5", data=write_more(tmp_path))
    before, after = (load(file).manifest.training["card"]["train"] for file in (first, again))
    assert after == before | {"seed": 5}
    assert record["task"] == "mood"
    assert "note: the data are not those of first.safetensors\n" in error
    # Without its rows the label is gone, which nobody should have to find out by the answers.
    _, _, error = train("narrow", "--like", again, data=data)
    assert "note: again.safetensors also has 'delivery', which no row has now\n" in error


def write_more(folder):
    data = write_tone(folder / "more")
    with (data / "train.csv").open("a") as rows:
        rows.write("the order was very bad 99,delivery\n")
    return data


def test_the_encoding_of_other_rows_is_found_anew(train, tmp_path):
    rows = [(f"письмо {i} {('отлично', 'плохо')[i % 2]}", ("praise", "complaint")[i % 2]) for i in range(40)]
    table = "text,label\n" + "".join(f"{text},{label}\n" for text, label in rows)
    old, new = tmp_path / "old.csv", tmp_path / "new.csv"
    old.write_bytes(table.encode("cp1251"))
    new.write_bytes(table.encode())
    first, _, _ = train("first", "--task", "tone", "--method", "head", "--encoding", "cp1251", data=old)
    again, _, error = train("again", "--like", first, data=new)
    assert "are not those of" not in error, "both files have the same rows"
    assert {name: value.tobytes() for name, value in load(again).tensors.items()} == {
        name: value.tobytes() for name, value in load(first).tensors.items()
    }


def test_the_next_version_learns_from_feedback_and_shadows_the_live_one(
    onebert, train, server, data, tmp_path, monkeypatch
):
    monkeypatch.setenv("ONEBERT_URL", server.url)
    monkeypatch.chdir(tmp_path)
    first, record, _ = train(
        "tone", "--task", "tone", "--method", "bitfit", "--max-steps", "8", "--learning-rate", "0.004", data=data
    )
    succeeded(onebert("push", first))
    error = refused(onebert("train", "--like", "tone", "--data", data, "--feedback"))
    assert error == "error: tone has no feedback whose text is kept\n"
    with Client(server.url) as client:
        client.set_samples("tone", 1.0)
        client.classify("tone", ["the zebra was very good", "the screen was very bad and late 5"])
        wait_until(lambda: client.samples("tone").kept >= 2)
        client.feedback([{"task": "tone", "text": "the zebra was very good", "label": "complaint"}])
        wait_until(lambda: len(client.feedback_rows("tone")) == 1)
    # The page's commands, with the base of the tests.
    section = PAGE.partition("## Train again")[2]
    for line in re.findall(r"^onebert (.*)$", section, re.MULTILINE):
        words = [data if word == "demo/onebert_demo/data/review-tone" else word for word in line.split()]
        succeeded(onebert(*words, *(("--base", BASE, "--device", "cpu") if words[0] == "train" else ())))
    with Client(server.url) as client:
        manifest = client.version("tone", 2).manifest
        assert client.alias("tone", "live").target.shadow[0].version == 2
    training = manifest["training"]
    assert training["data"]["more"]["rows"] == 1
    assert training["data"]["rows"]["train"] == record["rows"]["train"] + 1
    assert training["card"] == load(first).manifest.training["card"]
    assert training["data"]["digest"] == record["data"]["digest"]
    # A version that learned from feedback is repeated without it, and says so.
    _, _, error = train("plain", "--like", "tone@2", data=data)
    assert "note: tone@2 also learned 1 added rows" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "give --task, or --like"),
        (("--task", "tone", "--feedback"), "--feedback is the server's"),
        (("--like", "tone.safetensors", "--feedback"), "--feedback is the server's"),
        (("--like", "tone", "--feedback", "--more", "rows.csv"), "give --feedback or --more"),
    ],
)
def test_options_that_do_not_combine_are_wrong_usage(onebert, data, options, message):
    status, printed, error = onebert("train", *options, "--data", data)
    assert (status, printed) == (2, "")
    assert message in " ".join(error.replace("│", " ").split())


def test_what_cannot_be_repeated_is_refused_in_one_line(onebert, train, server, data, tmp_path):
    imported = tmp_path / "imported.safetensors"
    imported.write_bytes(Task().file)
    first, _, _ = train("first", "--task", "tone", "--method", "bitfit", "--max-steps", "1", data=data)
    like = ("train", "--data", data, "--device", "cpu", "--url", server.url)
    assert "imported.safetensors records no settings to repeat" in refused(onebert(*like, "--like", imported))
    assert "there is no task nothing" in refused(onebert(*like, "--like", "nothing"))
    assert "nowhere.safetensors" in refused(onebert(*like, "--like", tmp_path / "nowhere.safetensors"))
    head = ("--like", first, "--method", "head", "--base", BASE)
    assert "leave out --max-steps" in refused(onebert(*like, *head, "--max-steps", "2"))
