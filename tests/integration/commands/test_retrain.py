"""`onebert retrain` of a real server: the next version by the live one's manifest, with the feedback that came back."""

import json
import re
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from bases import tiny_base
from onebert_server.cli.retrain import settings_of
from onebert_server.client import Client
from onebert_training.fit.settings import Schedule, Settings
from servers import Server, run_onebert, wait_until
from trainings import write_tone

PAGE = (Path(__file__).parents[3] / "docs/guide/review.md").read_text(encoding="utf-8")
BASE = str(tiny_base("bert"))
HOW = ("--method", "bitfit", "--max-steps", "8", "--lr", "0.004", "--seed", "3", "--start", "fresh")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("retrain"), base=BASE, samples_key=Fernet.generate_key().decode()) as running:
        yield running


@pytest.fixture
def data(tmp_path):
    return write_tone(tmp_path / "tonedata")


@pytest.fixture
def pushed(server, data, tmp_path):
    """A trained version of the task `tone`, whose answers are all kept."""
    file = tmp_path / "tone.safetensors"
    done("train", "--task", "tone", "--data", data, "--base", BASE, "--out", file, *HOW)
    done("push", file, url=server.url)
    with Client(server.url) as client:
        client.set_samples("tone", 1.0)
        live = client.task("tone").aliases["live"]
        yield client.version("tone", live).manifest
        client.delete_samples("tone")


def done(*arguments, **where):
    made = run_onebert(*map(str, arguments), **where)
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_the_next_version_learns_from_feedback_and_shadows_the_live_one(server, data, pushed, tmp_path):
    with Client(server.url) as client:
        client.classify("tone", ["the zebra was very good", "the screen was very bad and late 5"])
        wait_until(lambda: client.samples("tone").kept >= 2)
        client.feedback([{"task": "tone", "text": "the zebra was very good", "label": "complaint"}])
        wait_until(lambda: len(client.feedback_rows("tone")) == 1)
    out = tmp_path / "next.safetensors"
    [words] = (line.split() for line in re.findall(r"^onebert (retrain .*)$", PAGE, re.MULTILINE))
    found = json.loads(
        done(
            *(data if word == "data/tone" else word for word in words),
            *("--out", out, "--json"),
            *("--", "--base", BASE, "--max-steps", "8"),
            url=server.url,
        )
    )
    assert found["training"]["data"]["more"]["rows"] == 1
    assert found["training"]["rows"]["train"] == pushed["training"]["data"]["rows"]["train"] + 1
    with Client(server.url) as client:
        manifest = client.version("tone", found["version"]).manifest
        # Everything that was asked for is asked for again; validation, and the digest of the data, stay.
        for field in ("method", "pooling", "max_length", "labels", "task_type", "base"):
            assert manifest[field] == pushed[field], field
        for field in ("seed", "learning_rate", "head_learning_rate", "batch_size"):
            assert manifest["training"][field] == pushed["training"][field], field
        assert manifest["training"]["data"]["digest"] == pushed["training"]["data"]["digest"]
        assert [one.version for one in client.alias("tone", "live").target.shadow] == [found["version"]]


def test_other_data_are_refused_and_nothing_is_pushed(server, data, pushed, tmp_path):
    with (data / "train.csv").open("a") as rows:
        rows.write("the order was very bad 99,complaint\n")
    with Client(server.url) as client:
        before = len(client.task("tone").versions)
        made = run_onebert(
            *("retrain", "tone", "--data", str(data), "--out", str(tmp_path / "next.safetensors")),
            *("--", "--base", BASE, "--max-steps", "8"),
            url=server.url,
        )
        assert made.returncode == 1
        assert "are not the data of tone@" in made.stderr.splitlines()[-1]
        assert len(client.task("tone").versions) == before


@pytest.mark.parametrize("rows", [12, 32, 48, 60, 200, 1000])
@pytest.mark.parametrize("warm", [True, False])
def test_a_number_of_epochs_is_asked_for_again_if_it_is_not_the_default(rows, warm):
    def asked(settings):
        schedule = Schedule.of(settings, rows, validates=False, warm=warm)
        steps = {"steps": schedule.steps, "epochs": float(schedule.epochs), "contrastive": warm}
        said = {"training": {**steps, "start": "head" if warm else "fresh"}, "base": {"name": BASE}}
        others = {"task_type": "single_label", "pooling": "mean", "max_length": 128, "method": "bitfit"}
        options = settings_of({**said, **others})
        return dict(zip(options[::2], options[1::2], strict=True)).get("--epochs")

    usual = Schedule.of(Settings(), rows, validates=False, warm=warm).epochs
    assert asked(Settings()) is None
    assert asked(Settings(epochs=usual + 1)) == str(usual + 1)
