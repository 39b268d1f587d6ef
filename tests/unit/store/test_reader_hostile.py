"""Files made to break the reader: one clear line each, never a traceback."""

import gzip
import io
from contextlib import suppress

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidData
from onebert_store.tables import tables
from onebert_store.tables.file import File
from onebert_store.tables.records import READERS
from onebert_store.tables.sample import sample_of
from onebert_store.tables.tables import read_file
from onebert_store.tables.text import json_rows, lines
from table_files import book, file, replaced


def parquet():
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"] * 99, "label": ["b"] * 99}), out)
    return out.getvalue()


TABLE = book(One=[("text", "label"), ("a", "b")])
SHEET = "xl/worksheets/sheet1.xml"
LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a "lol">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True))
    + "]><worksheet><sheetData><row><c t='inlineStr'><is><t>&j;</t></is></c></row></sheetData></worksheet>"
)
FAR = (
    '<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>'
    '<row><c t="inlineStr"><is><t>text</t></is></c></row>'
    '<row r="999999999999"><c t="inlineStr"><is><t>a</t></is></c></row></sheetData></worksheet>'
)
BIG = b"x" * (16 * 2**20 + 1)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\na,b\nc\0,d\n", "a.csv line 3 has a byte 0; is it a text file?"),
        ("a.csv", b'text,label\na,b\n"' + BIG + b'",b\n', "a.csv line 3 is not CSV: a cell has more than 16,777,216"),
        ("a.csv", b'text,label\na,b\n"c,d\ne,f\n', "a.csv line 3 is not CSV: a quote is left open"),
        ("a.csv", b"text,label\na,b\nc\nd\ne,f\n", "a.csv lines 3 and 4: 1 cell under 2 columns"),
        ("a.csv", b"text,text\na,b\n", "a.csv: two columns have one name"),
        ("a.csv", "text,label\nä,b\n".encode("utf-16")[:-1], r"a.csv line \d is not readable as utf-16"),
        (
            "a.csv",
            "text,label\nsüß,b\n".encode() + "größe,b\n".encode("cp1252"),
            "a.csv mixes encodings: line 3 is not UTF-8",
        ),
        ("a.csv.gz", gzip.compress(b"text,label\n" + b"a,b\n" * 999, mtime=0)[:-20], "a.csv.gz is not readable"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n[1]\n', "a.jsonl lines 2 and 3: not a JSON object"),
        ("a.json", b'[{"text": "a"},\n {"text": }]', "a.json line 2 is not JSON: Expecting value"),
        ("a.json", b'[{"text": "a"},\n {"text": "b"}', "a.json line 2 is not JSON: , is missing"),
        ("a.json", b'[{"text": "a"}]\n[1]', "a.json line 2 is not JSON: something follows"),
        ("a.json", b'[{"text": "a"}, 7]', "a.json row 2: not a JSON object"),
        ("a.json", b'[{"text": ' + b"[" * 99999, "a.json line 1 is not JSON: it is nested too deeply"),
        ("a.json", b'{"data": []}', "a.json has no rows"),
        ("a.json", b"", "a.json has neither an array of JSON objects nor"),
        ("a.json", b'{"text": ["a", "b"], "label": ["c"]}', "a.json: the columns have different numbers of rows"),
        (
            "a.json",
            b'{"columns": ["text", "label"], "data": [["a", "b"], ["c"], ["d", "e", "f"]]}',
            "a.json rows 2 and 3: not as many cells as there are columns, 2",
        ),
        ("a.xlsx", b"PK\x03\x04 nonsense", r"a.xlsx is not readable \(no workbook\)"),
        ("a.xlsx", book(One=[("text", "label"), ("a", "b"), ("c", "d", "e")]), "a.xlsx row 3: 3 cells under 2 columns"),
        ("a.xlsx", book(One=[]), "a.xlsx has no rows"),
        ("a.xlsx", replaced(TABLE, SHEET, "<worksheet><sheetData><row>"), "not readable"),
        ("a.xlsx", replaced(TABLE, SHEET, LAUGHS), "a.xlsx is not readable"),
        ("a.xlsx", replaced(TABLE, SHEET, FAR), "a.xlsx has more than 1,048,576 rows"),
        ("a.parquet", parquet()[:-200], "a.parquet is not readable"),
        ("a.parquet", parquet()[:4] + b"\xff" * 90 + parquet()[94:], "a.parquet is not readable|has no rows"),
        ("a.arrow", b"ARROW1 nonsense", "a.arrow is not readable"),
    ],
)
def test_what_is_wrong_is_one_line(name, content, message):
    with pytest.raises(InvalidData, match=message) as caught:
        read_file(file(name, content))
    assert "\n" not in caught.value.detail
    assert len(caught.value.detail) < 400


class Endless(io.RawIOBase):
    """Bytes that begin somehow and go on without an end; it is an error that more than `most` are asked for."""

    def __init__(self, first, again, most):
        self._first, self._again, self._most, self.given = first, again * (1 + 2**16 // len(again)), most, 0

    def readable(self):
        return True

    def readinto(self, buffer):
        part = self._first[: len(buffer)]
        self._first = self._first[len(part) :] or self._again
        self.given += len(part)
        assert self.given < self._most, "it is read on and on"
        buffer[: len(part)] = part
        return len(part)


@pytest.mark.parametrize(
    ("name", "first", "again", "message"),
    [
        ("a.csv", b"text,label\na,b\n", b"no line end, ", "line 3 is not CSV: a row has more than 65,536 characters"),
        ("a.csv", b'text,label\na,b\n"x\n', b'","x\n', "line 3 is not CSV: a row has more than 65,536 characters"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "', b"x", "line 3: a row has more than 65,536 characters"),
        ("a.json", b'[{"text": "a"},\n{"text": "', b"x", "line 2 is not JSON: a value has more than 65,536 characters"),
        ("a.json", b'{"data": [', b'{"text": "a"},', "line 1 is not JSON: a value has more than 131,072 characters"),
        ("a.json", b'[{"text": ' + b"9" * 9999, b"9", "line 1 is not JSON: a number is too long"),
    ],
)
def test_a_file_without_an_end_is_refused_at_a_row_without_one(monkeypatch, name, first, again, message):
    for module in (lines, json_rows):
        monkeypatch.setattr(module, "MAX_ROW_CHARACTERS", 2**16)
    monkeypatch.setattr(json_rows, "MAX_WHOLE", 2**17)
    endless = File(name, lambda: io.BufferedReader(Endless(first, again, 2**23)))
    # Said, since to find the encoding a file is read to its end.
    with pytest.raises(InvalidData, match=message):
        read_file(endless, "utf-8")


def test_rows_that_share_no_column_are_refused(monkeypatch):
    monkeypatch.setattr(tables, "_EMPTY", 2**18)
    content = b"".join(b'{"k%d": 1}\n' % i for i in range(30_000))
    with pytest.raises(InvalidData, match=r"a\.jsonl has [\d,]+ columns of which nearly all cells are empty"):
        read_file(file("a.jsonl", content))
    assert len(sample_of(file("a.jsonl", content))) == 30_000


@given(
    name=st.sampled_from([f"a{ending}" for ending in (*READERS, ".txt", ".txt.gz")]),
    content=st.binary(max_size=200),
    good=st.sampled_from([b"", b"text,label\na,b\n", b'[{"text": "a"}]', TABLE, parquet()]),
    cut=st.integers(0, 6000),
)
def test_whatever_the_bytes_are_a_file_is_read_or_refused(name, content, good, cut):
    made = good[:cut] + content + good[cut:]
    for packed in (made, gzip.compress(made, 1)):
        with suppress(InvalidData):
            assert read_file(file(name, packed)).rows > 0
