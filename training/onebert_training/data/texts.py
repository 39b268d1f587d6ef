"""Reads the texts of a file and ignores labels."""

from onebert_encoder.answering.answer import TASK_TYPES
from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import TaskType
from onebert_store.tables.columns import Columns, find_texts, require_texts, texts_of_rows
from onebert_store.tables.tables import choose_split, read_source
from onebert_training.data.per_token import words_of


def load_texts(
    source: str,
    columns: Columns,
    encoding: str | None,
    task_type: TaskType = "single_label",
    else_by_name: bool = False,
) -> tuple[str, list[Text]]:
    """The name of the data, and its texts or pairs; a folder gives the test split, else validation, else training.

    Args:
        encoding: encoding of text files without a byte order mark; None detects it.
        else_by_name: find the columns by name if the file lacks the named ones, because `columns` are of other data.

    Raises:
        InvalidData: no rows, a row without text, or texts that the task does not take.
        InvalidSettings: the encoding is unknown.
    """
    read = read_source(source, encoding)
    table = read.tables[choose_split(read, None)]
    if else_by_name and find_texts(table, columns) is None:
        columns = Columns()
    cells = [table[name] for name in require_texts(table, columns)]
    if not TASK_TYPES[task_type].takes(pair=len(cells) == 2):
        raise InvalidData(f"a {task_type} task takes {TASK_TYPES[task_type].question}; say which columns hold that")
    if task_type == "token":
        cells = [[" ".join(words_of(cell) or ()) for cell in column] for column in cells]
    texts = texts_of_rows(table, cells)
    if not texts:
        raise InvalidData(f"{table.origin}: there are no rows")
    return read.name, texts
