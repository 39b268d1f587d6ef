"""The columns that a version was trained on: commands without options read them again, and say which a file lacks."""

import json

import pytest

from bases import tiny_base
from ended import recorded, refused, succeeded
from offline import score_here
from onebert_store.errors import InvalidInput
from trainings import THINGS
from written import read_rows

MACHINE = ("--base", tiny_base(), "--device", "cpu")
NAMED = ("--text", "note", "--label", "kind")
WORDS = {"praise": "good", "complaint": "bad"}


def rows_of(count):
    """What is trained on stands under names that no data set uses; the usual names hold something else."""
    labels = [("praise", "complaint")[i % 2] for i in range(count)]
    return [
        {
            "text": f"number {i}",
            "label": "open" if i % 3 else "closed",
            "note": f"the {THINGS[i % 6]} was very {WORDS[label]} and late {i}",
            "kind": label,
        }
        for i, label in enumerate(labels)
    ]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("rows") / "tone.jsonl", rows_of(48))


@pytest.fixture
def tone(onebert, data, tmp_path, monkeypatch):
    """A delta file that was trained on `note` and `kind`, in the folder in which the commands run."""
    monkeypatch.chdir(tmp_path)
    succeeded(onebert("train", "--task", "tone", "--data", data, "--method", "head", *NAMED, *MACHINE))
    return tmp_path / "tone.safetensors"


def test_a_command_reads_what_was_trained_on_unless_an_option_names_another_column(onebert, tone, data):
    """The whole road of test_road.py shows it of `evaluate`, `calibrate` and `train`."""
    run = ("explain", tone, "--data", data, "--json", *MACHINE)
    record, named = (recorded(onebert(*run, *options))[0] for options in ((), NAMED))
    for fact in ("rows", "loss", "removed"):
        assert record[fact] == named[fact]
    assert "closed" in refused(onebert(*run, "--label", "label"))


def test_a_file_is_scored_by_the_texts_that_were_trained_on(tone, data, tmp_path):
    for out, options in (("here.jsonl", {}), ("named.jsonl", {"text": "note"}), ("other.jsonl", {"text": "text"})):
        score_here(tmp_path / out, tone, data, keep=["*"], all_scores=True, **options)
    here, named, other = (read_rows(tmp_path / f"{name}.jsonl") for name in ("here", "named", "other"))
    assert here == named != other
    assert [row["tone_label"] for row in here] == [row["kind"] for row in here]


def test_tasks_that_read_different_columns_are_not_scored_together(onebert, tone, data, tmp_path):
    trained = ("train", "--task", "state", "--data", data, "--method", "head", "--label", "kind", *MACHINE)
    succeeded(onebert(*trained))  # on the column `text`, found by its name
    tasks = [tone, tmp_path / "state.safetensors"]
    with pytest.raises(InvalidInput, match="trained on different columns, note and text: name one by --text"):
        score_here(tmp_path / "out.jsonl", tasks, data)
    score_here(tmp_path / "out.jsonl", tasks, data, text="note")
    assert len(read_rows(tmp_path / "out.jsonl")) == 48


@pytest.mark.parametrize("command", ["evaluate", "calibrate", "explain", "train"])
def test_one_line_names_the_column_that_a_file_lacks_and_its_option(onebert, tone, tmp_path, command):
    given = ("train", "--like", tone) if command == "train" else (command, tone)
    for lacking, option in (("note", "--text"), ("kind", "--label")):
        renamed = {"note": "body", "kind": "queue"}
        names = {"note": "note", "kind": "kind", lacking: renamed[lacking]}
        rows = [{names["note"]: row["note"], names["kind"]: row["kind"]} for row in rows_of(20)]
        other = write(tmp_path / "other.jsonl", rows)
        error = refused(onebert(*given, "--data", other, *MACHINE))
        assert f"other.jsonl: no column {lacking} for {option} (the columns are " in error
        named = onebert(*given, "--data", other, option, renamed[lacking], "--json", *MACHINE)
        assert named[0] == 0, named[2]
