"""More training rows beside the data (`--more`): joined to the training split, with the labels that win."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labeled_files import jsonl
from onebert_store.errors import InvalidData
from onebert_training.data.dataset import Dataset, load_dataset, load_split
from onebert_training.data.options import DataOptions, ReadOptions

ROWS = {
    "train": [("it broke", "bad"), ("it works", "good"), ("it shines", "bad")],
    "validation": [("it fell", "bad"), ("it sings", "good")],
    "test": [("it hums", "good"), ("it died", "bad")],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for split, rows in ROWS.items():
        write(folder / f"{split}.jsonl", rows)
    return folder


def write(file: Path, rows: list[Any]) -> str:
    file.write_text(jsonl(rows))
    return str(file)


def added(folder: Path, rows: list[Any], more: list[Any], keep_few: bool = False, **options: Any) -> Dataset:
    """The data with more rows, each in a file of its own."""
    options["more"] = write(folder / "more.jsonl", more)
    return load_dataset(write(folder / "data.jsonl", rows), DataOptions(**options), keep_few=keep_few)


def tagged(*rows: tuple[str, str]) -> list[dict[str, list[str]]]:
    return [{"words": words.split(), "tags": tags.split()} for words, tags in rows]


def test_rows_are_added_and_their_labels_win(data: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "feedback.jsonl", [("it shines", "good"), ("it leaks", "bad"), ("it fell", "good")])
    plain, larger = load_dataset(str(data)), load_dataset(str(data), DataOptions(more=more))

    train = larger.splits["train"]
    named = [(text, larger.labels[at]) for text, at in zip(train.texts, train.gold.tolist(), strict=True)]
    assert named == [("it broke", "bad"), ("it works", "good"), ("it shines", "good"), ("it leaks", "bad")]
    # Scores compare with earlier ones: the rows that measure are the same, and no text of theirs is trained on.
    for split in ("validation", "test"):
        assert larger.splits[split].texts == plain.splits[split].texts
    assert [larger.labels[at] for at in larger.splits["validation"].gold] == ["good", "good"], "a correction is right"
    assert larger.splits["test"].gold.tolist() == plain.splits["test"].gold.tolist()
    assert larger.notes[-1] == "rows of feedback.jsonl: 1 added, 2 of the data corrected by them"
    assert larger.facts == plain.facts | {"more": {"rows": 3, "relabeled": 1}}


def test_the_last_of_several_labels_of_one_text_counts(data: Path, tmp_path: Path) -> None:
    more = write(tmp_path / "feedback.jsonl", [("it leaks", "good"), ("it leaks", "bad")])
    train = load_dataset(str(data), DataOptions(more=more)).splits["train"]
    assert (train.texts[-1], train.gold[-1], len(train)) == ("it leaks", 0, 4)


@pytest.mark.parametrize("more", [None, [("it leaks", "bad")]])
def test_the_digest_of_the_data_is_the_same_whatever_is_drawn_held_out_or_added(
    tmp_path: Path, more: list[tuple[str, str]] | None
) -> None:
    file = write(tmp_path / "data.jsonl", [(f"text {at}", ("bad", "good")[at % 3 == 0]) for at in range(40)])
    options = DataOptions(more=more and write(tmp_path / "more.jsonl", more))
    datasets = [
        load_dataset(file, replace(options, **drawn), keep_all=keep_all)
        for drawn in ({}, {"train_rows": 20}, {"validation_share": 0.3}, {"validation_rows": 3})
        for keep_all in (False, True)
    ]
    digests = {data.facts["digest"] for data in datasets}
    assert digests == {load_dataset(file, keep_all=True).digest}
    # An exact head is fitted on every row, whatever share is asked for.
    assert all("validation" not in data.splits for data in datasets[1::2])
    write(tmp_path / "data.jsonl", [(f"text {at}", ("bad", "good")[at % 2]) for at in range(40)])
    assert load_dataset(file, options).facts["digest"] not in digests


def test_a_label_with_enough_added_rows_joins_the_task_and_rows_of_others_are_named_and_left_out(
    data: Path, tmp_path: Path
) -> None:
    # One of the five texts is a validation row, so that four can be trained on.
    rows = [(f"it leaks {at}", "ugly") for at in range(4)] + [
        ("it fell", "ugly"),
        ("it shines", "odd"),
        ("it rots", "bad"),
    ]
    more = write(tmp_path / "feedback.jsonl", rows)
    few = load_dataset(str(data), DataOptions(more=more))
    assert (few.labels, few.added) == (("bad", "good"), 1)
    assert few.notes[-2:] == (
        "6 rows are left out, of new labels with fewer than 5 (--new-label-rows): 'odd' (rows: 1), 'ugly' (rows: 4)",
        "2 rows of the data are left out, too: these are their new labels",
    )
    assert few.splits["validation"].texts == ("it sings",)
    # Nobody trains on the label that was found wrong.
    assert few.splits["train"].texts == ("it broke", "it works", "it rots")

    wider = load_dataset(str(data), DataOptions(more=more, new_label_rows=4))
    assert wider.labels == ("bad", "good", "ugly")
    assert wider.notes[-3:] == (
        "new labels: 'ugly' (rows: 4)",
        "1 rows are left out, of new labels with fewer than 4 (--new-label-rows): 'odd' (rows: 1)",
        "1 rows of the data are left out, too: these are their new labels",
    )
    train = wider.splits["train"]
    named = {text: wider.labels[at] for text, at in zip(train.texts, train.gold.tolist(), strict=True)}
    assert named == {text: label for text, label in ROWS["train"] + rows if text not in ("it fell", "it shines")}
    assert wider.splits["test"].gold.tolist() == few.splits["test"].gold.tolist()
    assert [wider.labels[at] for at in wider.splits["validation"].gold] == ["ugly", "good"]


def test_a_text_with_a_rare_new_label_beside_a_frequent_one_may_take_that_below_the_bound(tmp_path: Path) -> None:
    rows = [(f"text {at}", [["late"], ["size"], []][at % 3]) for at in range(30)]
    both = [("one", ["late", "rude", "odd"]), ("two", ["rude"]), ("three", ["lost"]), ("four", ["lost", "late"])]
    dataset = added(tmp_path, rows, both, task_type="multi_label", new_label_rows=2)
    assert dataset.labels == ("late", "size", "lost")
    assert dataset.notes[-3:] == (
        "new labels: 'lost' (rows: 2)",
        "2 rows are left out, of new labels with fewer than 2 (--new-label-rows): 'odd' (rows: 1), 'rude' (rows: 2)",
        "no measured row has 'lost': no score says how they are answered",
    )
    train = dataset.splits["train"]
    assert [[*train.texts].index(text) for text in ("three", "four")] == [len(train) - 2, len(train) - 1]
    assert train.gold[-2:].tolist() == [[0, 0, 1], [1, 0, 1]]
    assert {split.gold.shape[1] for split in dataset.splits.values()} == {3}


def test_a_new_kind_of_entity_brings_both_its_tags(tmp_path: Path) -> None:
    rows = tagged(*((f"my box {at}", "O B-THING O") for at in range(12)))
    spans = [*((f"came on monday {at}", [[8, 14, "DAY"]]) for at in range(5)), ("came to Rome", [[8, 12, "CITY"]])]
    dataset = added(tmp_path, rows, spans, task_type="token")
    assert dataset.labels == ("B-THING", "O", "B-DAY", "I-DAY")
    assert dataset.splits["train"].gold[-1] == (1, 1, 2, 1)
    assert "new labels: 'DAY' (rows: 5)" in dataset.notes
    assert any("'CITY' (rows: 1)" in note for note in dataset.notes)


def test_added_rows_that_mark_no_beginning_get_it_for_new_kinds_of_entities_too(tmp_path: Path) -> None:
    rows = tagged(*((f"Ana Horvat in {at}", "B-WHO I-WHO O O") for at in range(12)))
    more = tagged(*((f"Bo Li on Monday {at}", "I-WHO I-WHO O I-DAY O") for at in range(5)))
    dataset = added(tmp_path, rows, more, task_type="token")
    tags = [dataset.labels[tag] for tag in dataset.splits["train"].gold[-1]]
    assert tags == ["B-WHO", "I-WHO", "O", "B-DAY", "O"]


@pytest.mark.parametrize(
    ("names", "labels", "read"),
    [
        *((["bad", "good"], labels, ["good", "bad"]) for labels in (("1", "0"), (1, 0), ("good", "bad"))),
        (["1", "2", "3"], ("2", "1"), ["2", "1"]),  # names that look like indices
    ],
)
def test_added_rows_have_indices_of_the_labels_as_the_data_has_them(data: Path, tmp_path: Path, names, labels, read):
    (data / "labels.json").write_text(json.dumps({"labels": names}))
    for split, rows in ROWS.items():
        write(data / f"{split}.jsonl", [(text, str(int(label == "good"))) for text, label in rows])
    more = write(tmp_path / "more.jsonl", [*zip(("it grows", "it leaks"), labels, strict=True)])
    dataset = load_dataset(str(data), DataOptions(more=more))
    assert dataset.labels == tuple(names)
    assert dataset.splits["train"].texts[-2:] == ("it grows", "it leaks")
    assert [dataset.labels[at] for at in dataset.splits["train"].gold[-2:]] == read


TEXTS = [{"text": f"text {row}", "label": ("bad", "good")[row % 2]} for row in range(6)]
PAIRS = [row | {"text_pair": "a pair"} for row in TEXTS]


@pytest.mark.parametrize(("rows", "others"), [(TEXTS, PAIRS), (PAIRS, TEXTS)], ids=["texts", "pairs"])
def test_rows_of_another_form_than_the_datas_are_left_out_and_counted(tmp_path: Path, rows, others) -> None:
    mixed = added(tmp_path, rows, [rows[0] | {"text": "another"}, *others], keep_few=True)
    plain = added(tmp_path, rows, rows, keep_few=True)
    assert mixed.splits["train"].texts == (*plain.splits["train"].texts, *mixed.splits["train"].texts[-1:])
    assert "another" in mixed.splits["train"].texts[-1]
    assert mixed.added == 1
    assert any(note.startswith("6 of 7 rows of more.jsonl are left out: they are") for note in mixed.notes)
    with pytest.raises(InvalidData, match=r"the rows of more\.jsonl are .* and the data has"):
        added(tmp_path, rows, others, keep_few=True)


def test_rare_new_labels_do_not_empty_the_data(data: Path, tmp_path: Path) -> None:
    rare = [(text, f"new {row}") for row, (text, label) in enumerate(ROWS["train"]) if label == "bad"]
    with pytest.raises(InvalidData, match="all training rows have the same label"):
        load_dataset(str(data), DataOptions(more=write(tmp_path / "more.jsonl", rare)))


def test_a_text_with_several_labels_keeps_them_where_a_further_one_is_rare(tmp_path: Path) -> None:
    rows = [(f"text {at}", [["a"], ["a", "b"], []][at % 3]) for at in range(12)]
    dataset = added(tmp_path, rows, [("text 1", ["a", "b", "rare"])], keep_few=True, task_type="multi_label")
    train = dataset.splits["train"]
    assert train.gold[[*train.texts].index("text 1")].tolist() == [1, 1]


def test_a_task_without_beginnings_has_none_of_new_kinds_either(tmp_path: Path) -> None:
    more = write(tmp_path / "more.jsonl", tagged(*((f"on Monday {at}", "O I-DAY O") for at in range(5))))
    wider = load_split(more, ReadOptions(), "token", ["O", "I-WHO"], "train", widen=True)
    assert [wider.labels[tag] for tag in wider.split.gold[0]] == ["O", "I-DAY", "O"]
