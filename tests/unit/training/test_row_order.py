"""The order of rows decides nothing: not the type of a task, nor its labels, nor one example, from any kind of file."""

import json

import openpyxl
import polars
import pyarrow
import pyarrow.feather
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengths import examples
from onebert_store.errors import InvalidData
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions

TEXT = st.text("abcé ,;'\t7", min_size=1, max_size=9)
NAMES = st.sampled_from(["a", "b", "3.10", "", "x|y"])
LABELS = {
    "names": NAMES,
    "numbers": st.integers(0, 3),
    "fractions": st.sampled_from([0.5, 1, 2, 2.25]),
    "mixed": st.sampled_from(["0.5", "1", "one", "1e3", "3.10", "nan", "inf", "-7", None]),
    "lists": st.lists(st.sampled_from(["a", "b"]), max_size=2, unique=True),
    "indices": st.sampled_from(["0", "1", "b", None]),
}


def columns_of(rows):
    return {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}


def texts_of(rows):
    """Cells as a CSV or a sheet can have them."""
    return {
        name: [cell if isinstance(cell, str | None) else json.dumps(cell) for cell in cells]
        for name, cells in columns_of(rows).items()
    }


def write_sheet(path, rows):
    book = openpyxl.Workbook(write_only=True)
    sheet, columns = book.create_sheet(), texts_of(rows)
    sheet.append(list(columns))
    for cells in zip(*columns.values(), strict=True):
        sheet.append(cells)
    book.save(path)


def write_csv(path, rows, separator=",", encoding="utf-8"):
    text = polars.DataFrame(texts_of(rows), schema_overrides=dict.fromkeys(rows[0], polars.String))
    path.write_bytes(text.write_csv(separator=separator).encode(encoding))


def arrow_of(rows):
    columns = columns_of(rows)
    return pyarrow.table(columns if _of_one_type(columns) else texts_of(rows))


def _of_one_type(columns):
    return all(len({type(cell) for cell in cells if cell is not None}) == 1 for cells in columns.values())


WRITERS = {
    "comma.csv": write_csv,
    "semicolon.csv": lambda path, rows: write_csv(path, rows, ";"),
    "western.csv": lambda path, rows: write_csv(path, rows, "\t", "cp1252"),
    "wide.tsv": lambda path, rows: write_csv(path, rows, "\t", "utf-16"),
    "a.jsonl": lambda path, rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
    "side_by_side.json": lambda path, rows: path.write_text("\n".join(map(json.dumps, rows))),
    "array.json": lambda path, rows: path.write_text(json.dumps(rows)),
    "data.json": lambda path, rows: path.write_text(json.dumps({"data": rows})),
    "columns.json": lambda path, rows: path.write_text(json.dumps(columns_of(rows))),
    "by_key.json": lambda path, rows: path.write_text(
        json.dumps({name: dict(enumerate(cells)) for name, cells in columns_of(rows).items()})
    ),
    "a.xlsx": write_sheet,
    "a.parquet": lambda path, rows: pyarrow.parquet.write_table(arrow_of(rows), path),
    "a.arrow": lambda path, rows: pyarrow.feather.write_feather(arrow_of(rows), str(path)),
}


def outcome(path):
    try:
        data = load_dataset(str(path), DataOptions(drop_unlabeled=True))
    except InvalidData as error:
        # Which rows are named depends on where they stand, and which of two faults comes first as well.
        return "refused", bool(error.detail)
    examples = {
        name: sorted(map(repr, zip(split.texts, split.plain_gold(), strict=True)))
        for name, split in data.splits.items()
    }
    everything = sorted(row for example in examples.values() for row in example)
    return data.task_type, data.labels, everything, sorted(note for note in data.notes if "is read as" in note)


@pytest.mark.parametrize("name", WRITERS)
@given(data=st.data(), shuffled=st.randoms(use_true_random=False))
@settings(max_examples=examples(24))
def test_the_order_of_rows_decides_nothing(tmp_path_factory, name, data, shuffled):
    kind = data.draw(st.sampled_from([*LABELS]))
    cells = data.draw(st.lists(st.tuples(TEXT, LABELS[kind]), min_size=12, max_size=16))
    rows = [{"text": f"{text} {i}", "label": label, "n": i % 3} for i, (text, label) in enumerate(cells)]
    other = list(rows)
    shuffled.shuffle(other)
    outcomes = []
    for order in (rows, other):
        path = tmp_path_factory.mktemp("order") / name
        WRITERS[name](path, order)
        outcomes.append(outcome(path))
    assert outcomes[0] == outcomes[1]
