"""Real-world data, as `check`, `train` and `evaluate` read it: nothing is misread without a word."""

import json
import sys
from types import ModuleType

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.tables.tables import read_source
from onebert_training.data.dataset import load_dataset, load_split
from onebert_training.data.options import DataOptions, ReadOptions
from onebert_training.tasks.reading import reading_notes

ROWS = [(f"text number {i}", "spam" if i % 4 == 0 else "ham") for i in range(40)]


def lines(rows, separator=",", header=("text", "label")):
    return "".join(separator.join(map(str, row)) + "\n" for row in (header, *rows))


def load(path, *columns, **asked):
    return load_dataset(str(path), DataOptions(*columns, **asked))


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["klingon", "zlib"])
def test_an_encoding_that_there_is_not_is_one_line(tmp_path, encoding):
    path = write(tmp_path / "a.csv", lines(ROWS))
    with pytest.raises(InvalidSettings, match=f"there is no encoding '{encoding}'"):
        load(path, encoding=encoding)


def test_names_of_columns_may_differ_in_case_and_spaces(tmp_path):
    path = write(tmp_path / "a.csv", lines(ROWS, header=(" Customer Message ", "KIND ")))
    assert load(path, "customer message", label="kind").labels == ("ham", "spam")
    jsonl = "".join(json.dumps({" Text": text, "Label ": label}) + "\n" for text, label in ROWS)
    assert load(write(tmp_path / "b.jsonl", jsonl)).labels == ("ham", "spam")


def test_a_missing_header_is_suspected(tmp_path):
    path = write(tmp_path / "a.csv", lines(ROWS, header=("text number 41", "spam")))
    with pytest.raises(InvalidData, match="is the first line not a header"):
        load(path)


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
    rows = [{"text": f"text {i}", "label": labels[i % 5]} for i in range(50)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InvalidData, match=r"a\.jsonl lines 2, "):
        load(tmp_path / "a.jsonl", task_type=task_type)
    data = load(tmp_path / "a.jsonl", task_type=task_type, drop_unlabeled=True)
    assert "20 of 50 train rows have no label and are skipped" in data.notes
    reading = ReadOptions(drop_unlabeled=True)
    assert len(load_split(str(tmp_path / "a.jsonl"), reading, task_type, data.labels).split) == 30


def test_gaps_of_a_parquet_column_of_numbers_have_no_label(tmp_path):
    columns = {"text": [f"t{i}" for i in range(40)], "label": [None if i == 7 else float(i % 2) for i in range(40)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InvalidData, match=r"a\.parquet row 8: there is no label"):
        load(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet", drop_unlabeled=True).labels == ("0", "1")


def test_a_label_that_reads_as_if_there_were_none_is_noted(tmp_path):
    data = load(write(tmp_path / "a.csv", lines([(f"t{i}", ("yes", "none", "NaN")[i % 3]) for i in range(40)])))
    assert data.labels == ("NaN", "none", "yes")
    assert "the label 'NaN' looks like a missing label; only empty cells count as missing" in data.notes


@pytest.mark.parametrize(
    ("splits", "note"),
    [
        ({"train": [*ROWS, *ROWS[:4]]}, "4 training rows repeat another row"),
        (
            {"train": [*ROWS, ROWS[1], ("text number 1", "spam")]},
            "1 training text has different labels, for example train.csv lines 3, 42 and 43",
        ),
        (
            {"train": ROWS, "test": [*ROWS[:3], ("new", "ham")]},
            "3 of 4 test rows have a text that is in the training split, too",
        ),
        (
            {"train": [*ROWS, ("t", "lonely")], "validation": [("v", "ham")]},
            "1 label has one training row only: 'lonely'",
        ),
    ],
)
def test_rows_that_repeat_contradict_or_leak_are_noted(tmp_path, splits, note):
    for split, rows in splits.items():
        write(tmp_path / f"{split}.csv", lines(rows))
    assert note in load(tmp_path).notes


def test_a_column_for_each_label(tmp_path):
    rows = [(f"t{i}", i % 2, "true" if i % 3 == 0 else "False", "") for i in range(30)]
    path = write(tmp_path / "train.csv", lines(rows, header=("text", "Toxic", "insult", "threat")))
    asked = "toxic, insult,threat"
    data = load(path, label=asked)
    assert (data.task_type, data.labels) == ("multi_label", ("Toxic", "insult", "threat"))
    gold = dict(zip(data.splits["train"].texts, data.splits["train"].gold.tolist(), strict=True))
    assert all(gold[f"t{i}"] == [i % 2, i % 3 == 0, 0] for i in range(30) if f"t{i}" in gold)
    assert "1 of 3 labels have no training row: 'threat'" in data.notes
    split = load_split(str(path), ReadOptions(label=asked), "multi_label", ("threat", "insult", "Toxic")).split
    assert split.gold[:4].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0], [0, 1, 1]]
    write(path, lines([*rows, ("t", 2, 0, 0)], header=("text", "Toxic", "insult", "threat")))
    with pytest.raises(InvalidData, match=r"train\.csv line 32: the column Toxic of a label holds neither 0 nor 1"):
        load(path, label=asked)
    with pytest.raises(InvalidData, match="no column rude"):
        load(path, label="toxic,rude")


def test_a_column_for_each_label_of_which_one_is_right(tmp_path):
    rows = [(f"t{i}", i % 3 == 0, i % 3 == 1, i % 3 == 2) for i in range(30)]
    path = write(tmp_path / "a.csv", lines(rows, header=("text", "low", "middle", "high")))
    asked = "low,middle,high"
    assert any("--task-type single_label" in note for note in load(path, label=asked).notes)
    data = load(path, label=asked, task_type="single_label")
    assert (data.task_type, data.labels) == ("single_label", ("low", "middle", "high"))
    gold = dict(zip(data.splits["train"].texts, data.splits["train"].gold.tolist(), strict=True))
    assert all(label == int(text[1:]) % 3 for text, label in gold.items())
    split = load_split(str(path), ReadOptions(label=asked), "single_label", ("high", "low", "middle")).split
    assert split.gold[:3].tolist() == [1, 2, 0]
    write(path, lines([*rows, ("t", 1, 1, 0)], header=("text", "low", "middle", "high")))
    with pytest.raises(InvalidData, match=r"a\.csv line 32: a row of a single_label task has several labels"):
        load(path, label=asked, task_type="single_label")
    write(path, lines([*rows, ("t", 0, 0, 0)], header=("text", "low", "middle", "high")))
    with pytest.raises(InvalidData, match=r"a\.csv line 32: there is no label"):
        load(path, label=asked, task_type="single_label")


def test_labels_called_by_numbers_may_have_columns(tmp_path):
    rows = [(f"t{i}", i % 2, 1 - i % 2) for i in range(30)]
    data = load(write(tmp_path / "a.csv", lines(rows, header=("text", "1", "0"))), label="1,0")
    assert data.labels == ("1", "0")
    gold = dict(zip(data.splits["train"].texts, data.splits["train"].gold.tolist(), strict=True))
    assert all(values == [int(text[1:]) % 2, 1 - int(text[1:]) % 2] for text, values in gold.items())


def test_a_field_inside_json_objects(tmp_path):
    rows = [{"payload": {"text": text, "meta": {"kind": label}}} for text, label in ROWS]
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert load(path, "payload.text", label="payload.meta.kind").labels == ("ham", "spam")
    with pytest.raises(InvalidData, match=r"no column payload\.body"):
        load(path, "payload.body", label="payload.meta.kind")


FEATURES = {"text": {"dtype": "string", "_type": "Value"}, "label": {"names": ["ham", "spam"], "_type": "ClassLabel"}}


def arrow_table(rows):
    return pyarrow.table({"text": [text for text, _ in rows], "label": [int(label == "spam") for _, label in rows]})


@pytest.mark.parametrize("digests", [("", "", ""), ("-9b1a5c3e2f", "-a09b74b3ef9c3b56", "-3e4f5a6b7c")])
@pytest.mark.parametrize("inside", ["", "data"])
def test_a_folder_as_the_hub_has_it(tmp_path, inside, digests):
    folder = tmp_path / inside
    folder.mkdir(exist_ok=True)
    metadata = {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    for split, rows in (("train", ROWS), ("test", [("t", "spam")])):
        shards = 2 if split == "train" else 1
        for shard in range(shards):
            table = arrow_table(rows[shard::shards]).replace_schema_metadata(metadata)
            name = f"{split}-{shard:05}-of-{shards:05}{digests[shard]}.parquet"
            pyarrow.parquet.write_table(table, folder / name)
    data = load(tmp_path)
    assert data.labels == ("ham", "spam")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 36, "validation": 4, "test": 1}
    last = folder / f"train-00001-of-00002{digests[1]}.parquet"
    again = folder / "train-00001-of-00002-0123456789.parquet"
    again.write_bytes(last.read_bytes())
    with pytest.raises(InvalidData, match="two files for one part of its train split: train-00001-of-00002"):
        load(tmp_path)
    again.unlink()
    last.unlink()
    with pytest.raises(InvalidData, match="has 1 of the 2 files of its train split"):
        load(tmp_path)


def test_rows_of_several_files_are_named_by_their_own_file(tmp_path):
    parts = [tmp_path / f"train-0000{i}-of-00003.csv" for i in range(3)]
    write(parts[0], lines([*ROWS[:3], ("", "ham"), ROWS[3]]))
    write(parts[1], lines([("t5", "spam"), ROWS[0]], ";"))
    write(parts[2], lines([("", "ham"), (ROWS[1][0], "spam"), *ROWS[4:]]))
    with pytest.raises(InvalidData) as caught:
        load(tmp_path)
    assert caught.value.detail == (
        "train-00000-of-00003.csv line 5, train-00002-of-00003.csv line 2: the text is empty or not a text"
    )
    write(parts[0], lines(ROWS[:4]))
    write(parts[2], lines([(ROWS[1][0], "spam"), *ROWS[4:]]))
    notes = load(tmp_path).notes
    assert "train-00001-of-00003.csv: semicolons are between the columns" in notes
    assert (
        "1 training text has different labels, for example train-00000-of-00003.csv line 3, "
        "train-00002-of-00003.csv line 2" in notes
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("Invalid pattern: '**'\nmore"), "ValueError: Invalid pattern: '\\*\\*'$"),
        (ConnectionError("no route to the Hub"), "ConnectionError: no route to the Hub$"),
        (FileNotFoundError(), "FileNotFoundError$"),
    ],
)
def test_why_the_hub_refuses_is_said(monkeypatch, error, reason):
    hub = ModuleType("datasets")

    def refuse(name, config):
        raise error

    hub.load_dataset = refuse
    monkeypatch.setitem(sys.modules, "datasets", hub)
    with pytest.raises(InvalidData, match=f"the Hub data set a/b cannot be loaded: {reason}"):
        read_source("hf:a/b")


def test_the_split_that_is_read_of_several_on_the_hub_is_noted(monkeypatch):
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["x", "y"]})
    splits = {"train": rows, "train_noisy": rows, "validation_matched": rows, "validation_mismatched": rows}
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: datasets.DatasetDict(splits))
    tables = read_source("hf:a/b").tables
    assert tables["train"].notes == ()
    assert tables["validation"].notes == (
        "a/b has 2 validation splits, of which validation_matched is read: validation_matched, validation_mismatched",
    )


def test_validation_can_be_bounded(tmp_path):
    path = write(tmp_path / "a.csv", lines([(f"t{i}", "ab"[i % 2]) for i in range(400)]))
    data = load(path, validation_rows=10)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 390, "validation": 10}
    (tmp_path / "d").mkdir()
    write(tmp_path / "d" / "train.csv", lines(ROWS))
    write(tmp_path / "d" / "dev.csv", lines([(f"v{i}", "ham") for i in range(30)]))
    data = load(tmp_path / "d", validation_rows=10)
    assert len(data.splits["validation"]) == 10
    assert "10 of 30 validation rows are used" in data.notes


def jsonl(path, cells, key="label"):
    rows = [{"text": f"t{i}"} | ({} if cell is MISSING else {key: cell}) for i, cell in enumerate(cells)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def csv(path, rows, header="text,label"):
    path.write_text(header + "\n" + "".join(f"{row}\n" for row in rows))
    return str(path)


MISSING = object()


@pytest.mark.parametrize("unlabeled", [None, MISSING])
def test_what_has_no_label_is_not_what_has_none_of_the_labels(tmp_path, unlabeled):
    path = jsonl(tmp_path / "a.jsonl", [["late"], [], unlabeled, ["size"]] * 5)
    with pytest.raises(InvalidData, match=r"a\.jsonl lines 3, 7, 11, 15 and 19: there is no label \(--drop-unlabeled"):
        load_dataset(path, keep_few=True)
    data = load_dataset(path, DataOptions(drop_unlabeled=True), keep_few=True)
    assert data.splits["train"].gold.sum(axis=1).tolist() == [1, 0, 1] * 5
    assert "5 of 20 train rows have no label and are skipped" in data.notes


def test_empty_cells_of_a_text_file_are_rows_without_any_label_and_counted(tmp_path):
    path = csv(tmp_path / "a.csv", [f"t{i},{cell}" for i, cell in enumerate(["late|size", "", "late"] * 5)])
    data = load_dataset(path, DataOptions(label_separator="|"), keep_few=True)
    assert data.splits["train"].gold.sum(axis=1).tolist() == [2, 0, 1] * 5
    assert any(note.startswith("5 of 15 training rows have an empty label cell") for note in data.notes)


def test_a_list_of_one_is_the_label_of_a_single_label_task(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [["late"], ["size"]] * 5)
    assert load_dataset(path, DataOptions(task_type="single_label"), keep_few=True).labels == ("late", "size")
    path = jsonl(tmp_path / "b.jsonl", [["late"], ["size", "late"]] * 5)
    with pytest.raises(InvalidData, match="a row of a single_label task has several labels"):
        load_dataset(path, DataOptions(task_type="single_label"), keep_few=True)


def test_tags_and_words_as_python_lists(tmp_path):
    rows = ["\"['Zagreb', 'is']\",\"['B-LOC', 'O']\"", "\"['Ana' 'left']\",\"['B-PER' 'O']\""] * 5
    data = load_dataset(csv(tmp_path / "a.csv", rows, "tokens,ner_tags"), keep_few=True)
    assert (data.task_type, data.labels) == ("token", ("B-LOC", "B-PER", "O"))
    assert set(data.splits["train"].texts) == {"Zagreb is", "Ana left"}


def test_labels_that_look_alike_are_noted(tmp_path):
    cells = ["good", "good\u200b", "caf\u00e9", "cafe\u0301", "Ok", " ok ", "ok", "bad"] * 3
    notes = load_dataset(jsonl(tmp_path / "a.jsonl", cells), keep_few=True).notes
    assert "the labels 'Ok', 'ok' differ in case or spaces alone" in notes
    alike = [note for note in notes if note.endswith("invisible characters or equivalent letters of Unicode alone")]
    assert len(alike) == 2
    assert any("'good', 'good\\u200b'" in note for note in alike)


def test_rows_without_a_text_are_left_out_where_asked(tmp_path):
    rows = [f"t{i},{'ab'[i % 2]}" for i in range(20)]
    path = csv(tmp_path / "a.csv", [*rows, " ,a", "\u200b,b"])
    with pytest.raises(InvalidData, match=r"a\.csv lines 22 and 23: the text is empty or not a text"):
        load_dataset(path)
    data = load_dataset(path, DataOptions(drop_empty=True))
    assert "2 of 22 train rows have no text and are skipped" in data.notes
    assert len(load_split(path, ReadOptions(drop_empty=True), "single_label", ("a", "b")).split) == 20


@pytest.fixture
def notes(base, tmp_path):
    def notes_of(path, max_length=8):
        data = load_dataset(path, keep_few=True)
        aligned = data.task_type == "token"
        tokens = base.tokenizer.encode(data.splits["train"].texts, max_length, align=True) if aligned else ()
        return " ".join(reading_notes(data, base.tokenizer, max_length, tokens))

    return notes_of


def test_texts_that_the_base_cannot_read_are_noted(tmp_path, notes):
    known = csv(tmp_path / "a.csv", [f"a {'b ' * i},{'xy'[i % 2]}" for i in range(10)])
    assert notes(known) == ""
    foreign = csv(tmp_path / "b.csv", [f"请问退款 {'a ' * (i % 3)},{'xy'[i % 2]}" for i in range(10)])
    assert "of the tokens of the training texts are unknown to the base" in notes(foreign)


def test_texts_of_which_hardly_anything_is_read_are_noted(tmp_path, notes):
    path = csv(tmp_path / "a.csv", [f"{'a ' * (200 if label == 'x' else 5)},{label}" for label in "xyxyxyxyxy"])
    assert "a twentieth or less is read of 50% of the training texts" in notes(path)


def test_words_without_a_token_are_counted_by_their_tags(tmp_path, notes):
    tags = ["B-LOC", "I-LOC", "O", "O"]
    rows = [{"tokens": ["\u200b", "a", "ab"[i % 2], "\u200d"], "ner_tags": tags} for i in range(10)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "10 words have no token: their tags are not learned" in notes(str(tmp_path / "a.jsonl"))
    assert "'B-LOC' (10)" in notes(str(tmp_path / "a.jsonl"))
    # Behind the cut words are not read anyway.
    assert "have no token" not in notes(str(tmp_path / "a.jsonl"), 2)
