"""Exports of Label Studio are read as people use it: several controls, several choices, several people."""

import csv
import json

import pytest

from onebert_store.errors import InvalidData
from onebert_training.data.dataset import load_dataset, load_split
from onebert_training.data.options import DataOptions, ReadOptions

NER, TONE, STARS = ("ner", "labels"), ("tone", "choices"), ("stars", "rating")
TEXT = "ship it to Oslo"


def part(control, value):
    name, kind = control
    return {"id": "a", "from_name": name, "to_name": "text", "type": kind, "origin": "manual", "value": value}


def chosen(*names, control=TONE):
    return part(control, {"choices": [*names]})


def drawn(start, end, label, control=NER):
    return part(control, {"start": start, "end": end, "labels": [label]})


def task(text, *people, cancelled=()):
    done = [{"id": 1, "completed_by": 1, "was_cancelled": result in cancelled, "result": result} for result in people]
    return {"id": 7, "data": {"text": text, "shop": 3}, "annotations": done, "predictions": [], "meta": {}}


def load(tmp_path, tasks, **options):
    path = tmp_path / "export.json"
    path.write_text(json.dumps(tasks), encoding="utf-8")
    options = DataOptions(**options)
    return load_dataset(options.read(str(path)), options, keep_few=True)


def labels_of(data):
    split = data.splits["train"]
    named = zip(split.texts, split.plain_gold(), strict=True)
    if data.task_type == "multi_label":
        return {text: [name for name, on in zip(data.labels, gold, strict=True) if on] for text, gold in named}
    return {text: data.labels[gold] for text, gold in named}


GOOD = [task("a", [chosen("good")]), task("b", [chosen("bad")])]


def test_the_only_control_is_the_label_and_others_are_never_taken_for_it(tmp_path):
    rating = part(STARS, {"rating": 4})
    tasks = [task("a", [rating, chosen("good")]), task("b", [chosen("bad"), rating]), task("c", [rating])]
    data = load(tmp_path, tasks)
    assert (data.task_type, labels_of(data)) == ("single_label", {"a": "good", "b": "bad"})
    assert [note for note in data.notes if "left out" in note] == [
        "1 of 3 tasks are left out: export.json row 3: nobody answered"
    ]


def test_of_several_controls_the_named_one_is_the_label(tmp_path):
    service = ("service", "choices")
    tasks = [
        task("a", [chosen("good"), chosen("slow", control=service)]),
        task("b", [chosen("bad"), drawn(0, 1, "city")]),
        task("c", [chosen("quick", control=service)]),
    ]
    with pytest.raises(
        InvalidData, match=r"several controls, tone \(choices\), service \(choices\), ner \(labels\); say"
    ):
        load(tmp_path, tasks)
    assert labels_of(load(tmp_path, tasks, label="tone")) == {"a": "good", "b": "bad"}
    assert labels_of(load(tmp_path, tasks, label="service")) == {"a": "slow", "c": "quick"}
    spans = load(tmp_path, [*tasks, task(TEXT, [drawn(11, 15, "city")])], label="ner").splits["train"]
    assert dict(zip(spans.texts, map(len, spans.gold), strict=True)) == {"a": 1, "b": 1, "c": 1, TEXT: 4}


def test_a_field_of_the_data_with_the_name_of_the_control_is_nobodys_answer(tmp_path):
    label = ("label", "choices")
    tasks = [task("a", [chosen("good", control=label)]), task("b", [chosen("bad", control=label)]), task("c")]
    tasks.append(task("d", [chosen("fast")]))
    for each in tasks:
        each["data"]["label"] = "good"
    data = load(tmp_path, tasks)
    assert labels_of(data) == {"a": "good", "b": "bad"}
    assert any("2 of 4 tasks are left out" in note and note.endswith("nobody answered") for note in data.notes)


@pytest.mark.parametrize("result", [[chosen("good", "fast")], [chosen("good"), chosen("fast")]])
def test_several_choices_are_several_labels(tmp_path, result):
    data = load(tmp_path, [task("a", result), task("b", [chosen("fast")])])
    assert (data.task_type, labels_of(data)) == ("multi_label", {"a": ["fast", "good"], "b": ["fast"]})


def test_people_who_agree_are_one_row_and_those_who_do_not_are_none(tmp_path):
    skipped = [chosen("bad", "never")]
    tasks = [
        *GOOD,
        task("c", [chosen("good")], [chosen("good")]),
        task("d", [chosen("good")], [chosen("bad")]),
        task("e", [chosen("good")]),
        task("e", [chosen("bad")]),
        task("a", [chosen("good")]),
        task("f", skipped, cancelled=[skipped]),
        task("g", skipped, [chosen("bad")], cancelled=[skipped]),
        task("h"),
    ]
    data = load(tmp_path, tasks)
    assert labels_of(data) == {"a": "good", "b": "bad", "c": "good", "g": "bad"}
    [note] = [note for note in data.notes if "left out" in note]
    assert note.startswith("4 of 8 tasks are left out: export.json rows 4 and 5: people disagree; ")
    assert note.endswith("; export.json rows 8 and 10: nobody answered")
    measured = load_split(str(tmp_path / "export.json"), ReadOptions(), "single_label", data.labels)
    repeated = "2 tasks have the data of another one, and count as the same task"
    assert (len(measured.split), measured.notes) == (4, (repeated, note))


def test_regions_are_the_same_in_any_order_and_none_are_a_text_without_entities(tmp_path):
    both = [drawn(0, 3, "person"), drawn(7, 11, "city")]
    data = load(tmp_path, [task("Ana in Oslo", both, both[::-1]), task("nothing", []), task("Rome", both, both[:1])])
    assert data.splits["train"].texts == ("Ana in Oslo", "nothing")
    assert [[data.labels[tag] for tag in tags] for tags in data.splits["train"].gold] == [
        ["B-person", "O", "B-city"],
        ["O"],
    ]


HOSTILE = [
    {"id": 1, "data": {"text": "x"}, "annotations": None},
    {"id": 1, "data": {}, "annotations": [7, {"result": 7}, {}, {"result": [7, {"value": 7, "type": []}]}]},
    {
        "id": 1,
        "data": {"text": "y"},
        "annotations": [{"result": [chosen("good") | {"value": {"choices": {"a": [1]}}}]}],
    },
    {"id": 1, "data": {"text": "z"}, "annotations": [{"result": [chosen(1, None, ["a"])]}]},
    {"id": 1, "data": {"text": "n"}, "annotations": {"result": []}},
    {"id": 1, "data": "a text", "annotations": [{"result": [chosen("good")]}]},
    {"id": 1, "annotations": [{"result": [chosen("good")]}]},
]


def test_records_that_cannot_be_used_are_counted_and_the_good_ones_taken(tmp_path):
    data = load(tmp_path, [*HOSTILE, *GOOD])
    assert labels_of(data) == {"a": "good", "b": "bad"}
    assert "7 of 9 tasks are left out: export.json rows 1, 2, 3, 4, 5, 6 and 7: nobody answered" in data.notes
    with pytest.raises(InvalidData, match=r"no task has an answer in tone: .*nobody answered"):
        load(tmp_path, HOSTILE)


def test_json_min_and_csv_have_a_row_for_each_annotation(tmp_path):
    rows = [
        {"text": "a", "id": 1, "tone": "good", "annotator": 1, "annotation_id": 1},
        {"text": "b", "id": 2, "tone": {"choices": ["good", "fast"]}, "annotator": 1, "annotation_id": 2},
        {"text": "b", "id": 2, "tone": {"choices": ["fast", "good"]}, "annotator": 2, "annotation_id": 3},
        {"text": "c", "id": 3, "tone": "good", "annotator": 1, "annotation_id": 4},
        {"text": "c", "id": 3, "tone": "fast", "annotator": 2, "annotation_id": 5},
        {"text": "d", "id": 4, "annotator": 2, "annotation_id": 6},
    ]
    expected = {"a": ["good"], "b": ["fast", "good"]}
    assert labels_of(load(tmp_path, rows)) == expected
    with (tmp_path / "export.csv").open("w", newline="") as stream:
        written = csv.DictWriter(stream, ["text", "id", "tone", "annotator", "annotation_id"])
        written.writeheader()
        for row in rows:
            tone = row.get("tone", "")
            written.writerow(row | {"tone": tone if isinstance(tone, str) else json.dumps(tone, separators=(",", ":"))})
    data = load_dataset(str(tmp_path / "export.csv"), keep_few=True)
    assert labels_of(data) == expected
    assert any("2 of 4 tasks are left out" in note and "line 7: nobody answered" in note for note in data.notes)


ANNA = "Anna\u200b lives  in Oslo"
# What one person drew, and what another one drew; whether a training would use the same.
DRAWN = [
    ([(0, 4, "PER")], [(0, 4, "PER")], True),
    ([(0, 4, "PER")], [(0, 5, "PER")], True),  # a mark without width
    ([(0, 4, "PER")], [(0, 6, "PER")], True),
    ([(6, 11, "DO")], [(5, 13, "DO")], True),  # blanks on both sides
    ([(0, 4, "PER")], [(0, 4, "PER"), (0, 6, "PER")], True),
    ([(0, 4, "PER"), (16, 20, "LOC")], [(16, 20, "LOC"), (0, 4, "PER"), (0, 4, "PER")], True),
    ([(0, 4, "PER")], [(0, 4, "per")], True),
    ([(0, 4, "PER")], [(0, 4, "ORG")], False),
    ([(0, 4, "PER")], [(0, 11, "PER")], False),
    ([(0, 4, "PER")], [], False),
]


@pytest.mark.parametrize(("first", "other", "alike"), DRAWN)
def test_two_people_are_compared_by_what_a_training_would_use(tmp_path, first, other, alike):
    tasks = [
        task(ANNA, [drawn(*each) for each in first], [drawn(*each) for each in other]),
        task("ask Bea", [drawn(4, 7, "PER")]),
        task("nobody", []),
    ]
    data = load(tmp_path, tasks)
    assert (ANNA in data.splits["train"].texts) == alike
    assert any("people disagree" in note for note in data.notes) != alike


def of_region(start, end, *names):
    return part(TONE, {"start": start, "end": end, "text": "x", "choices": [*names]})


def min_rows(*cells):
    return [{"text": f"text {n}", "id": n, "annotation_id": n, "tone": cell} for n, cell in enumerate(cells)]


REGIONS = {
    "tasks": [task("a", [of_region(0, 1, "good")]), *GOOD],
    "objects": min_rows([{"start": 0, "end": 1, "choices": ["good"]}], "bad", "good"),
    "one object": min_rows({"start": 0, "end": 1, "choices": ["good"]}, "bad", "good"),
    "names of several regions": min_rows(["good", "bad"], "bad", "good"),
    "as csv": min_rows('["good", "bad"]', "bad", "good"),
    "objects as csv": min_rows('[{"start": 0, "end": 1, "choices": ["good"]}]', "bad", "good"),
}


@pytest.mark.parametrize("tasks", REGIONS.values(), ids=REGIONS)
def test_choices_of_a_region_are_no_labels_of_the_text(tmp_path, tasks):
    with pytest.raises(InvalidData, match="tone has choices of regions, which are no labels of the text"):
        load(tmp_path, tasks, label="tone")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (ANNA, [[0, 4, "PER"], [0, 4, "PER"], [16, 20, "LOC"]]),
        (ANNA, [[0, 6, "PER"], [0, 4, "PER"], [15, 20, "LOC"]]),
        ("\ufeffAnna lives", [[0, 5, "PER"]]),
        ("\u200bAnna lives", [[1, 5, "PER"]]),
        ("\u200bAnna\u200b, who lives", [[1, 6, "PER"]]),
    ],
)
def test_doubled_spans_and_marks_without_width_leave_no_row_out(tmp_path, text, label):
    data = load(tmp_path, [{"text": text, "label": label}, {"text": "ask Bea", "label": [[4, 7, "PER"]]}])
    gold_of = dict(zip(data.splits["train"].texts, data.splits["train"].gold, strict=True))
    assert data.labels[gold_of[text][0]] == "B-PER"


# The column, its cells of four rows, the rows that are left out, and what is said.
ANSWERS = [
    (
        "answer",
        ["accept", "reject", "accept", "ignore"],
        "bd",
        "2 of 6 rows are left out: ignore, reject in the column",
    ),
    ("Answer", ["accept", "reject", "", "accept"], "b", "1 of 6 rows are left out: reject in the column Answer"),
    ("is_approved", [True, False, True, True], "", "1 of 6 rows have false in the column is_approved, which is not re"),
    ("status", ["submitted", "discarded", "draft", "submitted"], "", "2 of 6 rows have discarded, draft in the column"),
    ("answer", ["accept", "maybe", "reject", "accept"], "", ""),
    ("answer", ["accept"] * 4, "", ""),
    ("status", ["open", "pending", "completed", "open"], "", ""),
]


@pytest.mark.parametrize(("column", "answers", "without", "message"), ANSWERS)
def test_a_column_of_rejected_answers_is_obeyed_or_noted(tmp_path, column, answers, without, message):
    rows = [
        {"text": text, "label": "x" if text in "ace" else "y", column: answer}
        for text, answer in zip("abcdef", [*answers, answers[0], answers[0]], strict=True)
    ]
    data = load(tmp_path, rows)
    assert labels_of(data) == {row["text"]: row["label"] for row in rows if row["text"] not in without}
    notes = [note for note in data.notes if "in the column" in note]
    assert len(notes) == bool(message)
    assert all(note.startswith(message) for note in notes)


def test_the_column_of_answers_may_be_the_label_and_all_rejected_are_refused(tmp_path):
    rows = [{"text": f"t{n}", "answer": answer} for n, answer in enumerate(["accept", "reject", "accept", "reject"])]
    assert set(labels_of(load(tmp_path, rows, label="answer")).values()) == {"accept", "reject"}
    with pytest.raises(InvalidData, match="all rows have reject in the column answer"):
        load(tmp_path, [{"text": "a", "label": "x", "answer": "reject"}])
