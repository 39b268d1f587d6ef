"""What pandas, polars, pyarrow, openpyxl and datasets write is what our reader gives."""

import datetime
import json

import datasets
import openpyxl
import pandas
import polars
import pyarrow
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from onebert_store.errors import InvalidData
from onebert_store.tables.cells import plain
from onebert_store.tables.tables import read_file
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions

ROWS = [
    {"text": f"größe {i}, “{i}”\nin two lines; and\ta tab", "label": "ab"[i % 2], "stars": i % 5, "share": i / 4}
    for i in range(40)
]
FRAME = pandas.DataFrame(ROWS)

WRITERS = {
    "pandas.csv": lambda path: FRAME.to_csv(path, index=False),
    "pandas-index.csv": FRAME.to_csv,
    "pandas-semicolon.csv": lambda path: FRAME.to_csv(path, index=False, sep=";", encoding="utf-8-sig"),
    "pandas-utf16.tsv": lambda path: FRAME.to_csv(path, index=False, sep="\t", encoding="utf-16"),
    "pandas-cp1252.csv": lambda path: FRAME.to_csv(path, index=False, sep=";", encoding="cp1252", quoting=1),
    "pandas.csv.gz": lambda path: FRAME.to_csv(path, index=False),
    "pandas.xlsx": lambda path: FRAME.to_excel(path, index=False),
    "pandas-index.xlsx": lambda path: FRAME.to_excel(path, startrow=2),
    "pandas.parquet": FRAME.to_parquet,
    "pandas.jsonl": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "pandas.jsonl.gz": lambda path: FRAME.to_json(path, orient="records", lines=True),
    **{
        f"pandas-{orient}.json": lambda path, orient=orient: FRAME.to_json(path, orient=orient, indent=2)
        for orient in ("records", "columns", "split", "table")
    },
    "pandas-lists.json": lambda path: path.write_text(json.dumps(FRAME.to_dict(orient="list"))),
    "lines.json": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "data.json": lambda path: path.write_text(json.dumps({"version": 1, "data": ROWS}, indent=1)),
    "polars.csv": lambda path: polars.DataFrame(ROWS).write_csv(path),
    "polars-tab.tsv": lambda path: polars.DataFrame(ROWS).write_csv(path, separator="\t", include_bom=True),
    "polars.parquet": lambda path: polars.DataFrame(ROWS).write_parquet(path),
    "polars.arrow": lambda path: polars.DataFrame(ROWS).write_ipc(path),
    "polars-stream.arrow": lambda path: polars.DataFrame(ROWS).write_ipc_stream(path),
    "polars.jsonl": lambda path: polars.DataFrame(ROWS).write_ndjson(path),
    "polars.json": lambda path: polars.DataFrame(ROWS).write_json(path),
    "feather.arrow": lambda path: pyarrow.feather.write_feather(pyarrow.Table.from_pylist(ROWS), str(path)),
    "datasets.parquet": lambda path: datasets.Dataset.from_list(ROWS).to_parquet(path),
    "datasets.json": lambda path: datasets.Dataset.from_list(ROWS).to_json(path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_rows_are_those_that_were_written(tmp_path, name):
    WRITERS[name](tmp_path / name)
    table = read_file(tmp_path / name)
    assert table["text"] == [row["text"] for row in ROWS]
    assert table["label"] == [row["label"] for row in ROWS]
    # A text file and a sheet have texts; what is a number is decided where labels are read.
    assert [float(cell) for cell in table["stars"]] == [row["stars"] for row in ROWS]
    assert [float(cell) for cell in table["share"]] == [row["share"] for row in ROWS]


@pytest.mark.parametrize("name", [name for name in WRITERS if "index" not in name])
@pytest.mark.parametrize("label", ["label", "share"])
def test_a_task_is_the_same_from_every_file(tmp_path, name, label):
    WRITERS[name](tmp_path / name)
    expected = load_dataset(str(_reference(tmp_path)), DataOptions(label=label))
    dataset = load_dataset(str(tmp_path / name), DataOptions(label=label))
    assert (dataset.task_type, dataset.labels, dataset.digest) == (expected.task_type, expected.labels, expected.digest)


BYTES = {
    "binary": (pyarrow.binary(), str.encode),
    "large": (pyarrow.large_binary(), str.encode),
    "view": (pyarrow.binary_view(), str.encode),
    "fixed width": (pyarrow.binary(99), lambda text: text.encode().ljust(99, b"\0")),
    "dictionary": (pyarrow.dictionary(pyarrow.int8(), pyarrow.binary()), str.encode),
    "list": (pyarrow.list_(pyarrow.binary()), lambda text: [text.encode()]),
    "field": (pyarrow.struct({"of": pyarrow.binary()}), lambda text: {"of": text.encode()}),
}


@pytest.mark.parametrize("kind", BYTES)
@pytest.mark.parametrize(
    ("name", "write"), [("a.parquet", pyarrow.parquet.write_table), ("a.arrow", pyarrow.feather.write_feather)]
)
def test_bytes_that_are_utf8_are_texts(tmp_path, kind, name, write):
    """Databases write strings without Parquet's mark of a text."""
    as_stored, encode = BYTES[kind]
    columns = {column: pyarrow.array([encode(row[column]) for row in ROWS], as_stored) for column in ("text", "label")}
    write(pyarrow.table(columns), str(tmp_path / name))
    if kind == "list":
        table = read_file(tmp_path / name)
        assert table["label"] == [[row["label"]] for row in ROWS]
    else:
        named = {"text": "text.of", "label": "label.of"} if kind == "field" else {}
        table = load_dataset(str(tmp_path / name), DataOptions(**named))
        assert table.digest == load_dataset(str(_reference(tmp_path))).digest
    assert f"{name}: cells of bytes are read as texts where they are UTF-8: text, label" in table.notes


@pytest.mark.parametrize(
    ("label", "why"),
    [
        (b"\xff", "the label is binary, and not UTF-8"),
        ([b"\xff"], "the label is binary, and not UTF-8"),
        (datetime.timedelta(days=1), "the label is a duration"),
    ],
)
def test_bytes_that_are_no_text_and_durations_name_no_label(tmp_path, label, why):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"] * 9, "label": [label] * 9}), tmp_path / "a.parquet")
    with pytest.raises(InvalidData, match=rf"^a\.parquet rows 1, .* 8 and 9: {why}$"):
        load_dataset(str(tmp_path / "a.parquet"))
    texts = pyarrow.table({"text": [b"good", b"\xff"] * 9, "label": ["a", "b"] * 9, "picture": [b"\xff"] * 18})
    pyarrow.parquet.write_table(texts, tmp_path / "b.parquet")
    with pytest.raises(InvalidData, match=r"^b\.parquet rows 2, .* 18: the text is binary, and not UTF-8$"):
        load_dataset(str(tmp_path / "b.parquet"))


def _reference(folder):
    path = folder / "reference.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


ONE = {"text": "a", "label": "x", "meta": {"kind": 1}}
TWO = {"text": "b", "label": "y", "meta": None, "late": [1]}


@pytest.mark.parametrize(
    "content",
    [
        [ONE, TWO],
        [TWO, ONE],
        {"version": 2, "labels": ["x", "y"], "rows": [ONE, TWO]},
        {"columns": ["text", "label", "meta", "late"], "data": [["a", "x", {"kind": 1}, None], ["b", "y", None, [1]]]},
        {"text": ["a", "b"], "label": ["x", "y"], "meta": [{"kind": 1}, None], "late": [None, [1]]},
        {"text": ["a", "b"], "label": ["x", "y"], "meta": [None, None], "meta.kind": [1, None], "late": [None, [1]]},
        {
            "text": {"0": "a", "1": "b"},
            "label": {"1": "y", "0": "x"},
            "meta": {"0": {"kind": 1}, "1": None},
            "late": {"0": None, "1": [1]},
        },
    ],
)
def test_no_cell_of_json_is_lost_whatever_row_has_it(tmp_path, content):
    """Rows with other keys, and objects that come later than others, in every form that a JSON file may have."""
    (tmp_path / "a.json").write_text(json.dumps(content))
    table = read_file(tmp_path / "a.json")
    rows = zip(table["text"], table["label"], table["meta.kind"], table["late"], strict=True)
    assert sorted(rows, key=str) == [("a", "x", 1, None), ("b", "y", None, [1])]


def test_a_column_with_a_point_is_a_field(tmp_path):
    rows = [{"text": "a", "meta.kind": "x"}, {"text": "b", "meta": {"kind": "y"}}, {"text": "c", "meta": "z"}]
    for order in (rows, rows[::-1]):
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in order))
        table = read_file(tmp_path / "a.jsonl")
        assert sorted(zip(table["text"], table["meta.kind"], strict=True)) == [("a", "x"), ("b", "y"), ("c", None)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pyarrow.date32(), 2**31 - 1),
        (pyarrow.timestamp("us"), 2**62),
        (pyarrow.duration("s"), 2**62),
    ],
)
def test_a_time_that_python_has_not_is_one_bad_row(tmp_path, kind, value):
    table = pyarrow.table({"text": ["a", "b", "c"], "when": pyarrow.array([0, value, 0], kind)})
    pyarrow.feather.write_feather(table, str(tmp_path / "a.arrow"))
    with pytest.raises(InvalidData, match=r"^a\.arrow row 2: .* a time is in nanoseconds or out of range$"):
        read_file(tmp_path / "a.arrow")


def test_cells_of_a_sheet_are_texts_whatever_they_look_like(tmp_path):
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append([" Text", "label ", None, "when"])
    sheet.append(["words", 1, None, datetime.date(2026, 3, 1)])
    sheet.append([42, 1.0, None, datetime.datetime(2026, 3, 1, 12, 30)])
    sheet.append([])
    sheet.append([True, 0.5, None, None])
    sheet.append(["=1+1", "#N/A", None, "never"])
    book.create_sheet("other").append(["x"])
    book.save(tmp_path / "a.xlsx")
    table = read_file(tmp_path / "a.xlsx")
    assert list(table) == ["Text", "label", "column 3", "when"]
    # A formula has the value that it had when it was saved: this library computes none.
    assert table["Text"] == ["words", "42", "True", ""]
    assert table["label"] == ["1", "1", "0.5", ""]
    assert table["when"] == ["2026-03-01", "2026-03-01 12:30:00", "", "never"]
    assert table.place(2) == {"row": 5}
    assert table.where([0, 2]) == "a.xlsx rows 2 and 5"
    assert table.notes == ("a.xlsx has 2 sheets, of which the first is read",)


def test_escapes_of_a_sheet_are_read_as_spreadsheets_show_them(tmp_path):
    """Line breaks that were pasted are stored as `_x000D_`, an underscore before such letters as `_x005F_`."""
    book = openpyxl.Workbook()
    book.active.append(["text_x000D_", "_x0009_label", "took"])
    book.active.append(["came_x000D_\n too_x0009_late", "late_x000D_", datetime.timedelta(hours=25, seconds=5)])
    book.active.append(["_x005F_x000D_ _xD83D__xDE00_ _xD83D_ _x00g0_ _X000D_", "la_x0074_e", None])
    book.save(tmp_path / "a.xlsx")
    table = read_file(tmp_path / "a.xlsx")
    assert list(table) == ["text", "label", "took"]
    assert table["text"] == ["came\r\n too\tlate", "_x000D_ \N{GRINNING FACE} \ufffd _x00g0_ _X000D_"]
    assert table["took"] == ["25:00:05", ""]
    assert {plain(cell) for cell in table["label"]} == {"late"}


def test_folders_of_the_hub(tmp_path):
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["ham", "spam"])}
    )
    parts = {
        split: datasets.Dataset.from_dict(
            {"text": [f"{split} {i}" for i in range(rows)], "label": [i % 2 for i in range(rows)]}, features=features
        )
        for split, rows in (("train", 30), ("test", 4))
    }
    whole = datasets.DatasetDict(parts)
    whole.save_to_disk(tmp_path / "saved", num_shards={"train": 2, "test": 1})
    parts["train"].save_to_disk(tmp_path / "one")
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for split, part in parts.items():
        for shard in range(2):
            name = f"{split}-{shard:05d}-of-00002.parquet"
            part.shard(2, shard, contiguous=True).to_parquet(tmp_path / "hub" / "data" / name)
        # As the Hub converts every data set: a folder for each split.
        (tmp_path / "converted" / split).mkdir(parents=True)
        part.to_parquet(tmp_path / "converted" / split / "0000.parquet")
    loaded = [load_dataset(str(tmp_path / name)) for name in ("saved", "hub", "converted")]
    assert {data.labels for data in loaded} == {("ham", "spam")}
    assert len({data.digest for data in loaded}) == 1
    assert {name: len(split) for name, split in loaded[0].splits.items()} == {"train": 27, "validation": 3, "test": 4}
    assert load_dataset(str(tmp_path / "one")).labels == ("ham", "spam")
