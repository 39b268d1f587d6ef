"""Leaves out rows that a person has rejected, as Prodigy writes it into the column `answer`."""

from onebert_store.errors import InvalidData
from onebert_store.tables.cells import plain
from onebert_store.tables.columns import Columns, named
from onebert_store.tables.table import Table

_ACCEPTED = {"accept", "accepted", "approve", "approved", "true", "yes", "1", "submitted", "completed"}
_REJECTED = {"reject", "rejected", "ignore", "ignored", "false", "no", "0", "discarded", "draft", "pending", "skipped"}
# The column that is obeyed, and columns that may mean something else and get a note.
_OBEYED, _NOTED = "answer", ("accepted", "approved", "is_accepted", "is_approved", "annotation_approver", "status")


def accepted(table: Table, columns: Columns) -> Table:
    """Returns the rows that nobody has rejected, with a note on the others; raises InvalidData if none is left."""
    for name in (_OBEYED, *_NOTED):
        column = named(table, name)
        if column is None or column in (columns.label, columns.text, columns.text_pair):
            continue
        answers = [plain(cell).casefold() for cell in table[column]]
        rejected = [row for row, answer in enumerate(answers) if answer in _REJECTED]
        if not rejected or not {*answers} - {""} <= _ACCEPTED | _REJECTED:
            continue
        count, words = f"{len(rejected):,} of {table.rows:,} rows", sorted({answers[row] for row in rejected})
        values = f"{', '.join(words)} in the column {column}"
        if name != _OBEYED:
            table = table.with_notes([f"{count} have {values}, which is not read: they are used like the others"])
        elif len(rejected) == table.rows:
            raise InvalidData(f"{table.origin}: all rows have {values}, and are no examples")
        else:
            rows = sorted({*range(table.rows)}.difference(rejected))
            table = table.take(rows).with_notes([f"{count} are left out: {values}"])
    return table
