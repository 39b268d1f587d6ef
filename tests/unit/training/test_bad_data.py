"""Data that cannot be used is refused in one line, which names the rows, the column or the file."""

import sys
from types import ModuleType

import pytest

from labeled_files import ROWS, jsonl, lines, load, parquet, write
from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.tables.columns import Columns
from onebert_store.tables.tables import read_source
from onebert_training.data.dataset import load_dataset, load_split
from onebert_training.data.options import DataOptions, ReadOptions

TEN = [("t", label) for label in "xy"] * 5
STARS = ["1", "2", "3", "4", "5"]
LIST = "labels.json"
AMBIGUOUS = "can be names or indices"
LATE = [("t", "late"), ("u", "size")] * 5
CONTEXT = "The Panthers gave up just 308 points, ranking sixth in the league."
ANSWER = {"text": ["308", "308 points"], "answer_start": [26, 26]}
ASKED = ("question", "context", "answers")
WORDS = ("words", "tags")
THREE = {LIST: {"labels": ["A", "B", "C"]}}


def stars(cells, listed=STARS):
    rows = [(f"t{i}", star) for i, star in enumerate(cells)]
    return {"train.csv": rows, "validation.csv": rows, LIST: {"labels": listed}}


def columns(row, header=("text", "low", "middle", "high")):
    return lines([*((f"t{i}", i % 3 == 0, i % 3 == 1, i % 3 == 2) for i in range(30)), row], header)


def words(*rows, validation=(("a b", "A B"),)):
    return {"train.jsonl": jsonl(rows, WORDS), "validation.jsonl": jsonl(validation, WORDS)}


def question(*row):
    return {"train.jsonl": jsonl([("How many?", CONTEXT, ANSWER), row], ASKED)}


EMPTY = [("", "x"), ("t", ""), (" ", "y"), ("\u200b", "y")]
BY_COLUMN = {"label": "low,middle,high", "task_type": "single_label"}
REFUSED = [
    *((stars(cells), {}, AMBIGUOUS) for cells in ([1, 2, 3, 4], [0, 1, 2, 5], ["1|2", "3", "4"])),
    (stars([0, 1, "9" * 5000], ["no", "yes"]), {}, r"train\.csv line 4: no label has the name or index '9999"),
    *(
        ({"a.csv": [*ROWS, ('[""' * 99999, "[" * 99999)]}, {"task_type": task_type}, message)
        for task_type, message in (
            ("multi_label", r"^a\.csv line"),
            ("token", r"^a\.csv line"),
            ("span", "a span task has a question and a context"),
        )
    ),
    ({"a.csv": lines(TEN, ("body", "label"))}, {}, r"a.csv: no text column; .*\(the columns are body, label\)"),
    ({"a.csv": lines(TEN, ("text", "kind"))}, {}, "a.csv: no label column"),
    ({"a.csv": lines(ROWS, ("text number 41", "spam"))}, {}, "is the first line not a header"),
    ({"a.csv": ROWS}, {"text": "text", "label": "toxic,rude"}, "no column toxic"),
    ({"a.csv": [*TEN, *EMPTY]}, {}, "lines 12, 14 and 15: the text is empty.*a.csv line 13: there is no label"),
    ({"a.csv": [*TEN, *[("t", "")] * 30]}, {}, "lines 12, 13, 14, .* 20, 21 and 20 more: there is no label"),
    ({"a.csv": [("t", "x")] * 20}, {}, "all training rows have the same label"),
    ({"a.csv": [("t", "x"), ("t", "y")] * 8}, {}, "all training rows have the same text"),
    ({"a.csv": [("good", "x"), ("bad", "y")] * 10}, {}, "after 10 of 20 .* rows that are left have the same"),
    ({"a.csv": [("t", n) for n in ("0.5", "1", "1e39")] * 5}, {}, "a.csv lines 4, 7, .* 16: the label is not a n"),
    ({"a.csv": [("a", "0.5"), ("b", "1e30")]}, {}, "a.csv line 3: the label is not a number, or too large"),
    ({"a.jsonl": '{"label": 0.5, "text": "a"}\n{"label": 1%s, "text": "b"}' % ("0" * 400)}, {}, "2: the label is not"),
    ({"a.csv": TEN[:4]}, {}, "at least 10 training rows"),
    ({"a.csv": ROWS}, {"validation_share": 1.0}, "above 0 and below 1"),
    ({"a.jsonl": b'{"text": "\\ud800", "label": "x"}\n'}, {}, "a.jsonl line 1: the text has half of a surrogate pair"),
    ({"a.jsonl": [(7, "x")]}, {}, "a.jsonl line 1: the text is empty or not a text"),
    ({"a.xls": b""}, {}, r"a.xls: the name ends in one of .csv"),
    ({"a.txt": "__label__late where is it\n" * 20}, {}, "a.txt: no label column"),
    ({"a.parquet": parquet([("t", 1.0)] * 7 + [("t", None)])}, {}, r"a\.parquet row 8: there is no label"),
    ({"a.jsonl": [("t", ["a"]), ("t", ["a", "b"])] * 5}, {"task_type": "single_label"}, "task has several labels"),
    # A column for each label.
    ({"a.csv": columns(("t", 1, 1, 0))}, BY_COLUMN, r"a\.csv line 32: a row of a single_label task has several labels"),
    ({"a.csv": columns(("t", 0, 0, 0))}, BY_COLUMN, r"a\.csv line 32: there is no label"),
    ({"a.csv": columns(("t", 2, 0, 0))}, {"label": "low,high"}, "line 32: the column low of a label holds neither 0"),
    ({"a.csv": columns(("t", 0, 0, 0))}, {"label": "low,rude"}, "no column rude"),
    # Labels that no file can hold.
    *(
        ({"a.jsonl": [*TEN, ("t", label)]}, {}, f"^a.jsonl line 11: the label has {fault}$")
        for label, fault in (
            ("bad; awful\nlines", "a line break or another control character"),
            ("a\u2028b", "a line break or another control character"),
            ("\u200b", "no visible character"),
            ("x" * 257, "over 256 characters"),
            ("\ud800", "half a surrogate pair"),
        )
    ),
    ({"a.jsonl": [("t", ["x"]), ("t", ["y\nz"])] * 5}, {}, "^a.jsonl lines 2, .* has a line break"),
    (stars([0, 1], ["a\nb", "c"]), {}, r"the name of the label a\?b has a line break"),
    (stars([0, 1], ["a", "b", "b"]), {}, "labels are not distinct"),
    (stars([0, 1], [f"{i}th" for i in range(4097)]), {}, "4,097 labels; a task has at most 4096"),
    *(
        (
            {"train.jsonl": LATE, "validation.jsonl": [("t", rare)], LIST: {"labels": ["late", "size", "rare"]}},
            {"task_type": task_type},
            "validation split has the label 'rare', which no training row has",
        )
        for rare, task_type in (("rare", "single_label"), (["rare", "late"], "multi_label"))
    ),
    # Folders.
    ({"train.csv": ROWS, "train.jsonl": ROWS}, {}, "more than one train file"),
    ({"train.csv": ROWS, LIST: "[]"}, {}, r"labels\.json is not a JSON object"),
    ({"train.csv": ROWS, LIST: {"task_type": "ranking"}}, {}, "is not supported; single_label"),
    ({"train.csv": ROWS, LIST: {"task_type": ["span"]}}, {}, "is not supported; single_label"),
    ({"test.csv": ROWS, "dev.csv": ROWS}, {}, "no training split"),
    ({"late/1.txt": "where is it", "size/2.txt": "too small"}, {}, "no file train, validation or test"),
    (
        {"train-00000-of-00002.csv": [*ROWS, ("", "ham")], "train-00001-of-00002.csv": [("", "spam")]},
        {},
        r"^train-00000-of-00002\.csv line 42, train-00001-of-00002\.csv line 2: the text is empty or not a text$",
    ),
    # Words and their tags.
    *(
        (words(("a b", "A B"), ("b", "B"), row) | THREE, {}, f"train.jsonl line 3: {message}")
        for row, message in (
            (("one two", "A"), "2 words have 1 tags"),
            (("", ""), "the words are missing, or one is empty"),
            ((["one", " "], ["A", "B"]), "the words are missing, or one is empty"),
            ((["one", 2], ["A", "B"]), "the words are missing, or one is empty"),
            ((["one", "\ud800"], ["A", "B"]), "a word has half of a surrogate pair"),
            ((["one", "two"], ["A", None]), "there is no label"),
            (("one two", "A X"), "no label has the name or index 'X'"),
        )
    ),
    (words(("a b", "A B"), validation=[("a b", "A C")]), {}, "line 1: the label 'C' is not one of the 2 known"),
    (words(("a b", "A B"), validation=[("a b", "A C")]) | THREE, {}, "validation split has the label 'C', which no"),
    (words(("a b", "A A"), validation=[("a b", "A A")]), {}, "all training words have the same label"),
    (
        {"train.csv": lines([("a", "b", "A")] * 10, ("sentence1", "sentence2", "label"))},
        {"task_type": "token"},
        "one column of words, not a pair",
    ),
    # Questions and their answers.
    *(
        (question(*row), {}, f"train.jsonl line 2: {message}")
        for row, message in (
            (("q", CONTEXT, {"text": ["308"], "answer_start": [25]}), "an answer's text is not at its answer_start"),
            (("q", CONTEXT, {"text": ["308"], "answer_start": [-41]}), "an answer has no text or no answer_start"),
            (("q", CONTEXT, {"text": [""], "answer_start": [0]}), "an answer has no text or no answer_start"),
            (("q", CONTEXT, {"text": ["308", "1"], "answer_start": [26]}), "the answers have no lists text and"),
            (("q", CONTEXT, {"text": "308", "answer_start": 26}), "the answers have no lists text and answer_start of"),
            (("q", CONTEXT, "308"), "the answers are not of the form"),
            (("q", CONTEXT, None), "there is no answer, and every question needs one"),
            (("", CONTEXT, ANSWER), "the text is empty or not a text"),
            (("q", None, ANSWER), "the text is empty or not a text"),
        )
    ),
    (
        {"a.jsonl": jsonl([(CONTEXT, "q", ANSWER)] * 10, ("context", "text", "answers"))},
        {},
        "a span task has a question and a context",
    ),
]


@pytest.mark.parametrize(("files", "options", "message"), REFUSED)
def test_bad_data_is_refused_in_one_line(tmp_path, files, options, message):
    with pytest.raises(InvalidData, match=message) as caught:
        load(tmp_path, files, **options)
    assert "\n" not in caught.value.detail
    assert str(tmp_path) not in caught.value.detail


@pytest.mark.parametrize(
    ("files", "labels", "split", "message"),
    [
        (stars([1, 2, 3, 4]), STARS, None, AMBIGUOUS),
        ({"a.csv": ROWS}, ["good", "bad"], None, "no label of the data, 'ham', 'spam', is one of .* 'good', 'bad'"),
        ({"test.csv": ROWS[:5], "train.csv": ROWS}, ["spam"], None, r"test\.csv lines 3, 4 and 5: the label 'ham' is"),
        ({"a.csv": [*LATE, ("u", "late;size")]}, ["late", "size"], None, "line 12: .*--label-separator ';' reads sev"),
    ],
)
def test_rows_of_other_labels_are_not_measured(tmp_path, files, labels, split, message):
    task_type = "multi_label" if "late" in labels else "single_label"
    with pytest.raises(InvalidData, match=message):
        load_split(write(tmp_path, files), ReadOptions(), task_type, labels, split)


def test_what_is_not_there_is_one_line(tmp_path):
    for encoding in ("klingon", "zlib"):
        with pytest.raises(InvalidSettings, match=f"there is no encoding '{encoding}'"):
            load(tmp_path, {"a.csv": ROWS}, encoding=encoding)
    with pytest.raises(InvalidData, match="text_pair needs one for text"):
        Columns(text_pair="title")
    with pytest.raises(InvalidData, match="neither a file nor a folder"):
        load_dataset(str(tmp_path / "nothing"), DataOptions())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("Invalid pattern: '**'\nmore"), "ValueError: Invalid pattern: '\\*\\*'$"),
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
