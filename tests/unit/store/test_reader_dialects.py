"""The reader against the library `csv` and against shuffled rows: every dialect, every encoding, every order."""

import csv
import gzip
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidData
from onebert_store.tables.tables import read_file
from table_files import file

HEADER = ("text", "label", "n")


def rows_of(table):
    return [list(row) for row in zip(*table.values(), strict=True)]


def written(rows, **dialect):
    out = io.StringIO()
    csv.writer(out, **dialect).writerows(rows)
    return out.getvalue()


def cells(alphabet):
    text = st.text(alphabet, max_size=12)
    # A row of which nothing is written is a blank line, which is no row.
    return st.lists(st.tuples(text.map("t{}".format), text, text), min_size=1, max_size=8)


@given(
    rows=cells(st.characters(codec="utf-8", exclude_characters="\r\0", exclude_categories=["Cs"])),
    delimiter=st.sampled_from(",;\t"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"]),
    packed=st.booleans(),
)
def test_what_the_csv_library_writes_is_read_back(rows, delimiter, quoting, end, encoding, packed):
    text = written([HEADER, *rows], delimiter=delimiter, quoting=quoting, lineterminator=end)
    content = text.encode(encoding)
    table = read_file(file("a.csv.gz" if packed else "a.csv", gzip.compress(content, 1) if packed else content))
    assert list(table) == list(HEADER)
    assert rows_of(table) == [list(row) for row in rows]
    unusual = "a.csv" + ".gz" * packed + f": {'semicolons' if delimiter == ';' else 'tabs'} are between the columns"
    assert (unusual in table.notes) == (delimiter != ",")


CZECH = (
    "Objednávka dorazila pozdě a krabice byla poškozená.",
    "Chtěl bych vrátit zboží, které mi nesedí.",
    "Zákaznická linka mi nikdo nezvedá už třetí den.",
    "Peníze mi ještě nebyly vráceny na účet.",
)
TURKISH = (
    "Sipariş geç geldi ve kutu hasarlıydı.",
    "Ürünü iade etmek istiyorum, bedeni olmadı.",
    "Müşteri hizmetleri üç gündür telefonu açmıyor.",
    "Uygulama sürekli kapanıyor, giriş yapamıyorum.",
    "Hızlı yardımınız için teşekkürler, çok memnun kaldım.",
    "Param hâlâ hesabıma iade edilmedi.",
    "Tişörtün rengi fotoğraftaki gibi değil.",
    "Kurye paketi haber vermeden komşuya bırakmış.",
)
GERMAN = ("Die Straße ist länger, als wir gehört haben", "Bitte ändern Sie schön die Größe", "Danke für die Hilfe")
RUSSIAN = ("Заказ пришёл поздно, и коробка была повреждена.", "Прошу изменить адрес доставки.")
JAPANESE = (
    "注文した商品が遅れて届き、箱が壊れていました。",
    "返金がまだ口座に振り込まれていません。",
    "サイズが合わないので返品したいです。",
    "三日前からお客様窓口に電話がつながりません。",
    "アプリがすぐに終了してログインできません。",
)


@pytest.mark.parametrize(
    ("sentences", "encoding"),
    [
        (CZECH, "cp1250"),
        (TURKISH, "cp1254"),
        (GERMAN, "cp1252"),
        (RUSSIAN, "cp1251"),
        (JAPANESE, "shift_jis"),
    ],
)
def test_an_encoding_is_guessed_from_all_rows_and_said(sentences, encoding):
    rows = [f"{first} {second};a" for first in sentences for second in sentences]
    for order in (rows, rows[::-1]):
        table = read_file(file("a.csv", "\n".join(["text;label", "plain;b", *order]).encode(encoding)))
        assert table["text"] == ["plain", *(row[:-2] for row in order)]
        assert any("is not UTF-8 and is read as" in note and "--encoding" in note for note in table.notes)


def test_bytes_of_no_encoding_are_asked_for():
    with pytest.raises(InvalidData, match=r"a\.csv line 3 is not readable as UTF-8; say what it is with --encoding"):
        read_file(file("a.csv", b"text,label\nplain,b\n\xff\x81\x8d\x01\x02\x90\x9d\xff\xfe,a\n"))


@pytest.mark.parametrize(
    ("header", "rows", "delimiter"),
    [
        ("text, cleaned;label", ["one, two;a", "three;b"], ";"),
        ("text; cleaned,label", ["one; two,a", "three,b"], ","),
        ('"two\nlines";label', ["x;a"], ";"),
        ("text", ["one; two", "three; four"], None),
    ],
)
def test_the_rows_decide_where_a_header_has_several(header, rows, delimiter):
    table = read_file(file("a.csv", "\n".join([header, *rows]).encode()))
    assert len(table) == (1 if delimiter is None else 2)


@pytest.mark.parametrize("before", ["\n", "\r\n\r\n", "  \n", "{0}{0}\n\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_blank_rows_before_the_header_are_no_header(before, delimiter):
    rows = [("text", "label"), ("one, two; three", "b"), ("four", "")]
    content = before.format(delimiter) + written(rows, delimiter=delimiter, lineterminator="\n")
    table = read_file(file("a.csv", content.encode()))
    assert list(table) == ["text", "label"]
    assert rows_of(table) == [["one, two; three", "b"], ["four", ""]]
    assert table.place(0) == {"line": before.count("\n") + 2}
    with pytest.raises(InvalidData, match=rf"a\.csv line {before.count(chr(10)) + 4}: 3 cells under 2 columns"):
        read_file(file("a.csv", content.encode() + f"a{delimiter}b{delimiter}c\n".encode()))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
@pytest.mark.parametrize("name", ["a.txt", "a.TXT.gz"])
def test_a_text_file_has_a_text_per_line(name, encoding):
    content = 'das Päckchen, "spät"; \r\n \r\n{"text": 1}\nende'.encode(encoding)
    table = read_file(file(name, gzip.compress(content) if name.endswith("gz") else content))
    assert dict(table) == {"text": ['das Päckchen, "spät"; ', '{"text": 1}', "ende"]}
    assert [table.places[row].number for row in range(3)] == [1, 3, 4]
