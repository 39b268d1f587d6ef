"""Files made to break the reader: one clear line each, never a traceback, never more memory than is bounded."""

import gzip
import io
import zipfile
from contextlib import suppress

import openpyxl
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidData
from onebert_store.tables import sheet
from onebert_store.tables.file import File
from onebert_store.tables.files import Faults, read_file
from onebert_store.tables.records import READERS
from onebert_store.tables.text import json_rows


def file(name, content):
    return File(name, lambda: io.BufferedReader(io.BytesIO(content)))


def workbook(rows=(("text", "label"), ("a", "b"))):
    book, out = openpyxl.Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    book.save(out)
    return out.getvalue()


def parquet():
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"] * 99, "label": ["b"] * 99}), out)
    return out.getvalue()


def replaced(content, member, data):
    """A workbook with another member in the place of one."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, data if name == member else old.read(name))
    return out.getvalue()


LAUGHS = (
    '<!DOCTYPE x [<!ENTITY a "lol">'
    + "".join(f'<!ENTITY {b} "{f"&{a};" * 10}">' for a, b in zip("abcdefghi", "bcdefghij", strict=True))
    + "]><worksheet><sheetData><row><c t='inlineStr'><is><t>&j;</t></is></c></row></sheetData></worksheet>"
)
BIG = b"x" * (16 * 2**20 + 1)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"text,label\na,b\nc\0,d\n", "a.csv line 3 has a byte 0; is it a text file?"),
        ("a.csv", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a.csv line 3 has a byte 0"),
        ("a.csv", b'text,label\na,b\n"' + BIG + b'",b\n', "a.csv line 3 is not CSV: a cell has more than 16,777,216"),
        ("a.csv", b'text,label\na,b\n"c,d\ne,f\n', "a.csv line 3 is not CSV: a quote is left open"),
        ("a.csv", b"text,label\na,b\nc\nd\ne,f\n", "a.csv lines 3 and 4: 1 cells under 2 columns"),
        ("a.csv", b"text,text\na,b\n", "a.csv: two columns have one name"),
        ("a.csv", "text,label\nä,b\n".encode("utf-16")[:-1], r"a.csv line \d is not readable as utf-16"),
        (
            "a.csv",
            "text,label\nsüß,b\n".encode() + "größe,b\n".encode("cp1252"),
            "a.csv mixes encodings: line 2 is UTF-8",
        ),
        ("a.csv.gz", gzip.compress(b"text,label\n" + b"a,b\n" * 999)[:-20], "a.csv.gz is not readable"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n[1]\n', "a.jsonl lines 2 and 3: not a JSON object"),
        ("a.json", b'[{"text": "a"},\n {"text": }]', "a.json line 2 is not JSON: Expecting value"),
        ("a.json", b'[{"text": "a"},\n {"text": "b"}', "a.json line 2 is not JSON: , is missing"),
        ("a.json", b'[{"text": "a"},\n]', "a.json line 2 is not JSON: a value is missing"),
        ("a.json", b'[{"text": "a"}]\n[1]', "a.json line 2 is not JSON: something follows"),
        ("a.json", b'[{"text": "a"}, 7]', "a.json row 2: not a JSON object"),
        ("a.json", b'[{"text": ' + b"[" * 99999, "a.json line 1 is not JSON: it is nested too deeply"),
        ("a.json", b'[{"text": ' + b"9" * 9999 + b"}]", "a.json line 1 is not JSON: a number is too long"),
        ("a.json", b'"text"', "a.json has neither an array of JSON objects nor"),
        ("a.json", b"", "a.json has neither an array of JSON objects nor"),
        ("a.json", b'{"text": ["a", "b"], "label": ["c"]}', "a.json: the columns have different numbers of rows"),
        ("a.xlsx", b"PK\x03\x04 nonsense", r"a.xlsx is not readable \(no workbook\)"),
        ("a.xlsx", workbook()[:-300], r"a.xlsx is not readable"),
        ("a.xlsx", workbook([("text", "label"), ("a", "b"), ("c", "d", "e")]), "a.xlsx row 3: 3 cells under 2 columns"),
        ("a.xlsx", workbook([]), "a.xlsx has no rows"),
        ("a.xlsx", replaced(workbook(), "xl/worksheets/sheet1.xml", "<worksheet><sheetData><row>"), "not readable"),
        ("a.xlsx", replaced(workbook(), "xl/worksheets/sheet1.xml", LAUGHS), "a.xlsx is not readable"),
        ("a.parquet", parquet()[:-200], "a.parquet is not readable"),
        ("a.parquet", parquet()[:4] + b"\xff" * 90 + parquet()[94:], "a.parquet is not readable|has no rows"),
        ("a.arrow", b"ARROW1 nonsense", "a.arrow is not readable"),
        ("a.arrow", b"\xff\xff\xff\xff\x10\0\0\0", "a.arrow is not readable"),
    ],
)
def test_what_is_wrong_is_one_line(name, content, said):
    with pytest.raises(InvalidData, match=said) as caught:
        read_file(file(name, content))
    assert "\n" not in caught.value.detail
    assert len(caught.value.detail) < 400


def test_a_workbook_that_unpacks_to_more_than_is_bounded_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(sheet, "MAX_UNPACKED", 2**20)
    bomb = replaced(workbook(), "xl/styles.xml", b" " * 2**21)
    assert len(bomb) < 2**14
    with pytest.raises(InvalidData, match="unpacks to more than 1,048,576 bytes; save it as CSV"):
        read_file(file("a.xlsx", bomb))


def test_a_line_without_an_end_is_bounded(monkeypatch):
    monkeypatch.setattr(json_rows, "_MOST", 2**16)
    bomb = gzip.compress(b'{"text": "a"}\n' + b'{"text": "' + b"x" * 2**20)
    with pytest.raises(InvalidData, match=r"a\.jsonl\.gz line 2 has more than 65,536 characters"):
        read_file(file("a.jsonl.gz", bomb))


def test_all_bad_rows_are_taken_note_of_and_the_good_ones_kept():
    faults = Faults()
    content = b'text,label\na,b\nc\nd,e,f\ng,h\n"open,i\n'
    found = read_file(file("a.csv", content), faults=faults)
    assert found["text"] == ["a", "g"]
    assert [(fault.number, fault.what) for fault in faults.rows] == [
        (3, "1 cells under 2 columns"),
        (4, "3 cells under 2 columns"),
    ]
    assert faults.broken == ["a.csv line 6 is not CSV: a quote is left open, or text follows a closing quote"]


@given(
    name=st.sampled_from([f"a{ending}" for ending in READERS]),
    content=st.binary(max_size=200),
    good=st.sampled_from([b"", b"text,label\na,b\n", b'[{"text": "a"}]', workbook(), parquet()]),
    cut=st.integers(0, 6000),
)
def test_whatever_the_bytes_are_a_file_is_read_or_refused(name, content, good, cut):
    made = good[:cut] + content + good[cut:]
    for packed in (made, gzip.compress(made, 1)):
        with suppress(InvalidData):
            assert read_file(file(name, packed)).rows > 0
