"""Files as people have them and files made to hurt: merged rows, words with tags, titles, halves of pairs."""

import json

import pytest

from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.suggestion import suggestion
from onebert_store.tables.columns import Columns, find_columns
from onebert_store.tables.sample import sample_of
from onebert_store.tables.table import Table
from onebert_store.tables.tables import Faults, read_file
from onebert_store.tables.text.unicode import escaped, is_blank, text_fault
from onebert_store.tables.writers import WRITERS
from table_files import book, file


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.tsv",
            'text\tlabel\nfine\tgood\n"never again\tbad\nthey said fine"\tgood\n',
            "line 3: a quote opens .* 2 lines",
        ),
        ("a.csv", 'text,label\n"never again,bad\nthey message fine",good\nfine,good\n', "line 2: a quote opens"),
        ("a.csv", 'label,text\nbad,"never again\ngood,they message fine"\n', "line 2: a quote opens"),
        ("a.csv", 'id,text,label\n1,"never,bad\n2,it,bad\n3,fine",good\n', "line 2: a quote opens a cell over 3 lines"),
        ("a.csv", 'text;label\r\n"never;bad\r\nfine";good\r\n', "line 2: a quote opens"),
        ("a.tsv", 'text\tlabel\n"' + "x\tbad\n" * 11 + 'y"\tgood\n', "over 12 lines"),
    ],
)
def test_a_quote_that_merges_rows_is_doubted(name, content, message):
    with pytest.raises(InvalidData, match=message):
        read_file(file(name, content))


@pytest.mark.parametrize(
    "cell", ["Dear all, thank you\nfor 1,000 things", "one\ntwo", "a, b\nc", "a,\nb", "x\n\ny", "one, two\nthree, four"]
)
def test_lines_of_prose_in_a_quoted_cell_are_no_rows(cell):
    assert read_file(file("a.csv", f'text,label\n"{cell}",good\n'))["text"] == [cell]
    assert read_file(file("a.csv", f'text\n"{cell}"\n'))["text"] == [cell]


WORDS = "-DOCSTART- -X- O\n\nAna NNP B-PER\nleft VBD O\n\n\nZagreb NNP B-LOC\r\n"


@pytest.mark.parametrize("name", ["a.conll", "a.iob", "a.iob2", "a.bio", "a.txt"])
def test_words_with_tags_are_sentences(name):
    table = read_file(file(name, WORDS))
    assert {column: table[column] for column in table} == {
        "tokens": ["Ana left", "Zagreb"],
        "ner_tags": ["B-PER O", "B-LOC"],
    }
    assert table.where([1]) == f"{name} line 7"


def test_words_with_tags_in_other_forms():
    tabs = read_file(file("a.conll", "# sent_id = 1\n1\tNew\tB-LOC\n2\tYork\tI-LOC\n\n1\t#\tO\n2\tx\tO\n"))
    assert tabs["tokens"] == ["New York", "# x"]
    # A number is a word where not every sentence counts its words.
    assert read_file(file("a.conll", "1 CD O\n2 CD O\n\nx NN O\n"))["tokens"] == ["1 2", "x"]
    faults = Faults()
    bad = "a O\nb\n\nc O\n\nd NN O\ne O\n\nf\tx y\tO\n\n\tO\n"
    assert read_file(file("a.conll", bad), faults=faults)["tokens"] == ["c", "f"]
    assert [fault.place.number for fault in faults.rows] == [1, 6, 11]


def test_plain_lines_end_as_lines_of_tables_do():
    assert read_file(file("a.txt", "one\rtwo\r\n\u200b\n\u3000\nthree\u2028x\n"))["text"] == [
        "one",
        "two",
        "three\u2028x",
    ]


TABLE = [("text", "label"), ("a", "x"), ("b", "y")]


def test_a_sheet_is_named():
    content = book(Summary=[("total", 1)], Data=TABLE)
    assert read_file(file("a.xlsx", content, "Data"))["text"] == ["a", "b"]
    assert read_file(file("a.xlsx", content, "Data")).notes == ()
    with pytest.raises(InvalidData, match=r"has no sheet data; is Data meant\? \(the sheets are Summary, Data\)"):
        read_file(file("a.xlsx", content, "data"))
    with pytest.raises(InvalidSettings, match=r"--sheet names a sheet of an \.xlsx workbook, which a\.csv is not"):
        read_file(file("a.csv", "text\na\n", "Data"))


def test_titles_above_the_header_of_a_sheet_are_left_out_and_said():
    table = read_file(file("a.xlsx", book(One=[("Complaints 2026",), (), ("by Ana",), *TABLE])))
    assert (table["text"], table["label"]) == (["a", "b"], ["x", "y"])
    assert table.notes == ("the header of a.xlsx is row 4: nothing above it is read",)
    assert table.where([0]) == "a.xlsx row 5"
    assert read_file(file("a.xlsx", book(One=[("text",), ("a",), ("b",)])))["text"] == ["a", "b"]


HALF = "\ud83d"


def test_half_a_surrogate_pair_has_a_word_of_its_own():
    assert text_fault("a" + HALF) == text_fault("a", HALF) == "the text has half of a surrogate pair"
    assert (
        text_fault("")
        == text_fault(None)
        == text_fault("\u200b\ufeff\u00ad \u3000")
        == "the text is empty or not a text"
    )
    assert text_fault("\u200bx", "\U0001f600", "\u2764\ufe0f") == ""
    assert [is_blank(text) for text in ("\u0301", "\t", "é", "_")] == [True, True, False, False]
    with pytest.raises(InvalidData, match=r"a\.jsonl lines 1 and 2: the name of a column has half of a surrogate pair"):
        read_file(file("a.jsonl", '{"text": "a", "k\\ud83d": 1}\n{"k\\ud83d": 2}\n{"text": "b"}\n'))
    sample_of(file("a.jsonl", '{"text": "a", "k\\ud83d": 1}\n'))


@pytest.mark.parametrize("ending", WRITERS)
def test_different_ids_stay_different_when_they_are_written(tmp_path, ending):
    ids = [f"a{HALF}", "a\ud83e", ["x", HALF], "fine"]
    with (tmp_path / f"a{ending}").open("wb") as out:
        writer = WRITERS[ending](out, ["id"], {})
        for identifier in ids:
            writer.add({"id": identifier})
        writer.end()
    written = read_file(tmp_path / f"a{ending}")["id"]
    if ending == ".jsonl":
        assert written == ids
    else:
        assert written == ["a\\ud83d", "a\\ud83e", '["x", "\\ud83d"]', "fine"]
        assert json.loads(written[2]) == ids[2]
    assert escaped("größe") == "größe"


def test_all_missing_columns_are_said_at_once_with_what_may_be_meant():
    table = Table({"review": ["a"], "stars": ["1"], "Queue": ["x"]}, "a.csv")
    with pytest.raises(InvalidData, match="no text and no label column; say which with --text and --label") as caught:
        find_columns(Table({"body": ["a"], "stars": ["1"]}, "a.csv"), Columns())
    assert "(the columns are body, stars)" in caught.value.detail
    with pytest.raises(
        InvalidData, match=r"reviews for --text; is review meant\?, no column quue for --label; is Queue meant\?"
    ):
        find_columns(table, Columns("reviews", label="quue"))
    assert suggestion("zzz", table) == ""
