"""Spans of characters, as programs for labeling write them, are read as the words and tags that they mean."""

import json

import numpy as np
import pytest

from labeled_files import jsonl, lines
from onebert_store.errors import InvalidData
from onebert_training.data.dataset import load_dataset, load_split
from onebert_training.data.examination import examine
from onebert_training.data.options import DataOptions, ReadOptions

WORDS = [
    ("ship it to New York , or Oslo", ["O", "O", "O", "B-city", "I-city", "O", "O", "B-city"]),
    ("call Ana Horvat in Lima today", ["O", "B-person", "I-person", "O", "B-city", "O"]),
    ("nobody called", ["O", "O"]),
]


def spans_of(text, tags):
    """The spans of tagged words, by the words' places alone."""
    spans, at = [], 0
    for word, tag in zip(text.split(" "), tags, strict=True):
        if tag[0] == "B":
            spans.append([at, at + len(word), tag[2:]])
        elif tag[0] == "I":
            spans[-1][1] = at + len(word)
        at += len(word) + 1
    return spans


SPANS = [(text, spans_of(text, tags)) for text, tags in WORDS]


WRITERS = {
    ".csv": lambda rows: lines([[*row.values()] for row in rows], [*rows[0]]),
    ".json": json.dumps,
    ".jsonl": jsonl,
}


def write(path, rows):
    path.write_text(WRITERS[path.suffix](rows), encoding="utf-8")
    return str(path)


def load(tmp_path, rows, **options):
    return load_dataset(write(tmp_path / "spans.jsonl", rows), DataOptions(**options), keep_few=True)


def words_of(split, row):
    return [split.texts[row][start:end] for start, end in split.words[row]]


def tags_of(data, row):
    return [data.labels[tag] for tag in data.splits["train"].gold[row]]


def named(start, end, *labels):
    return {"start": start, "end": end, "labels": [*labels]}


FORMS = {
    "doccano": ("jsonl", "label", lambda *span: [*span]),
    "doccano with relations": (
        "jsonl",
        "entities",
        lambda *s: {"id": 1, "label": s[2], "start_offset": s[0], "end_offset": s[1]},
    ),
    "prodigy": ("jsonl", "spans", lambda *s: {"start": s[0], "end": s[1], "label": s[2], "token_start": 0}),
    "spacy's docs": ("json", "ents", lambda *s: {"start": s[0], "end": s[1], "label": s[2]}),
    "label studio, JSON-MIN": ("json", "label", named),
    "label studio, CSV": ("csv", "label", named),
    "lists in a CSV": ("csv", "label", lambda *span: [*span]),
}


@pytest.mark.parametrize("form", FORMS)
def test_spans_are_the_same_rows_as_words_with_tags(tmp_path, form):
    ending, column, write_span = FORMS[form]
    rows = [{"text": text, column: [write_span(*span) for span in spans]} for text, spans in SPANS]
    tagged = [{"tokens": text.split(" "), "ner_tags": tags} for text, tags in WORDS]
    (tmp_path / "tags").mkdir()
    by_tags = load(tmp_path / "tags", tagged)
    source = write(tmp_path / f"spans.{ending}", rows)
    by_spans = load_dataset(source, keep_few=True)
    assert (by_spans.task_type, by_spans.labels) == ("token", by_tags.labels)
    assert by_spans.digest == by_tags.digest
    measured = load_split(source, ReadOptions(), "token", by_tags.labels)
    assert measured.split.gold == by_tags.splits["train"].gold
    assert [*measured.table] == ["text", column], "predictions are written beside the file's own columns"


@pytest.mark.parametrize("write_span", [lambda *span: span, lambda *span: [*span], named])
def test_spans_are_read_as_pandas_writes_them_to_a_csv(tmp_path, write_span):
    rows = [{"text": text, "label": [write_span(*span) for span in spans]} for text, spans in SPANS]
    source = write(tmp_path / "spans.csv", [{**row, "label": str(row["label"])} for row in rows])
    assert load_dataset(source, keep_few=True).digest == load(tmp_path, rows).digest


@pytest.mark.parametrize("form", ["pairs", "ner-annotator", "a document", "documents"])
def test_spacys_training_data_are_rows(tmp_path, form):
    pairs = [[text, {"entities": spans, "cats": {}}] for text, spans in SPANS]
    paragraphs = [{"raw": text, "entities": spans, "cats": [], "sentences": [{"tokens": []}]} for text, spans in SPANS]
    written = {
        "pairs": pairs,
        "ner-annotator": {"classes": ["CITY", "PERSON", "x"], "annotations": pairs},
        "a document": {"id": 0, "paragraphs": paragraphs},
        "documents": [{"id": 0, "paragraphs": paragraphs[:1]}, {"id": 1, "paragraphs": paragraphs[1:]}],
    }
    plain = load(tmp_path, [{"text": text, "label": spans} for text, spans in SPANS])
    read = load_dataset(write(tmp_path / "spacy.json", written[form]), keep_few=True)
    assert read.digest == plain.digest


BESIDE = [{"text": "a letter from Rome", "label": [[14, 18, "city"]]}, {"text": "nothing", "label": []}]


@pytest.mark.parametrize(
    ("text", "span", "why"),
    [
        ("call Oslo", [5, 7, "city"], "a span cuts a word"),
        ("call Oslo", [5, 10, "city"], "a span is outside of its text"),
        ("call Oslo", [9, 5, "city"], "a span is outside of its text"),
        ("call Oslo", [5, 5, "city"], "a span is empty"),
        ("call Oslo", [5.0, 9.0, "city"], "the label is no list of spans"),
        ("call Oslo", [True, 4, "city"], "the label is no list of spans"),
        ("call Oslo", [5, 9, None], "the label is no list of spans"),
        ("call Oslo", [5, 9], "the label is no list of spans"),
        ("call Oslo", [5, 9, "B-city"], "a span has the label of its entity, without the mark of a tag: city"),
    ],
)
def test_a_row_whose_span_cannot_be_used_is_left_out_and_counted(tmp_path, text, span, why):
    rows = [*BESIDE, {"text": text, "label": [span]}]
    data = load(tmp_path, rows)
    assert data.splits["train"].texts == tuple(row["text"] for row in BESIDE)
    [note] = [note for note in data.notes if "left out" in note]
    assert "1 of 3 rows have spans that cannot be used" in note
    assert f"spans.jsonl line 3: {why}" in note
    measured = load_split(str(tmp_path / "spans.jsonl"), ReadOptions(), "token", data.labels)
    assert measured.notes == (note,)
    assert measured.table["text"] == [row["text"] for row in BESIDE]
    examined = examine(str(tmp_path / "spans.jsonl"), DataOptions(), 128, lambda texts: np.zeros(len(texts), int))
    assert (examined.facts["refused"], examined.dataset.digest) == ([], data.digest)
    with pytest.raises(InvalidData, match="no row has spans that can be used"):
        load(tmp_path, [{"text": text, "label": [span]}, {"text": text, "label": [[0, 3, "city"]]}])


def test_a_span_whose_own_text_is_elsewhere_is_counted(tmp_path):
    """Label Studio counts in UTF-16: behind an emoji each place is one too high."""
    rows = [
        *BESIDE,
        {"text": "\U0001f600 in Oslo , now", "label": [{"start": 6, "end": 10, "text": "Oslo", "labels": ["x"]}]},
    ]
    [note] = [note for note in load(tmp_path, rows).notes if "left out" in note]
    assert "line 3: a span's own text is elsewhere" in note
    rows[-1]["label"][0] |= {"start": 5, "end": 9}
    assert not any("left out" in note for note in load(tmp_path, rows).notes)


def test_spans_that_overlap_or_stand_at_one_place_are_counted_by_row_and_reason(tmp_path):
    overlap = {"text": "call Ana Horvat", "label": [[5, 15, "person"], [9, 15, "family"]]}
    twice = {"text": "call Ana Horvat", "label": [{"start": 5, "end": 8, "labels": ["person", "city"]}]}
    outside = {"text": "call", "label": [[0, 5, "city"]]}
    data = load(tmp_path, [overlap, *BESIDE, twice, outside])
    [note] = [note for note in data.notes if "left out" in note]
    assert "3 of 5 rows" in note
    assert "spans.jsonl lines 1 and 4: two spans overlap" in note
    assert "spans.jsonl line 5: a span is outside of its text" in note


@pytest.mark.parametrize(
    ("text", "span", "words", "marked"),
    [
        ("call Oslo, please", [5, 9], ["call", "Oslo", ",", "please"], ["Oslo"]),
        ("call Oslo please", [4, 10], ["call", "Oslo", "please"], ["Oslo"]),
        ("(New York-based)", [1, 9], ["(", "New", "York", "-", "based", ")"], ["New", "York"]),
        ("call  Oslo\tnow", [6, 10], ["call", "Oslo", "now"], ["Oslo"]),
        ("call Jose\u0301, now", [5, 10], ["call", "Jose\u0301", ",", "now"], ["Jose\u0301"]),
        ("\u092e\u0948\u0902, now", [0, 1], ["\u092e\u0948\u0902", ",", "now"], ["\u092e\u0948\u0902"]),
        ("去东京了", [1, 3], ["去", "东", "京", "了"], ["东", "京"]),
        ("オスロに", [0, 3], ["オスロ", "に"], ["オスロ"]),
        ("go \U0001f600 Oslo!", [5, 9], ["go", "\U0001f600", "Oslo", "!"], ["Oslo"]),
    ],
)
def test_words_end_where_spans_do(tmp_path, text, span, words, marked):
    data = load(tmp_path, [{"text": text, "label": [[*span, "x"]]}, {"text": "nothing here", "label": []}])
    split = data.splits["train"]
    assert split.texts[0] == text
    assert words_of(split, 0) == words
    assert [word for word, tag in zip(words, tags_of(data, 0), strict=True) if tag != "O"] == marked


def test_spans_are_read_for_a_task_by_its_own_tags(tmp_path):
    def gold(*labels, label="city"):
        path = write(tmp_path / "spans.jsonl", [{"text": "to New York", "spans": [[3, 11, label]]}])
        [tags] = load_split(path, ReadOptions(), "token", labels).split.gold
        return [labels[tag] for tag in tags]

    assert gold("B-city", "I-city", "O") == ["O", "B-city", "I-city"]
    assert gold("I-city", "O") == ["O", "I-city", "I-city"], "IOB1"
    assert gold("B-city", "I-city", "O", "I-person") == ["O", "B-city", "I-city"]
    for label in ("B-cell", "I-beam"):
        assert gold(f"B-{label}", f"I-{label}", "O", label=label) == ["O", f"B-{label}", f"I-{label}"]
        with pytest.raises(InvalidData, match="without the mark of a tag"):
            gold("B-cell-line", "I-cell-line", "O", label=label)
    assert gold("city", "O") == ["O", "city", "city"], "words, not entities"
    with pytest.raises(InvalidData, match="line 1: the label 'B-city' is not one of the 3 known"):
        gold("B-person", "I-person", "O")
    with pytest.raises(InvalidData, match="a span has several words, and the task has no tag I-city"):
        gold("B-city", "O")
    with pytest.raises(InvalidData, match="a word is in no span, and the task has no tag O"):
        gold("city", "place")


def test_a_check_refuses_data_whose_spans_cannot_be_used_in_any_row(tmp_path):
    source = write(tmp_path / "spans.jsonl", [{"text": "call Oslo", "label": [[5, 40, "city"]]}] * 2)
    examined = examine(source, DataOptions(), 128, lambda texts: np.array([len(text) for text in texts]))
    assert examined.facts["refused"] == [
        "no row has spans that can be used: spans.jsonl lines 1 and 2: a span is outside of its text"
    ]


def test_rows_without_labels_are_refused_or_dropped_and_rows_without_entities_are_not(tmp_path):
    rows = [*BESIDE, {"text": "from Oslo", "label": [[5, 9, "city"]]}, {"text": "not labeled", "label": None}]
    with pytest.raises(InvalidData, match="line 4: there is no label"):
        load(tmp_path, rows)
    source = write(tmp_path / "spans.jsonl", rows)
    labeled = load_dataset(source, DataOptions(drop_unlabeled=True), keep_few=True)
    assert labeled.splits["train"].texts == ("a letter from Rome", "from Oslo"), "an empty list may be no label"


@pytest.mark.parametrize("text", [None, 5, " "])
def test_a_row_with_spans_and_without_a_text_says_that_the_text_is_missing(tmp_path, text):
    with pytest.raises(InvalidData, match="line 3: the text is empty or not a text"):
        load(tmp_path, [*BESIDE, {"text": text, "label": []}])
