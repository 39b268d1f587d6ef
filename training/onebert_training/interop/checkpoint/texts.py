"""The texts on which a delta is held against the checkpoint that it is made of; no labels are needed."""

from onebert_encoder.answering.answer import TASK_TYPES
from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import TaskType
from onebert_store.tables.columns import Columns, require_texts
from onebert_store.tables.tables import choose_split, read_source
from onebert_training.data.words import words_of

# More would make the agreement hardly surer, and every probe slower.
MOST_TEXTS = 2000


def read_texts(source: str, columns: Columns, encoding: str | None, task_type: TaskType) -> tuple[str, list[Text]]:
    """The name of the data, and at most `MOST_TEXTS` of its texts, evenly taken.

    Args:
        source: a file, a folder, of which the test split is read, or validation where there is none, or `hf:dataset`.
        columns: where the texts are; else found by name.
        encoding: of text files without a byte order mark; None finds it.
        task_type: of a token task a cell may hold a list of words.

    Raises:
        InvalidData: there are no two texts, or a row has none, or the task takes no such texts.
        InvalidSettings: there is no such encoding.
    """
    read = read_source(source, encoding)
    table = read.tables[choose_split(read, None)]
    cells = [table[name] for name in require_texts(table, columns)]
    if not TASK_TYPES[task_type].takes(pair=len(cells) == 2):
        raise InvalidData(f"a {task_type} task takes {TASK_TYPES[task_type].question}; say which columns hold that")
    rows: list[tuple[str, ...]] = [tuple(_text(cell, task_type) for cell in row) for row in zip(*cells, strict=True)]
    if bad := [number for number, row in enumerate(rows) if not all(one.strip() for one in row)]:
        raise InvalidData(f"{table.where(bad)}: the text is empty or not a text")
    if len(rows) < 2:
        raise InvalidData("there is no second text to compare answers on")
    step = -(-len(rows) // MOST_TEXTS)
    return read.name, [row[0] if len(row) == 1 else (row[0], row[1]) for row in rows[::step]]


def _text(cell: object, task_type: TaskType) -> str:
    """The text of a cell; empty where it has none."""
    if task_type == "token":
        return " ".join(words_of(cell) or ())
    return cell if isinstance(cell, str) else ""
