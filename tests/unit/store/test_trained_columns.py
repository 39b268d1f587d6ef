"""The columns of a training: read from a manifest, which may hold anything, and used where a table has them."""

import pytest

from onebert_store.file.manifest import parse_manifest
from onebert_store.tables.columns import Columns, find_texts, remembered, trained_columns
from onebert_store.tables.table import Table
from tiny_delta import manifest_dict

TABLE = Table({name: ["a cell"] for name in ("text", "label", "words", "other", "kind", "toxic", "late")}, "t.csv")


def manifest(training):
    return parse_manifest(manifest_dict(training=training))


@pytest.mark.parametrize(
    ("settings", "columns"),
    [
        ({"text": "words", "label": "kind", "epochs": 3}, Columns("words", label="kind")),
        ({"text": "words", "text_pair": "other"}, Columns("words", "other")),
        ({"label_separator": ";"}, Columns(label_separator=";")),
        ({"text_pair": "other"}, Columns()),  # a second text needs a first
        ({"text": 3, "text_pair": "other", "label": ["kind"]}, Columns()),
        ({"text": None, "label": {"a": 1}}, Columns()),
        ([["text", "words"]], Columns()),
        (None, Columns()),
    ],
)
def test_a_manifest_names_the_columns_or_something_else(settings, columns):
    """As `settings` of an earlier file, and on a card."""
    for training in ({"settings": settings}, {"card": {"read": settings}}):
        expected = Columns() if "card" in training and "epochs" in (settings or ()) else columns
        assert trained_columns(manifest(training)) == expected
    assert trained_columns(manifest({})) == Columns()


@pytest.mark.parametrize(
    ("given", "trained", "expected"),
    [
        (Columns(), Columns("words", label="kind"), Columns("words", label="kind")),
        (Columns(), Columns(" WORDS ", "other"), Columns(" WORDS ", "other")),
        (Columns(), Columns(label="toxic,late"), Columns(label="toxic,late")),
        (Columns(), Columns(label_separator=";"), Columns(label_separator=";")),
        # An option replaces what it names; a pair is one choice, and a separator belongs to its column.
        (Columns("other"), Columns("words", "text", "kind"), Columns("other", label="kind")),
        (Columns(label="late"), Columns("words", label="kind", label_separator=";"), Columns("words", label="late")),
        (Columns(label_separator="|"), Columns(label="kind", label_separator=";"), Columns(None, None, "kind", "|")),
        # The table has usual names in place of those.
        (Columns(), Columns("gone", label="lost", label_separator=";"), Columns()),
        (Columns(), Columns("words", "gone", "toxic,gone"), Columns()),
    ],
)
def test_trained_columns_are_used_where_none_are_named(given, trained, expected):
    assert remembered(given, trained, TABLE) == expected


def test_a_table_without_columns_is_asked_for_the_trained():
    table = Table({"body": ["a cell"], "queue": ["a cell"]}, "t.csv")
    columns = remembered(Columns(), Columns("words", label="kind"), table)
    assert (columns.text, columns.label) == ("words", "kind")
    assert find_texts(table, columns) is None
