"""Data in every accepted form is read as it is meant; what was guessed, left out or is missing is noted."""

import gzip
import json

import datasets
import numpy as np
import pandas as pd
import pyarrow
import pytest

from labeled_files import ROWS, jsonl, lines, load, parquet, write
from onebert_store.errors import InvalidData
from onebert_store.tables.tables import read_source
from onebert_training.data.dataset import load_dataset, load_split
from onebert_training.data.options import DataOptions, ReadOptions
from onebert_training.data.splitting import hold_out
from onebert_training.tasks.reading import reading_notes

FOLDER = {
    "train.csv.gz": gzip.compress(lines(ROWS).encode()),
    "dev.csv": [(f"dev {text}", label) for text, label in ROWS[:8]],
    "test.csv": [(f"test {text}", label) for text, label in ROWS[8:20]],
}
FIVE = ["1", "2", "3", "4", "5"]
LABELS = {"labels": FIVE}
UNEVEN = [(f"t{i}", "rare" if i < 20 else "common") for i in range(100)]


def numbered(cells):
    return [(f"t{i}", cell) for i, cell in enumerate(cells)]


def gold_by_text(data):
    """The names of the labels of every text that is trained on or validates."""
    splits = [data.splits[name] for name in ("train", "validation") if name in data.splits]
    gold = [(text, row) for split in splits for text, row in zip(split.texts, split.gold.tolist(), strict=True)]
    return {
        text: [data.labels[i] for i, on in enumerate(row) if on] if isinstance(row, list) else data.labels[row]
        for text, row in gold
    }


@pytest.mark.parametrize(
    ("listed", "train", "test", "gold"),
    [
        (FIVE, [1, 5, 3], [1, 2], [0, 4, 2]),  # 5 is no index, so all are names
        (FIVE, [1, 3, 4], [1, 5], [0, 2, 3]),  # the same, said by another split
        (FIVE, [1, 3, 4], [0, 1], [1, 3, 4]),  # 0 is no name, so all are indices
        (["0", "1", "2"], [0, 1, 2], [1], [0, 1, 2]),  # both readings agree
        (["no", "yes"], ["no", "yes", "no"], [0, 1], [0, 1, 0]),  # no cell has two readings
        (FIVE, [1, 5, "[1, 3]"], [], [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, 0, 1, 0, 0]]),
    ],
)
def test_labels_that_are_numbers_are_read_alike_in_every_split(tmp_path, listed, train, test, gold):
    splits = {"train": train, "validation": train[:2], "test": test}
    files = {f"{name}.csv": numbered(cells) for name, cells in splits.items() if cells}
    data = load(tmp_path, files | {"labels.json": {"labels": listed}})
    assert data.labels == tuple(listed)
    assert data.splits["train"].gold.tolist() == gold
    assert data.splits["validation"].gold.tolist() == gold[:2]
    split = load_split(str(tmp_path), ReadOptions(), data.task_type, tuple(listed), "validation").split
    assert split.gold.tolist() == gold[:2]


def test_without_a_validation_split_a_tenth_is_held_out_evenly(tmp_path):
    data = load(tmp_path, {"a.csv": UNEVEN})
    train, validation = data.splits["train"], data.splits["validation"]
    assert sorted(train.texts + validation.texts) == sorted(text for text, _ in UNEVEN)
    assert np.bincount(validation.gold).tolist() == [8, 2]
    assert any("no validation split: 10 of 100" in note for note in data.notes)
    assert load(tmp_path, {"a.csv": UNEVEN}).digest == data.digest
    bounded = load(tmp_path, {"a.csv": [(f"t{i}", "ab"[i % 2]) for i in range(400)]}, validation_rows=10)
    assert [len(split) for split in bounded.splits.values()] == [390, 10]


def test_fewer_training_rows_are_nested_and_even(tmp_path):
    files = {"train.csv": UNEVEN, "dev.csv": [("v", "rare")]}
    ten, twenty = (load(tmp_path, files, train_rows=n).splits["train"] for n in (10, 20))
    assert (len(ten), len(twenty)) == (10, 20)
    assert set(ten.texts) < set(twenty.texts)
    assert np.bincount(ten.gold).tolist() == [8, 2]
    assert len(load(tmp_path, files, train_rows=1000).splits["train"]) == 100


@pytest.mark.parametrize(
    ("header", "options", "text"),
    [
        (("idx", "sentence1", "sentence2", "label"), {}, ("b0", "c0")),
        (("idx", "Premise", "Hypothesis", "Label"), {}, ("b0", "c0")),
        (("label_text", "note", "utterance", "intent"), {}, "c0"),
        (("question", "sentence", "x", "target"), {}, ("a0", "b0")),
        (("body", "title", "x", "kind"), {"text": "body", "text_pair": "title", "label": "kind"}, ("a0", "b0")),
        (("body", "title", "x", "kind"), {"text": "title", "label": "kind"}, "b0"),
        ((" Customer Message ", "n", "m", "KIND "), {"text": "customer message", "label": "kind"}, "a0"),
    ],
)
def test_columns_are_found_by_name_or_given(tmp_path, header, options, text):
    rows = [(f"a{i}", f"b{i}", f"c{i}", "xy"[i % 2]) for i in range(20)]
    for name, content in (("a.csv", lines(rows, header)), ("a.jsonl", jsonl(rows, header))):
        data = load(tmp_path, {name: content}, **options)
        assert text in data.splits["train"].texts + data.splits["validation"].texts
        assert data.labels == ("x", "y")


PYTHON = [("['Ana', 'is']", "['B-LOC', 'O']"), ("['Bo' 'is']", "['B-PER' 'O']")]
TAGGED = {"a.csv": lines(PYTHON * 5, ("tokens", "ner_tags"))}
NESTED = jsonl([{"payload": {"text": text, "meta": {"kind": label}}} for text, label in ROWS])
NUMBERS = parquet([(f"t{i}", None if i == 7 else float(i % 2)) for i in range(40)])


@pytest.mark.parametrize(
    ("files", "options", "task_type", "labels"),
    [
        *(
            ({"a.jsonl": numbered(cells * 5)}, {}, task_type, labels)
            for cells, task_type, labels in (
                (["0.5", "1", "2.25"], "regression", ("score",)),
                (["10", "9", "2"], "single_label", ("2", "9", "10")),
                (["a|b", "a", "b"], "single_label", ("a", "a|b", "b")),
                (['["a"]', "[]", '["b", "c"]'], "multi_label", ("a", "b", "c")),
                ([["a"], [], ["b"]], "multi_label", ("a", "b")),
                ([True, False, True], "single_label", ("False", "True")),
                (["3.10", "3.11", "unreleased"], "single_label", ("3.10", "3.11", "unreleased")),
                (["unreleased", "١", "2"], "single_label", ("2", "unreleased", "١")),
            )
        ),
        ({"a.jsonl": numbered([["late"], ["b"]] * 5)}, {"task_type": "single_label"}, "single_label", ("b", "late")),
        ({"a.jsonl": NESTED}, {"text": "payload.text", "label": "payload.meta.kind"}, "single_label", ("ham", "spam")),
        (TAGGED, {}, "token", ("B-LOC", "B-PER", "O")),
        ({"a.parquet": NUMBERS}, {"drop_unlabeled": True}, "single_label", ("0", "1")),
    ],
)
def test_task_types_and_labels_follow_from_the_cells(tmp_path, files, options, task_type, labels):
    data = load(tmp_path, files, **options)
    assert (data.task_type, data.labels) == (task_type, labels)


def test_of_any_csv_the_rows_are_those_that_pandas_reads(tmp_path):
    cells = ['a "quoted" word', "two\nlines", "a, comma", "naïve €", "1,5", " spaces "]
    for separator, encoding in ((",", "utf-8"), (";", "utf-8-sig"), ("\t", "utf-16")):
        rows = [(f"{cells[i % 6]} {i}", "xy"[i % 2]) for i in range(30)]
        path = write(tmp_path, {"a.csv": lines(rows, separator=separator).encode(encoding)})
        data = load_dataset(path, keep_few=True)
        frame = pd.read_csv(path, sep=separator, encoding=encoding, dtype=str)
        assert gold_by_text(data) == dict(zip(frame["text"], frame["label"], strict=True))


def test_the_digest_sees_every_cell(tmp_path):
    before = load(tmp_path, FOLDER).digest
    assert load(tmp_path, FOLDER | {"test.csv": [*ROWS[8:19], ("changed", "ham")]}).digest != before


def test_load_split_matches_labels_by_name(tmp_path):
    folder = write(tmp_path, FOLDER)
    labeled = load_split(folder, ReadOptions(), "single_label", ("spam", "other", "ham"))
    assert (labeled.name, len(labeled.split)) == ("test", 12)
    assert labeled.split.gold[:5].tolist() == [0, 2, 2, 2, 0]
    assert load_split(folder, ReadOptions(), "single_label", ("spam", "ham"), "validation").name == "validation"
    labeled = load_split(f"{folder}/dev.csv", ReadOptions(), "single_label", ("spam", "ham"))
    assert (labeled.name, len(labeled.split)) == ("all", 8)


@pytest.mark.parametrize(
    ("task_type", "labels"),
    [
        ("single_label", ["a", [], "b", [""], ["a"]]),
        ("single_label", ["['a']", "[]", "['b']", "", "['a']"]),
        ("regression", [1.5, None, 2, "", 3]),
        ("token", [["A", "B"], [], ["B", "A"], [""], ["B", "B"]]),
    ],
)
def test_rows_that_are_refused_for_no_label_are_those_left_out(tmp_path, task_type, labels):
    files = {"a.jsonl": [(f"text {i}", labels[i % 5]) for i in range(50)]}
    with pytest.raises(InvalidData, match=r"a\.jsonl lines 2, "):
        load(tmp_path, files, task_type=task_type)
    data = load(tmp_path, files, task_type=task_type, drop_unlabeled=True)
    assert "20 of 50 train rows have no label and are skipped" in data.notes
    reading = ReadOptions(drop_unlabeled=True)
    assert len(load_split(str(tmp_path / "a.jsonl"), reading, task_type, data.labels).split) == 30


def test_what_has_no_label_is_not_what_has_none_of_the_labels(tmp_path):
    for gap in ({"label": None}, {}):
        rows = [{"text": "a", "label": ["late"]}, {"text": "b", "label": []}, {"text": "c"} | gap] * 5
        with pytest.raises(InvalidData, match=r"lines 3, 6, 9, 12 and 15: there is no label \(--drop-unlabeled"):
            load(tmp_path, {"a.jsonl": rows}, keep_few=True)
        data = load(tmp_path, {"a.jsonl": rows}, keep_few=True, drop_unlabeled=True)
        assert data.splits["train"].gold.sum(axis=1).tolist() == [1, 0] * 5
    cells = [(f"t{i}", cell) for i, cell in enumerate(["late|size", "", "late"] * 5)]
    data = load(tmp_path, {"b.csv": cells}, keep_few=True, label_separator="|")
    assert data.splits["train"].gold.sum(axis=1).tolist() == [2, 0, 1] * 5
    assert any(note.startswith("5 of 15 training rows have an empty label cell") for note in data.notes)


def test_rows_without_a_text_are_left_out_where_asked(tmp_path):
    files = {"a.csv": [*((f"t{i}", "ab"[i % 2]) for i in range(20)), (" ", "a"), ("\u200b", "b")]}
    data = load(tmp_path, files, drop_empty=True)
    assert "2 of 22 train rows have no text and are skipped" in data.notes
    reading = ReadOptions(drop_empty=True)
    assert len(load_split(str(tmp_path / "a.csv"), reading, "single_label", ("a", "b")).split) == 20


LOOKS = "looks like a missing label; only empty cells count as missing"
LIKE = "case, invisible characters or equivalent letters of Unicode alone"
ALIKE = ["good", "good\u200b", "caf\u00e9", "cafe\u0301", "Ok", " ok ", "ok", "bad"] * 3
SHARDS = {
    "train-00000-of-00002.csv": ROWS,
    "train-00001-of-00002.csv": lines([("t", "ham"), (ROWS[1][0], "spam")], separator=";"),
}


DOUBTFUL = {
    "train.csv": [*ROWS, *ROWS[:4], ("text number 1", "spam"), ("t", "lonely")],
    "validation.csv": [("v", "ham")],
    "test.csv": [*ROWS[:3], ("new", "ham")],
}
RARE = {"train.csv": [("t", "rare"), *ROWS], "dev.csv": [("v", "rare")]}
TWO_LABELS = "1 training text has different labels, for example "


@pytest.mark.parametrize(
    ("files", "options", "notes"),
    [
        (
            *(DOUBTFUL, {}),
            [
                "4 training rows repeat another row",
                f"{TWO_LABELS}train.csv lines 3, 43 and 46",
                "3 of 4 test rows have a text that is in the training split, too",
                "1 label has one training row only: 'lonely'",
            ],
        ),
        (
            *(SHARDS, {}),
            [
                "train-00001-of-00002.csv: semicolons are between the columns",
                f"{TWO_LABELS}train-00000-of-00002.csv line 3, train-00001-of-00002.csv line 3",
            ],
        ),
        (
            *({"a.jsonl": numbered(ALIKE)}, {}),
            [
                "the labels 'Ok', 'ok' differ in case or spaces alone",
                f"the labels 'good', 'good\\u200b' differ in {LIKE}",
            ],
        ),
        (FOLDER | {"test.csv": [("t", -1)] * 3}, {}, ["the test split has no labels and is skipped"]),
        ({"a.csv": [(f"t{i}", ("yes", "none", "NaN")[i % 3]) for i in range(40)]}, {}, [f"the label 'NaN' {LOOKS}"]),
        ({"train.csv": ROWS, "dev.csv": ROWS[:30]}, {"validation_rows": 10}, ["10 of 30 validation rows are used"]),
        (RARE, {"train_rows": 5}, ["1 of 3 labels have no training row: 'rare'"]),
        ({"a.csv": ROWS}, {"train_rows": 500}, ["only 40 training rows exist, not 500"]),
    ],
)
def test_what_is_doubtful_is_noted(tmp_path, files, options, notes):
    data = load(tmp_path, files, **options)
    assert [note for note in notes if note not in data.notes] == []
    assert ("test" in data.splits) == ("test.csv" in files and "skipped" not in notes[0])


def test_a_guessed_task_type_is_noted(tmp_path):
    rows = {"a.csv": lines([(f"a text of {i} words", i % 5) for i in range(40)], ("text", "score"))}
    assert "taken as 5 classes; --task-type regression" in " ".join(load(tmp_path, rows).notes)
    assert not any("taken as" in note for note in load(tmp_path, rows, task_type="single_label").notes)


def test_a_column_for_each_label(tmp_path):
    header, asked = ("text", "Toxic", "insult", "1"), "toxic, insult,1"
    rows = [(f"t{i}", i % 2, "true" if i % 3 == 0 else "False", "") for i in range(30)]
    data = load(tmp_path, {"a.csv": lines(rows, header)}, label=asked)
    assert (data.task_type, data.labels) == ("multi_label", ("Toxic", "insult", "1"))
    expected = {f"t{i}": ["Toxic"] * (i % 2) + ["insult"] * (i % 3 == 0) for i in range(30)}
    assert gold_by_text(data) == expected
    assert "1 of 3 labels have no training row: '1'" in data.notes
    reading = ReadOptions(label=asked)
    split = load_split(str(tmp_path / "a.csv"), reading, "multi_label", ("1", "insult", "Toxic")).split
    assert split.gold[:4].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 1, 1]]


def test_a_column_for_each_label_of_which_one_is_right(tmp_path):
    asked, names = "low,middle,high", ("low", "middle", "high")
    rows = [(f"t{i}", i % 3 == 0, i % 3 == 1, i % 3 == 2) for i in range(30)]
    files = {"a.csv": lines(rows, ("text", *names))}
    assert any("--task-type single_label" in note for note in load(tmp_path, files, label=asked).notes)
    data = load(tmp_path, files, label=asked, task_type="single_label")
    assert (data.task_type, data.labels) == ("single_label", names)
    assert gold_by_text(data) == {f"t{i}": names[i % 3] for i in range(30)}
    reading = ReadOptions(label=asked)
    split = load_split(str(tmp_path / "a.csv"), reading, "single_label", ("high", "low", "middle")).split
    assert split.gold[:3].tolist() == [1, 2, 0]


FEATURES = {"text": {"dtype": "string", "_type": "Value"}, "label": {"names": ["ham", "spam"], "_type": "ClassLabel"}}


@pytest.mark.parametrize("inside", ["", "data/"])
def test_a_folder_as_the_hub_has_it(tmp_path, inside):
    def arrow(rows):
        table = pyarrow.table({"text": [text for text, _ in rows], "label": [int(name == "spam") for _, name in rows]})
        out = pyarrow.BufferOutputStream()
        metadata = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
        pyarrow.parquet.write_table(table.replace_schema_metadata(metadata), out)
        return out.getvalue().to_pybytes()

    shards = {f"{inside}train-0000{i}-of-00002{'-9b1a5c3e2f' * i}.parquet": arrow(ROWS[i::2]) for i in (0, 1)}
    data = load(tmp_path, shards | {f"{inside}test-00000-of-00001.parquet": arrow([("t", "spam")])})
    assert data.labels == ("ham", "spam")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 36, "validation": 4, "test": 1}
    _, last = shards
    again = tmp_path / inside / "train-00001-of-00002-0123456789.parquet"
    again.write_bytes(shards[last])
    with pytest.raises(InvalidData, match="two files for one part of its train split: train-00001-of-00002"):
        load_dataset(str(tmp_path))
    again.unlink()
    (tmp_path / last).unlink()
    with pytest.raises(InvalidData, match="has 1 of the 2 files of its train split"):
        load_dataset(str(tmp_path))


def test_the_split_that_is_read_of_several_on_the_hub_is_noted(monkeypatch):
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["x", "y"]})
    splits = {"train": rows, "train_noisy": rows, "validation_matched": rows, "validation_mismatched": rows}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: datasets.DatasetDict(splits))
    tables = read_source("hf:a/b").tables
    assert tables["train"].notes == ()
    assert tables["validation"].notes == (
        "a/b has 2 validation splits, of which validation_matched is read: validation_matched, validation_mismatched",
    )


def test_a_share_of_the_training_rows_validates_and_the_validation_split_tests(tmp_path):
    data = load(tmp_path, FOLDER, validation_share=0.2)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 32, "validation": 8, "test": 8}
    assert data.splits["test"].texts == tuple(f"dev {text}" for text, _ in ROWS[:8])
    assert sorted(data.splits["train"].texts + data.splits["validation"].texts) == sorted(text for text, _ in ROWS)
    assert np.bincount(data.splits["validation"].gold).tolist() == [6, 2]
    assert data.notes == (
        "the validation split of the data is the test split",
        "by the requested share: 8 of 40 training rows are held out for it",
    )
    (tmp_path / "dev.csv").unlink()
    tested = load_dataset(str(tmp_path), DataOptions(validation_share=0.2))
    assert {name: len(split) for name, split in tested.splits.items()} == {"train": 32, "validation": 8, "test": 12}


def test_equal_texts_are_held_out_together(tmp_path):
    rows = [(f"text {i % 12}", "spam" if i % 4 == 0 else "ham") for i in range(60)]
    whole = load(tmp_path, {"a.csv": rows}, keep_few=True).splits["train"]
    for seed in range(10):  # every text is there five times
        train, validation = hold_out(whole, "single_label", 0.2, None, seed)
        assert not set(train.texts) & set(validation.texts)
        assert (len(train), len(validation)) == (50, 10)


UNKNOWN = [(f"请问退款 {'a ' * (i % 3)}", "xy"[i % 2]) for i in range(10)]
LONG = [("a " * (200 if label == "x" else 5), label) for label in "xyxyxyxyxy"]
UNSEEN = [(["\u200b", "a", "ab"[i % 2], "\u200d"], ["B-LOC", "I-LOC", "O", "O"]) for i in range(10)]


@pytest.mark.parametrize(
    ("content", "max_length", "note"),
    [
        (jsonl([(f"a {'b ' * i}", "xy"[i % 2]) for i in range(10)]), 8, ""),
        (jsonl(UNKNOWN), 8, "of the tokens of the training texts are unknown to the base"),
        (jsonl(LONG), 8, "a twentieth or less is read of 50% of the training texts"),
        (jsonl(UNSEEN, ("tokens", "ner_tags")), 8, "10 words have no token: their tags are not learned"),
        # Behind the cut words are not read anyway.
        (jsonl(UNSEEN, ("tokens", "ner_tags")), 2, ""),
    ],
)
def test_what_a_base_cannot_read_is_noted(tmp_path, base, content, max_length, note):
    data = load(tmp_path, {"a.jsonl": content}, keep_few=True)
    per_token = data.task_type == "token"
    tokens = base.tokenizer.encode(data.splits["train"].texts, max_length, align=True) if per_token else ()
    notes = " ".join(reading_notes(data, base.tokenizer, max_length, tokens))
    assert note in notes if note else "no token" not in notes and "unknown" not in notes
