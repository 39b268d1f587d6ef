"""The reader against the library `csv` and against shuffled rows: every dialect, every encoding, every order."""

import csv
import gzip
import io
import json
from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from onebert_store.errors import InvalidData
from onebert_store.tables.sample import sample_of
from onebert_store.tables.tables import read_file
from table_files import file

HEADER = ("text", "label", "n")
LATIN = "abc äöüßéèçñ,;\t'\"\n—’€"


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
    found = read_file(file("a.csv.gz" if packed else "a.csv", gzip.compress(content, 1) if packed else content))
    assert list(found) == list(HEADER)
    assert rows_of(found) == [list(row) for row in rows]
    unusual = "a.csv" + ".gz" * packed + f": {'semicolons' if delimiter == ';' else 'tabs'} are between the columns"
    assert (unusual in found.notes) == (delimiter != ",")


# Real text, with more plain letters than accented ones, as what is written in these languages has.
@given(rows=cells(LATIN), delimiter=st.sampled_from(",;\t"))
def test_western_text_in_one_byte_is_read_and_said_or_refused_but_never_read_wrong(rows, delimiter):
    rows = [(f"{text} and some more plain letters", *rest) for text, *rest in rows]
    content = written([HEADER, *rows], delimiter=delimiter, lineterminator="\n").encode("cp1252")
    # A few signs may be UTF-8 by chance, as `ß—` is, and are read as that; whole texts are not.
    assume(content.isascii() or "\ufffd" in content.decode(errors="replace"))
    with suppress(InvalidData):
        found = read_file(file("a.csv", content))
        assert rows_of(found) == [list(row) for row in rows]
        assert content.isascii() or any("read as cp1252" in note for note in found.notes)


WESTERN = (
    "Die Straße ist länger, als wir gehört haben – schön war's trotzdem",
    "Où est passée la façade ? À côté de l’hôtel, bien sûr…",
    "El niño comió piñones ¿y después qué?",
    "Três maçãs não são pêssegos: custam 5 €",
    "Jag åt smörgås på ön igår. Hyvää päivää!",
    "Það er gott að sjá þig, ég á hús í Reykjavík og þú ert í bænum",
    "Perché no? È già finito, così è la vita.",
    "Amanhã à noite há reunião, é às três.",
    "§§ 3 und 4 gelten für „große“ Übungen über 20 °C",
    "it’s – “fine” • 5 €",
)
# The bytes of their words of one letter with an accent are letters in Cyrillic, too.
GUESSED = ("Il va à Paris demain", "La pizza è buona", "Isto é bom", "Uno ó dos", "En ö i en å", "süß", "« été »")


@pytest.mark.parametrize("sentence", [*WESTERN, *GUESSED])
def test_sentences_of_western_languages_are_found_and_said_to_be_a_guess_where_they_are(sentence):
    found = read_file(file("a.csv", f"text;label\n{sentence};a\nplain;b\n".encode("cp1252")))
    assert found["text"] == [sentence, "plain"]
    (note,) = (note for note in found.notes if "read as cp1252 (Western European Windows)" in note)
    doubt = ", though the few words with accents may as well be of another encoding" * (sentence in GUESSED)
    assert f"Windows){doubt}; if letters come out wrong" in note


@pytest.mark.parametrize(
    ("sentence", "encoding"),
    [
        *(
            (russian, encoding)
            for russian in ("Съешь же ещё этих мягких французских булок", "нет, я в доме и у окна", "Очень плохо")
            for encoding in ("cp1251", "koi8-r", "cp866", "iso8859-5", "mac_cyrillic")
        ),
        *(
            (ukrainian, encoding)
            for ukrainian in ("Жебракують філософи при ґанку церкви в Гадячі", "їжа є, і я її їм", "Дякую за допомогу")
            for encoding in ("cp1251", "koi8-u")
        ),
        ("да", "cp1251"),
        ("Die Straße ist länger, als wir gehört haben", "cp850"),
        ("Příliš žluťoučký kůň úpěl ďábelské ódy", "cp1250"),
        ("Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία".replace("ὴ", "η"), "cp1253"),
        ("Zażółć gęślą jaźń, łódź płynie wolno żółwim krokiem", "iso8859-2"),
        ("これはペンです。日本語の文章", "shift_jis"),
        ("这是一个中文句子，用来测试", "gbk"),
    ],
)
def test_text_of_other_languages_is_asked_for(sentence, encoding):
    content = f"text\tlabel\nplain\tb\n{sentence}\ta label of a good many plain letters\n".encode(encoding)
    with pytest.raises(InvalidData, match=r"a\.csv line 3 is not readable as UTF-8; say what it is with --encoding"):
        read_file(file("a.csv", content))
    assert read_file(file("a.csv", content), encoding)["text"] == ["plain", sentence]


def test_mixed_encodings_name_a_line_of_each_kind():
    lines = ["text,label", "gut,a", "süß,a", "schön,b", "größe,b"]
    mixed = b"\n".join(line.encode("cp1252" if line.startswith("sch") else "utf-8") for line in lines)
    with pytest.raises(InvalidData, match=r"mixes encodings: line 4 is not UTF-8, while line 3 is UTF-8"):
        read_file(file("a.csv", mixed))


@given(
    rows=st.lists(st.tuples(st.text("ab,; ü", min_size=1, max_size=9), st.sampled_from("xy")), min_size=2, max_size=9),
    shuffled=st.randoms(),
    encoding=st.sampled_from(["utf-8", "cp1252"]),
    delimiter=st.sampled_from(",;"),
)
def test_the_order_of_rows_never_changes_how_a_file_is_read(rows, shuffled, encoding, delimiter):
    """Also where the header has both characters and only the rows say which of them is between columns."""

    def outcome(given):
        text = written([("the text, cleaned; twice", "label"), *given], delimiter=delimiter, lineterminator="\n")
        try:
            found = read_file(file("a.csv", text.encode(encoding)))
        except InvalidData as error:
            return "refused", error.detail.partition(" line")[0]
        return tuple(found), found.notes, sorted(rows_of(found))

    other = list(rows)
    shuffled.shuffle(other)
    before, after = outcome(rows), outcome(other)
    if before[0] == "refused" or after[0] == "refused":
        assert before[0] == after[0]
    else:
        assert before == after


@given(
    objects=st.lists(
        st.dictionaries(
            st.sampled_from("abc"), st.none() | st.integers(0, 9) | st.dictionaries(st.just("d"), st.text())
        ),
        min_size=1,
        max_size=6,
    ).filter(any),
    shuffled=st.randoms(),
)
def test_the_order_of_json_lines_never_changes_the_columns(objects, shuffled):
    def content(given):
        return file("a.jsonl", "".join(f"{json.dumps(one)}\n" for one in given).encode())

    other = list(objects)
    shuffled.shuffle(other)
    sampled, again = sample_of(content(objects)), sample_of(content(other))
    assert set(sampled) == set(again)
    for name in ("a", "b", "c", "a.d", "b.d"):
        assert (name in sampled) == (name in again)
    assert set(read_file(content(objects))) == set(sampled)


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
    found = read_file(file("a.csv", "\n".join([header, *rows]).encode()))
    assert len(found) == (1 if delimiter is None else 2)


def test_columns_without_a_name_are_called_by_their_place():
    found = read_file(file("a.csv", b"text;label;;\na;b;;\n"))
    assert list(found) == ["text", "label", "column 3", "column 4"]


@pytest.mark.parametrize("before", ["\n", "\r\n\r\n", "  \n", "{0}{0}\n\n"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_blank_rows_before_the_header_are_no_header(before, delimiter):
    rows = [("text", "label"), ("one, two; three", "b"), ("four", "")]
    content = before.format(delimiter) + written(rows, delimiter=delimiter, lineterminator="\n")
    found = read_file(file("a.csv", content.encode()))
    assert list(found) == ["text", "label"]
    assert rows_of(found) == [["one, two; three", "b"], ["four", ""]]
    assert found.place(0) == {"line": before.count("\n") + 2}
    with pytest.raises(InvalidData, match=rf"a\.csv line {before.count(chr(10)) + 4}: 3 cells under 2 columns"):
        read_file(file("a.csv", content.encode() + f"a{delimiter}b{delimiter}c\n".encode()))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
@pytest.mark.parametrize("name", ["a.txt", "a.TXT.gz"])
def test_a_text_file_has_a_text_per_line(name, encoding):
    content = 'das Päckchen, "spät"; \r\n \r\n{"text": 1}\nende'.encode(encoding)
    found = read_file(file(name, gzip.compress(content) if name.endswith("gz") else content))
    assert dict(found) == {"text": ['das Päckchen, "spät"; ', '{"text": 1}', "ende"]}
    assert [found.places[row].number for row in range(3)] == [1, 3, 4]
