"""Writes the rows of a table with their answers, in the format of the output file."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from onebert_server.cli.remote import Answer, answer_of
from onebert_server.cli.rows import Row, Table
from onebert_server.client import TaskResult
from onebert_store.errors import InvalidSettings
from onebert_store.tables.writers import WRITERS, ParquetWriter

if TYPE_CHECKING:
    import pyarrow

# Fields of an answer, in order; the file has a column for each field that the first answer has.
_SAID = "label score labels scores words entities answers abstained energy truncated windows".split()
_ALWAYS = ("version", "digest", "error")


def write_answers(
    file: BinaryIO, name: str, task: str, table: Table, answered: Iterable[tuple[Row, Answer]]
) -> Mapping[str, int]:
    """Writes rows with their answers or errors; the first answer determines the columns, and `task` is their prefix.

    Returns the counts of `rows`, of those `without` an answer, and of those with a `cut` text. Raises InvalidSettings
    if an answer's column has the name of an input column.
    """
    held, answered, first = list[tuple[Row, Answer]](), iter(answered), None
    for row, answer in answered:
        held.append((row, answer))
        if isinstance(answer, TaskResult):
            first = answer
            break
    said = [*(one for one in _SAID if first is not None and getattr(first, one) is not None), *_ALWAYS]
    mine = [f"{task}_{one}" for one in said]
    if twice := [one for one in mine if one in table.columns]:
        raise InvalidSettings(f"two columns would be called {twice[0][:80]}")
    make = WRITERS[Path(name).suffix.lower()]
    # Only Parquet needs types, and `_types` imports pyarrow. Untyped input columns become text.
    types = _types(task, table.schema) if make is ParquetWriter else {}
    writer, counts = make(file, (*table.columns, *mine), types), Counter[str]()
    for row, answer in chain(held, answered):
        fields = {"error": answer} if isinstance(answer, str) else answer_of(row, answer)
        writer.add({**row.cells, **{column: fields.get(one) for column, one in zip(mine, said, strict=True)}})
        counts["rows"] += 1
        counts["without"] += isinstance(answer, str)
        counts["cut"] += fields.get("truncated") is True
    writer.end()
    return counts


def _types(task: str, schema: "pyarrow.Schema | None") -> dict[str, Any]:
    import pyarrow  # noqa: PLC0415

    text, number, place = pyarrow.string(), pyarrow.float64(), pyarrow.int32()
    stretch = [("start", place), ("end", place), ("text", text)]
    words = pyarrow.list_(pyarrow.struct([*stretch, ("label", text), ("score", number)]))
    answers = {
        "score": number,
        "labels": pyarrow.list_(text),
        "scores": pyarrow.map_(text, number),
        "words": words,
        "entities": words,
        "answers": pyarrow.list_(pyarrow.struct([*stretch, ("score", number)])),
        "abstained": pyarrow.bool_(),
        "energy": number,
        "truncated": pyarrow.bool_(),
        "windows": place,
        "version": place,
    }
    kinds = {column.name: column.type for column in schema or ()}
    kinds = {name: kind.value_type if pyarrow.types.is_dictionary(kind) else kind for name, kind in kinds.items()}
    return kinds | {f"{task}_{name}": kind for name, kind in answers.items()}
