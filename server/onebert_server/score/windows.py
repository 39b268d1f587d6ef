"""Rows as they go through a job: a window is what is read, tokenized, sorted and computed at a time."""

from dataclasses import dataclass
from typing import Any

import pyarrow

from onebert_encoder.text.tokens import Text
from onebert_server.limits import MAX_TEXT

# Rows of a window: enough that batches of texts of about one length can be made of them. And bytes (of a text file,
# characters) of their texts, behind which a window ends early: what bounds the memory, whatever the texts are.
WINDOW_ROWS = 4096
WINDOW_BYTES = 2**22


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows side by side of one file.

    Attributes:
        ids: the columns that are kept.
        texts: of each row its text or pair; None where the row has none that can be scored.
        errors: of such a row, why; None for the others.
    """

    ids: pyarrow.Table
    texts: list[Text | None]
    errors: list[str | None]


@dataclass(frozen=True, eq=False)
class Window:
    """Some rows of one part.

    Attributes:
        part: name of the part, and of the file that is written of it.
        rows: what was read.
        done: rows of the job up to the end of this window, those of parts that were scored before included.
        total: rows of the job; estimated by bytes until the last file is read to its end.
    """

    part: str
    rows: Rows
    done: int
    total: int

    def __len__(self) -> int:
        return len(self.rows.texts)


def checked(cells: tuple[Any, ...]) -> tuple[Text | None, str | None]:
    """The text or pair in the cells of a row, or why there is none."""
    for cell, name in zip(cells, ("text", "second text"), strict=False):
        if cell is None:
            return None, f"there is no {name}"
        if not isinstance(cell, str):
            return None, f"the {name} is not a text"
        if not cell.strip():
            return None, f"the {name} is blank"
        if len(cell) > MAX_TEXT:
            return None, f"the {name} is longer than {MAX_TEXT} characters"
        # The library that tokenizes takes no half of a surrogate pair.
        if not cell.isascii() and any("\ud800" <= letter <= "\udfff" for letter in cell):
            return None, f"the {name} is not valid Unicode"
    return (cells[0] if len(cells) == 1 else (cells[0], cells[1])), None
