"""Texts of a file without looking at labels."""

from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.tables.columns import Columns, require_texts
from onebert_store.tables.tables import choose_split, read_source


def load_texts(source: str, columns: Columns, encoding: str | None = None) -> list[Text]:
    """The texts or pairs of a file; of a folder those of its test split, else validation, else training.

    Args:
        source: a file, a folder or `hf:dataset[/config]`.
        columns: where the texts are.
        encoding: of text files without a byte order mark; None finds it.

    Raises:
        InvalidData: there are none, or a row has no text.
    """
    read = read_source(source, encoding)
    table = read.tables[choose_split(read, None)]
    rows = list(zip(*(table[name] for name in require_texts(table, columns)), strict=True))
    if bad := [row for row, cells in enumerate(rows) if not all(isinstance(one, str) and one.strip() for one in cells)]:
        raise InvalidData(f"{table.where(bad)}: the text is empty or not a text")
    if not rows:
        raise InvalidData(f"{table.origin}: there are no rows")
    return [cells[0] if len(cells) == 1 else cells for cells in rows]
