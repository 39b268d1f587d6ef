"""Real-world data: spreadsheets of other countries, gaps, two spellings of a label, folders of the Hub."""

import json
import sys
from types import ModuleType

import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.tables.table import Table
from onebert_store.tables.tables import Source, read_source
from onebert_training.data.dataset import load_dataset, load_split
from onebert_training.data.options import DataOptions, ReadOptions

ROWS = [(f"text number {i}", "spam" if i % 4 == 0 else "ham") for i in range(40)]


def lines(rows, separator=",", header=("text", "label")):
    return "".join(separator.join(map(str, row)) + "\n" for row in (header, *rows))


def load(path, *columns, **asked):
    return load_dataset(str(path), DataOptions(*columns, **asked))


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


@given(
    labels=st.lists(
        st.sampled_from(["0.5", "3.10", "nan", "inf", "1e3", "2", "unreleased", "", "x", "-7", "١"]), min_size=2
    ),
    seed=st.randoms(),
)
def test_the_order_of_rows_never_changes_what_a_task_is(labels, seed):
    """A file may begin with a fraction, a gap or a word."""

    def outcome(cells):
        table = Table({"text": [f"t{i}" for i in range(len(cells))], "label": cells})
        try:
            data = load_dataset(Source("x", {"train": table, "validation": table}), DataOptions(drop_unlabeled=True))
        except InvalidData as error:
            return error.detail.split(":")[-1]
        return data.task_type, data.labels

    shuffled = list(labels)
    seed.shuffle(shuffled)
    assert outcome(labels) == outcome(shuffled)


def test_releases_are_names_although_the_first_is_a_fraction(tmp_path):
    rows = [(f"t{i}", label) for i, label in enumerate(["3.10", "3.11", "unreleased"] * 5)]
    assert load(write(tmp_path / "a.csv", lines(rows))).labels == ("3.10", "3.11", "unreleased")


@pytest.mark.parametrize("first", ["", "sep=;\n", "\ufeff", "\ufeffsep=;\n"], ids=ascii)
@pytest.mark.parametrize("quote", ["", '"'])
def test_a_spreadsheet_that_separates_by_semicolons(tmp_path, first, quote):
    inside = "; " if quote else ""
    rows = [(f"{quote}one, two{inside} {i}{quote}", label) for i, (_, label) in enumerate(ROWS)]
    data = load(write(tmp_path / "a.csv", first + lines(rows, ";")))
    assert data.labels == ("ham", "spam")
    assert all(text.startswith("one, two") for text in data.splits["train"].texts)


@pytest.mark.parametrize(
    ("name", "separator"),
    [("a.tsv", "\t"), ("a.tsv", ","), ("a.csv", "\t"), ("a.tsv.csv", ","), ("my.tsv-export.csv", ",")],
)
def test_the_separator_is_that_of_the_header(tmp_path, name, separator):
    """A name may hold .tsv and end otherwise."""
    assert load(write(tmp_path / name, lines(ROWS, separator))).labels == ("ham", "spam")


def test_a_name_that_holds_tsv_and_ends_in_csv_is_csv(tmp_path):
    rows = [(f"one\ttwo {i}", label) for i, (_, label) in enumerate(ROWS)]
    data = load(write(tmp_path / "scores.tsv.csv", lines(rows)))
    assert data.splits["train"].texts[0].startswith("one\ttwo")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-32"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_byte_order_mark_says_the_encoding(tmp_path, name, encoding):
    rows = [(f"größe {i}", label) for i, (_, label) in enumerate(ROWS)]
    text = lines(rows) if name == "a.csv" else "".join(json.dumps({"text": t, "label": one}) + "\n" for t, one in rows)
    data = load(write(tmp_path / name, text, encoding))
    assert any(one.startswith("größe") for one in data.splits["train"].texts)


def test_another_encoding_is_found_and_said_or_asked_for_with_the_line(tmp_path):
    rows = [*ROWS, ("größe", "ham")]
    path = write(tmp_path / "a.csv", lines(rows), "cp1252")
    data = load(path)
    assert "größe" in data.splits["train"].texts + data.splits["validation"].texts
    assert any(note.startswith("a.csv is not UTF-8 and is read as cp1252") for note in data.notes)
    path = write(tmp_path / "a.csv", lines([*ROWS, ("привет, мир".replace(",", ""), "ham")]), "cp1251")
    with pytest.raises(InvalidData, match=r"a\.csv line 42 is not readable as UTF-8; say what it is with --encoding"):
        load(path)
    data = load(path, encoding="cp1251")
    assert "привет мир" in data.splits["train"].texts + data.splits["validation"].texts
    with pytest.raises(InvalidSettings, match="there is no encoding 'klingon'"):
        load(path, encoding="klingon")
    with pytest.raises(InvalidSettings, match="there is no encoding 'zlib'"):
        load(path, encoding="zlib")


def test_an_open_quote_is_named_by_its_line(tmp_path):
    path = write(tmp_path / "a.csv", lines(ROWS[:3]) + '"open,ham\n' + lines(ROWS[3:], header=("x", "ham")))
    with pytest.raises(InvalidData, match=r"a\.csv line 5 is not CSV: a quote is left open"):
        load(path)


def test_names_of_columns_may_differ_in_case_and_spaces(tmp_path):
    path = write(tmp_path / "a.csv", lines(ROWS, header=(" Customer Message ", "KIND ")))
    assert load(path, "customer message", label="kind").labels == ("ham", "spam")
    jsonl = "".join(json.dumps({" Text": text, "Label ": label}) + "\n" for text, label in ROWS)
    assert load(write(tmp_path / "b.jsonl", jsonl)).labels == ("ham", "spam")


def test_a_missing_header_is_suspected(tmp_path):
    path = write(tmp_path / "a.csv", lines(ROWS, header=("text number 41", "spam")))
    with pytest.raises(InvalidData, match="is the first line not a header"):
        load(path)


def test_rows_without_a_label_are_all_named_or_left_out(tmp_path):
    rows = [(text, "" if i % 10 == 3 else label) for i, (text, label) in enumerate(ROWS)]
    path = write(tmp_path / "a.csv", lines(rows))
    with pytest.raises(InvalidData, match=r"a\.csv lines 5, 15, 25 and 35: there is no label \(--drop-unlabeled"):
        load(path)
    data = load(path, drop_unlabeled=True)
    assert sum(map(len, data.splits.values())) == 36
    assert "4 of 40 train rows have no label and are left out" in data.notes
    split = load_split(str(path), ReadOptions(drop_unlabeled=True), "single_label", data.labels).split
    assert len(split) == 36


def test_gaps_of_a_parquet_column_of_numbers_have_no_label(tmp_path):
    columns = {"text": [f"t{i}" for i in range(40)], "label": [None if i == 7 else float(i % 2) for i in range(40)]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InvalidData, match=r"a\.parquet row 8: there is no label"):
        load(tmp_path / "a.parquet")
    assert load(tmp_path / "a.parquet", drop_unlabeled=True).labels == ("0", "1")


def test_different_faults_are_said_together(tmp_path):
    rows = [*ROWS, ("", "ham"), ("t", ""), (" ", "spam")]
    with pytest.raises(InvalidData) as caught:
        load(write(tmp_path / "a.csv", lines(rows)))
    assert "a.csv lines 42 and 44: the text is empty" in caught.value.detail
    assert "a.csv line 43: there is no label" in caught.value.detail


def test_many_bad_rows_are_counted(tmp_path):
    with pytest.raises(InvalidData, match=r"lines 42, 43, 44, 45, 46, 47, 48, 49, 50, 51 and 20 more: there is no"):
        load(write(tmp_path / "a.csv", lines([*ROWS, *[("t", "")] * 30])))


def test_two_spellings_of_a_label_are_noted(tmp_path):
    rows = [(f"t{i}", ("Off", "off", " off ", "on")[i % 4]) for i in range(40)]
    data = load(write(tmp_path / "a.csv", lines(rows)))
    assert data.labels == ("Off", "off", "on")
    assert "the labels 'Off', 'off' differ in case or spaces alone" in data.notes


def test_a_label_that_reads_as_if_there_were_none_is_noted(tmp_path):
    data = load(write(tmp_path / "a.csv", lines([(f"t{i}", ("yes", "none", "NaN")[i % 3]) for i in range(40)])))
    assert data.labels == ("NaN", "none", "yes")
    assert "the label 'NaN' reads as if there were none; only empty cells are taken for that" in data.notes


def test_repeated_and_contradicting_rows_are_noted(tmp_path):
    rows = [*ROWS, *ROWS[:4], ("text number 1", "spam")]
    notes = load(write(tmp_path / "a.csv", lines(rows))).notes
    assert "4 training rows repeat another row" in notes
    once = load(write(tmp_path / "b.csv", lines([*ROWS, ROWS[0]]))).notes
    assert "1 training row repeats another row" in once
    assert "1 training text has different labels, for example a.csv lines 3, 43 and 46" in notes


def test_texts_of_another_split_that_training_has_are_noted(tmp_path):
    write(tmp_path / "train.csv", lines(ROWS))
    write(tmp_path / "test.csv", lines([*ROWS[:3], ("new", "ham")]))
    assert "3 of 4 test rows have a text that is in the training split, too" in load(tmp_path).notes


def test_clean_data_has_no_such_notes(tmp_path):
    notes = " ".join(load(write(tmp_path / "a.csv", lines(ROWS))).notes)
    assert not any(word in notes for word in ("repeat", "different", "differ in case", "one training row"))


def test_a_label_with_one_training_row_is_named(tmp_path):
    write(tmp_path / "train.csv", lines([*ROWS, ("t", "lonely")]))
    write(tmp_path / "validation.csv", lines([("v", "ham")]))
    assert "1 label has one training row only: 'lonely'" in load(tmp_path).notes


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
    write(parts[1], lines([("", "ham")] * 15))
    with pytest.raises(InvalidData, match=r"^train-00001-of-00003\.csv lines 2, 3, .*, 11 and 5 more: the text"):
        load(tmp_path)


def test_a_folder_that_save_to_disk_wrote(tmp_path):
    for split, rows in (("train", ROWS), ("test", [("t", "spam")])):
        folder = tmp_path / split
        folder.mkdir()
        with pyarrow.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink:
            table = arrow_table(rows)
            with pyarrow.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
        (folder / "state.json").write_text('{"_data_files": []}')
        (folder / "dataset_info.json").write_text(json.dumps({"features": FEATURES}))
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    data = load(tmp_path)
    assert data.labels == ("ham", "spam")
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 36, "validation": 4, "test": 1}
    assert load(tmp_path / "train").labels == ("ham", "spam")


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
