"""Writes labeled rows with all their columns beside the right answer, the delta's answer, its score and its loss."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow

from onebert_store.disk import written_whole
from onebert_store.errors import InvalidSettings
from onebert_store.tables.table import Table
from onebert_store.tables.writers import WRITERS
from onebert_training.insight.answers import Answers
from onebert_training.insight.intervals import plain


def write_predictions(path: Path, name: str, table: Table, answers: Answers) -> None:
    """Writes the file atomically, in the format of its ending; the answers' columns are NAME_gold, NAME_answer ….

    Raises:
        InvalidSettings: a new column has the name of one in the table.
        InvalidData: a column mixes types that Parquet does not take.
        StorageFull: the disk refused the write.
    """
    added = {f"{name}_{column}": cells for column, cells in _columns(answers).items()}
    require_new_names(table, name)
    columns = {**{column: table[column] for column in table}, **added}
    types = {column: _type(cells) for column, cells in columns.items()} if path.suffix.lower() == ".parquet" else {}
    with written_whole(path) as file:
        writer = WRITERS[path.suffix.lower()](file, list(columns), types)
        for cells in zip(*columns.values(), strict=True):
            writer.add(dict(zip(columns, cells, strict=True)))
        writer.end()


def require_new_names(table: Table, name: str) -> None:
    """Raises InvalidSettings if the prefix would give a new column the name of an existing one."""
    for column in ("gold", "answer", "score", "loss", "abstained"):
        if f"{name}_{column}" in table:
            raise InvalidSettings(f"two columns would be called {name[:80]}_{column}")


def _columns(answers: Answers) -> Mapping[str, Sequence[Any]]:
    score = {} if answers.measure.name == "mae" else {"score": list(map(plain, answers.score))}
    rule = {} if answers.abstained is None else {"abstained": answers.abstained.tolist()}
    loss = list(map(plain, answers.loss))
    return {"gold": answers.gold, "answer": answers.answer, **score, "loss": loss, **rule}


def _type(cells: Sequence[Any]) -> pyarrow.DataType:
    try:
        kind = pyarrow.array(cells).type
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
        return pyarrow.string()
    if pyarrow.types.is_null(kind):
        return pyarrow.string()
    # All lists are empty: for example, no text has a label.
    return pyarrow.list_(pyarrow.string()) if kind == pyarrow.list_(pyarrow.null()) else kind
