"""Label columns and texts as `check`, `train` and `evaluate` read them: nothing is misread without a word."""

import json

import pytest

from onebert_store.errors import InvalidData
from onebert_training.data.dataset import load_dataset, load_split
from onebert_training.data.options import DataOptions, ReadOptions
from onebert_training.tasks.reading import reading_notes


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
    assert "5 of 20 train rows have no label and are left out" in data.notes


def test_empty_cells_of_a_text_file_are_rows_without_any_label_and_counted(tmp_path):
    path = csv(tmp_path / "a.csv", [f"t{i},{cell}" for i, cell in enumerate(["late|size", "", "late"] * 5)])
    data = load_dataset(path, keep_few=True)
    assert data.splits["train"].gold.sum(axis=1).tolist() == [2, 0, 1] * 5
    assert any(note.startswith("5 of 15 training rows have an empty label cell") for note in data.notes)


def test_lists_of_pandas_in_cells_train_and_measure_alike(tmp_path):
    rows = [f't{i},"{cell}"' for i, cell in enumerate(["['late']", "['late', 'size']", "[]"] * 5)]
    data = load_dataset(csv(tmp_path / "a.csv", rows), keep_few=True)
    assert (data.task_type, data.labels) == ("multi_label", ("late", "size"))
    assert "the label cells are read as lists" in data.notes
    few = csv(tmp_path / "b.csv", ['t,"late, size"'])
    split = load_split(few, ReadOptions(), "multi_label", data.labels).split
    assert split.gold.tolist() == [[1, 1]]
    asked = DataOptions(label_separator=";", task_type="multi_label")
    path = csv(tmp_path / "c.csv", [f"t{i},x;y{i % 2}" for i in range(20)])
    assert load_dataset(path, asked).labels == ("x", "y0", "y1")


def test_a_name_that_looks_like_several_labels_is_noted_where_nobody_says_which(tmp_path):
    for name, both in (("a.csv", "late size"), ("b.csv", '"Sports, indoor"\nx,"Sports, outdoor"\ny,"Food, indoor"')):
        path = csv(tmp_path / name, ["a,late", "b,size", f"c,{both}"] * 5)
        data = load_dataset(path, keep_few=True)
        assert data.task_type == "single_label"
        [note] = [one for one in data.notes if "is taken for one name, though it looks like several" in one]
        assert "--label-separator" in note
    # Whoever says that a cell is one name is not told of a separator.
    path = csv(tmp_path / "c.csv", ["a,late", "b,size", "c,late;size"] * 5)
    data = load_dataset(path, DataOptions(task_type="single_label"), keep_few=True)
    assert data.labels == ("late", "late;size", "size")
    assert not any("label cells" in note for note in data.notes)


def test_a_list_of_one_is_the_label_of_a_single_label_task(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [["late"], ["size"]] * 5)
    assert load_dataset(path, DataOptions(task_type="single_label"), keep_few=True).labels == ("late", "size")
    path = jsonl(tmp_path / "b.jsonl", [["late"], ["size", "late"]] * 5)
    with pytest.raises(InvalidData, match="a row of a single_label task has several labels"):
        load_dataset(path, DataOptions(task_type="single_label"), keep_few=True)


def test_spans_are_refused_in_one_sentence(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [[[5, 9, "city"]], []] * 5)
    with pytest.raises(InvalidData, match="the label cells hold lists in lists, or objects, as") as caught:
        load_dataset(path)
    assert len(caught.value.detail) < 250


def test_tags_and_words_as_python_lists(tmp_path):
    rows = ["\"['Zagreb', 'is']\",\"['B-LOC', 'O']\"", "\"['Ana' 'left']\",\"['B-PER' 'O']\""] * 5
    data = load_dataset(csv(tmp_path / "a.csv", rows, "tokens,ner_tags"), keep_few=True)
    assert (data.task_type, data.labels) == ("token", ("B-LOC", "B-PER", "O"))
    assert set(data.splits["train"].texts) == {"Zagreb is", "Ana left"}


def test_labels_that_look_alike_are_noted(tmp_path):
    cells = ["good", "good\u200b", "caf\u00e9", "cafe\u0301", "Ok", "ok", "bad"] * 3
    notes = load_dataset(jsonl(tmp_path / "a.jsonl", cells), keep_few=True).notes
    assert "the labels 'Ok', 'ok' differ in case or spaces alone" in notes
    alike = [note for note in notes if note.endswith("invisible characters or equivalent letters of Unicode alone")]
    assert len(alike) == 2
    assert any("'good', 'good\\u200b'" in note for note in alike)


def test_decimal_commas_are_numbers_and_a_cell_that_is_none_is_quoted(tmp_path):
    rows = [f't{i},"{i},50"' for i in range(20)]
    data = load_dataset(csv(tmp_path / "a.csv", rows), keep_few=True)
    assert data.task_type == "regression"
    assert data.splits["train"].gold.tolist() == [i + 0.5 for i in range(20)]
    path = csv(tmp_path / "b.csv", [*rows, 'x,"40,00 €"', "y,unknown"])
    with pytest.raises(InvalidData, match=r"b\.csv lines 22 and 23: the label is not a number, or too large, as '40"):
        load_dataset(path, DataOptions(task_type="regression"))


def test_rows_without_a_text_are_left_out_where_asked(tmp_path):
    rows = [f"t{i},{'ab'[i % 2]}" for i in range(20)]
    path = csv(tmp_path / "a.csv", [*rows, " ,a", "\u200b,b"])
    with pytest.raises(InvalidData, match=r"a\.csv lines 22 and 23: the text is empty or not a text"):
        load_dataset(path)
    data = load_dataset(path, DataOptions(drop_empty=True))
    assert "2 of 22 train rows have no text and are left out" in data.notes
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
