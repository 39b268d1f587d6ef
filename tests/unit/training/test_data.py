"""Data in every accepted form is read, and bad data is refused with one clear line."""

import gzip
import json
import re

import numpy as np
import pytest

from onebert_store.errors import InvalidData
from onebert_store.tables.columns import Columns
from onebert_training.data.dataset import load_dataset, load_split
from onebert_training.data.options import DataOptions, ReadOptions
from onebert_training.data.splitting import hold_out

ROWS = [(f"text number {i}", "spam" if i % 4 == 0 else "ham") for i in range(40)]


def write_csv(path, rows, header=("text", "label")):
    lines = [",".join(f'"{cell}"' for cell in row) for row in (header, *rows)]
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    return str(path)


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def load(source, **kwargs):
    return load_dataset(str(source), DataOptions(**kwargs))


@pytest.fixture
def folder(tmp_path):
    write_csv(tmp_path / "train.csv.gz", ROWS)
    write_csv(tmp_path / "dev.csv", [(f"dev {text}", label) for text, label in ROWS[:8]])
    write_csv(tmp_path / "test.csv", [(f"test {text}", label) for text, label in ROWS[8:20]])
    return tmp_path


def write_stars(folder, listed, **splits):
    for split, stars in splits.items():
        write_csv(folder / f"{split}.csv", [(f"t{i}", star) for i, star in enumerate(stars)])
    (folder / "labels.json").write_text(json.dumps({"labels": listed}))
    return folder


FIVE = ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("listed", "train", "test", "gold"),
    [
        (FIVE, [1, 5, 3], [1, 2], [0, 4, 2]),  # 5 is no index, so all are names
        (FIVE, [1, 3, 4], [1, 5], [0, 2, 3]),  # the same, said by another split
        (FIVE, [1, 3, 4], [0, 1], [1, 3, 4]),  # 0 is no name, so all are indices
        (["0", "1", "2"], [0, 1, 2], [1], [0, 1, 2]),  # both readings agree
        (["no", "yes"], ["no", "yes", "no"], [0, 1], [0, 1, 0]),  # no cell has two readings
        (FIVE, [1, 5, "[1, 3]"], [], None),
    ],
)
def test_labels_that_are_numbers_are_read_alike_in_every_split(tmp_path, listed, train, test, gold):
    write_stars(tmp_path, listed, train=train, validation=train[:2], **({"test": test} if test else {}))
    data = load(tmp_path)
    assert data.labels == tuple(listed)
    if gold is None:
        assert data.splits["train"].gold.tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, 0, 1, 0, 0]]
    else:
        assert data.splits["train"].gold.tolist() == gold
        assert data.splits["validation"].gold.tolist() == gold[:2]
        split = load_split(str(tmp_path), ReadOptions(), "single_label", tuple(listed), "validation").split
        assert split.gold.tolist() == gold[:2]


@pytest.mark.parametrize("cells", [[1, 2, 3, 4], [0, 1, 2, 5], ["1|2", "3", "4"]])
def test_labels_that_could_be_names_or_indices_are_refused(tmp_path, cells):
    write_stars(tmp_path, FIVE, train=cells, validation=cells)
    with pytest.raises(InvalidData, match="can be names or indices") as caught:
        load(tmp_path)
    assert "\n" not in caught.value.detail
    with pytest.raises(InvalidData, match="can be names or indices"):
        load_split(str(tmp_path), ReadOptions(), "single_label", tuple(FIVE))


def test_a_label_of_a_thousand_digits_is_one_bad_row(tmp_path):
    write_stars(tmp_path, ["no", "yes"], train=[0, 1, "9" * 5000], validation=[0])
    with pytest.raises(InvalidData, match=r"train\.csv line 4: no label has the name or index '9999"):
        load(tmp_path, task_type="single_label")


@pytest.mark.parametrize("task_type", ["multi_label", "token", "span"])
def test_cells_nested_too_deeply_are_no_json(tmp_path, task_type):
    path = write_csv(tmp_path / "a.csv", [*ROWS, ('[""' * 99999, "[" * 99999)], ("text", "label"))
    with pytest.raises(InvalidData, match="a span task has" if task_type == "span" else r"^a\.csv line"):
        load(path, task_type=task_type)


def test_without_a_validation_split_a_tenth_is_held_out_evenly(tmp_path):
    rows = [(f"t{i}", "rare" if i < 20 else "common") for i in range(100)]
    data = load(write_csv(tmp_path / "a.csv", rows))
    train, validation = data.splits["train"], data.splits["validation"]
    assert sorted(train.texts + validation.texts) == sorted(text for text, _ in rows)
    assert np.bincount(validation.gold).tolist() == [8, 2]
    assert any("no validation split: 10 of 100" in note for note in data.notes)
    assert load(tmp_path / "a.csv").digest == data.digest


def test_fewer_training_rows_are_nested_and_even(tmp_path, folder):
    write_csv(folder / "train.csv.gz", [(f"t{i}", "rare" if i < 20 else "common") for i in range(100)])
    write_csv(folder / "dev.csv", [("v", "rare")])
    write_csv(folder / "test.csv", [("v", "rare")])
    ten, twenty = (load(folder, train_rows=n).splits["train"] for n in (10, 20))
    assert (len(ten), len(twenty)) == (10, 20)
    assert set(ten.texts) < set(twenty.texts)
    assert np.bincount(ten.gold).tolist() == [8, 2]
    assert len(load(folder, train_rows=1000).splits["train"]) == 100


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (("idx", "sentence1", "sentence2", "label"), ("b0", "c0")),
        (("idx", "Premise", "Hypothesis", "Label"), ("b0", "c0")),
        (("label_text", "note", "utterance", "intent"), "c0"),
        (("question", "sentence", "x", "target"), ("a0", "b0")),
    ],
)
def test_columns_are_found_by_name(tmp_path, header, text):
    rows = [(f"a{i}", f"b{i}", f"c{i}", "xy"[i % 2]) for i in range(20)]
    data = load(write_csv(tmp_path / "a.csv", rows, header))
    assert text in data.splits["train"].texts + data.splits["validation"].texts
    assert data.labels == ("x", "y")


def test_columns_can_be_given(tmp_path):
    rows = [(f"body {i}", "title", "xy"[i % 2]) for i in range(20)]
    path = write_csv(tmp_path / "a.csv", rows, ("body", "title", "kind"))
    pair = load_dataset(path, DataOptions("body", "title", "kind")).splits["train"].texts[0]
    assert pair[0].startswith("body")
    assert pair[1] == "title"
    assert load_dataset(path, DataOptions("body", label="kind")).splits["train"].texts[0].startswith("body")
    with pytest.raises(InvalidData, match="text_pair needs one for text"):
        Columns(text_pair="title")


@pytest.mark.parametrize(
    ("labels", "task_type", "names"),
    [
        (["0.5", "1", "2.25"], "regression", ("score",)),
        (["10", "9", "2"], "single_label", ("2", "9", "10")),
        (["a|b", "a", "b"], "single_label", ("a", "a|b", "b")),
        (['["a"]', "[]", '["b", "c"]'], "multi_label", ("a", "b", "c")),
        ([["a"], [], ["b"]], "multi_label", ("a", "b")),
        ([True, False, True], "single_label", ("False", "True")),
        (["3.10", "3.11", "unreleased"], "single_label", ("3.10", "3.11", "unreleased")),
        (["unreleased", "١", "2"], "single_label", ("2", "unreleased", "١")),
    ],
)
def test_task_type_is_inferred(tmp_path, labels, task_type, names):
    rows = [{"text": f"t{i}", "label": label} for i, label in enumerate(labels * 5)]
    data = load(write_jsonl(tmp_path / "a.jsonl", rows))
    assert (data.task_type, data.labels) == (task_type, names)


def test_a_test_split_with_hidden_labels_is_left_out(folder):
    write_csv(folder / "test.csv", [("t", -1)] * 3)
    data = load(folder)
    assert "test" not in data.splits
    assert data.notes[0] == "the test split has no labels and is skipped"


def test_the_digest_sees_every_cell(folder):
    before = load(folder).digest
    write_csv(folder / "test.csv", [*ROWS[8:19], ("changed", "ham")])
    assert load(folder).digest != before


def test_labels_of_another_task_are_said_before_any_row(folder):
    why = "no label of the data, 'ham', 'spam', is one of the task, which has 'good', 'bad'"
    with pytest.raises(InvalidData, match=why):
        load_split(str(folder), ReadOptions(), "single_label", ("good", "bad"))


def test_load_split_matches_labels_by_name(folder):
    labeled = load_split(str(folder), ReadOptions(), "single_label", ("spam", "other", "ham"))
    assert (labeled.name, len(labeled.split)) == ("test", 12)
    assert labeled.split.gold[:5].tolist() == [0, 2, 2, 2, 0]
    assert load_split(str(folder), ReadOptions(), "single_label", ("spam", "ham"), "validation").name == "validation"
    labeled = load_split(str(folder / "dev.csv"), ReadOptions(), "single_label", ("spam", "ham"))
    assert (labeled.name, len(labeled.split)) == ("all", 8)
    with pytest.raises(InvalidData, match=r"test\.csv lines 3, 4, 5, 7, 8, 9, 11, 12 and 13: the label 'ham' is not"):
        load_split(str(folder), ReadOptions(), "single_label", ("spam",))


def test_labels_in_one_cell_of_a_task_of_several_are_told_the_option(tmp_path):
    data = write_csv(tmp_path / "data.csv", [("t", "late"), ("u", "late;size")], ("text", "label"))
    with pytest.raises(
        InvalidData, match=r"line 3: the label 'late;size' is not .*--label-separator ';' reads several"
    ):
        load_split(str(data), ReadOptions(), "multi_label", ("late", "size"))


TEN = [("t", label) for label in "xy"] * 5


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (TEN, ("body", "label"), r"data.csv: no text column; .*\(the columns are body, label\)"),
        (TEN, ("text", "kind"), "data.csv: no label column"),
        ([*TEN, ("", "x")], ("text", "label"), "data.csv line 12: the text is empty"),
        ([*TEN, ("t", "")], ("text", "label"), "data.csv line 12: there is no label"),
        ([("t", "x")] * 20, ("text", "label"), "all training rows have the same label"),
        ([("good", "x"), ("bad", "y")] * 10, ("text", "label"), "after 10 of 20 .* rows that are left have the same"),
        ([("t", n) for n in ("0.5", "1", "1e39")] * 5, ("text", "label"), "data.csv lines 4, 7, .* 16: the label is"),
        (TEN[:4], ("text", "label"), "at least 10 training rows"),
        (
            [*TEN, ("", "x"), ("t", ""), (" ", "y")],
            ("text", "label"),
            "lines 12 and 14: the text is empty.*data.csv line 13: there is no label",
        ),
        (
            [*TEN, *[("t", "")] * 30],
            ("text", "label"),
            "lines 12, 13, 14, 15, 16, 17, 18, 19, 20, 21 and 20 more: there",
        ),
    ],
)
def test_bad_rows_are_named(tmp_path, rows, header, message):
    with pytest.raises(InvalidData, match=message) as caught:
        load(write_csv(tmp_path / "data.csv", rows, header))
    assert "\n" not in caught.value.detail


@pytest.mark.parametrize(
    ("label", "fault"),
    [
        ("bad; awful\nlines", "a line break or another control character"),
        ("a\u2028b", "a line break or another control character"),
        ("\u200b", "no visible character"),
        ("x" * 257, "over 256 characters"),
        ("\ud800", "half a surrogate pair"),
    ],
)
@pytest.mark.parametrize("many", [False, True])
def test_a_label_that_no_file_can_hold_is_refused_with_its_row(tmp_path, label, fault, many):
    rows = [{"text": text, "label": [label] if many else label} for text, label in [*TEN, ("t", label)]]
    with pytest.raises(InvalidData, match=f"^a.jsonl line 11: the label has {fault}$"):
        load(write_jsonl(tmp_path / "a.jsonl", rows))


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (["a\nb", "c"], r"the name of the label a\?b has a line break"),
        (["a", "b", "b"], "labels are not distinct"),
        ([str(i) + "th" for i in range(4097)], "4,097 labels; a task has at most 4096"),
    ],
)
def test_listed_labels_that_no_file_can_hold_are_refused(tmp_path, listed, message):
    write_csv(tmp_path / "train.csv", [(text, i % 2) for i, (text, _) in enumerate(ROWS)])
    (tmp_path / "labels.json").write_text(json.dumps({"labels": listed}))
    with pytest.raises(InvalidData, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.jsonl",
            b'{"label": 0.5, "text": "a"}\n{"label": 1%s, "text": "b"}' % (b"0" * 400),
            "2: the label is not a n",
        ),
        ("a.csv", b"text,label\na,0.5\nb,1e30\n", "a.csv line 3: the label is not a number, or too large"),
        ("a.jsonl", b'{"text": "\\ud800", "label": "x"}\n', "a.jsonl line 1: the text has half of a surrogate pair"),
        ("a.jsonl", b'{"text": 7, "label": "x"}\n', "a.jsonl line 1: the text is empty or not a text"),
        ("a.xls", b"", r"a.xls: the name ends in one of .csv"),
        ("a.txt", b"__label__late where is it\n" * 20, "a.txt: no label column"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidData, match=re.compile(message)) as caught:
        load(tmp_path / name)
    assert str(tmp_path) not in caught.value.detail


def test_bad_folders_are_refused(tmp_path, folder):
    with pytest.raises(InvalidData, match="neither a file nor a folder"):
        load(tmp_path / "nothing")
    write_csv(folder / "train.csv", ROWS)
    with pytest.raises(InvalidData, match="more than one train file"):
        load(folder)
    (folder / "train.csv").unlink()
    (folder / "labels.json").write_text("[]")
    with pytest.raises(InvalidData, match=r"labels\.json is not a JSON object"):
        load(folder)
    for task_type in ("ranking", ["span"]):
        (folder / "labels.json").write_text(json.dumps({"task_type": task_type}))
        with pytest.raises(InvalidData, match="is not supported; single_label"):
            load(folder)
    (folder / "labels.json").unlink()
    (folder / "train.csv.gz").unlink()
    with pytest.raises(InvalidData, match="no training split"):
        load(folder)
    # As programs for pictures have it, with a folder for each label.
    (tmp_path / "pictures" / "late").mkdir(parents=True)
    (tmp_path / "pictures" / "late" / "1.txt").write_text("where is it")
    with pytest.raises(InvalidData, match="no file train, validation or test"):
        load(tmp_path / "pictures")


@pytest.mark.parametrize("labels", [["ham", "spam", "rare"], [["ham"], ["spam"], ["rare", "ham"]]])
def test_a_listed_label_that_only_validation_has_is_named(tmp_path, labels):
    write_jsonl(tmp_path / "train.jsonl", [{"text": "t", "label": label} for label in labels[:2]])
    write_jsonl(tmp_path / "validation.jsonl", [{"text": "t", "label": label} for label in labels])
    (tmp_path / "labels.json").write_text(json.dumps({"labels": ["ham", "spam", "rare"]}))
    with pytest.raises(InvalidData, match="validation split has the label 'rare', which no training row has"):
        load(tmp_path)


def test_a_label_that_few_training_rows_lack_is_no_error(tmp_path):
    write_csv(tmp_path / "train.csv", [(f"t{i}", "rare" if i == 0 else f"c{i % 2}") for i in range(40)])
    write_csv(tmp_path / "validation.csv", [("v", "rare")])
    data = load(tmp_path, train_rows=5)
    assert len(data.splits["train"]) == 5
    assert "1 of 3 labels have no training row: 'rare'" in data.notes


def test_a_share_of_the_training_rows_validates_and_the_validation_split_tests(folder):
    data = load(folder, validation_share=0.2)
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 32, "validation": 8, "test": 8}
    assert data.splits["test"].texts == tuple(f"dev {text}" for text, _ in ROWS[:8])
    assert sorted(data.splits["train"].texts + data.splits["validation"].texts) == sorted(text for text, _ in ROWS)
    assert np.bincount(data.splits["validation"].gold).tolist() == [6, 2]
    assert data.notes == (
        "the validation split of the data is the test split",
        "by the requested share: 8 of 40 training rows are held out for it",
    )
    assert load(folder, validation_share=0.2).digest == data.digest
    (folder / "dev.csv").unlink()
    kept = load(folder, validation_share=0.2)
    assert {name: len(split) for name, split in kept.splits.items()} == {"train": 32, "validation": 8, "test": 12}
    with pytest.raises(InvalidData, match="above 0 and below 1"):
        load(folder, validation_share=1.0)


def test_equal_texts_are_held_out_together(tmp_path):
    rows = [(f"text {i % 12}", "spam" if i % 4 == 0 else "ham") for i in range(60)]
    path = write_csv(tmp_path / "a.csv", rows)
    whole = load_dataset(str(path), keep_few=True).splits["train"]
    for seed in range(10):  # every text is there five times
        train, validation = hold_out(whole, "single_label", 0.2, None, seed)
        assert not set(train.texts) & set(validation.texts)
        assert (len(train), len(validation)) == (50, 10)
    with pytest.raises(InvalidData, match="all training rows have the same text"):
        load(write_csv(tmp_path / "b.csv", [("t", "x"), ("t", "y")] * 8))


def test_what_was_guessed_or_is_missing_is_noted(tmp_path):
    rows = [f"a text of {i} words,{i % 5}" for i in range(40)]
    (tmp_path / "stars.csv").write_text("\n".join(["text,score", *rows]) + "\n")
    data = load_dataset(str(tmp_path / "stars.csv"), DataOptions(train_rows=500))
    assert data.task_type == "single_label"
    assert "taken as 5 classes; --task-type regression" in " ".join(data.notes)
    assert "only 40 training rows exist, not 500" in data.notes
    said = load_dataset(str(tmp_path / "stars.csv"), DataOptions(task_type="single_label"))
    assert not any("taken as" in note for note in said.notes)
