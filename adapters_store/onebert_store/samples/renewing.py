"""Encrypts the texts of feedback, which outlast every key, with the first key before another one is dropped."""

from sqlalchemy import Connection, select, tuple_, update

from onebert_store.registry.dialects.database import Database
from onebert_store.samples.cipher import Cipher
from onebert_store.samples.tables import FEEDBACK

# Rows of one transaction.
_TOGETHER = 500
_KEY = FEEDBACK.c.task, FEEDBACK.c.identifier


def renew_texts(database: Database, cipher: Cipher) -> None:
    """Encrypts all texts and explanations anew that are encrypted with a later key; other rows stay as they are."""
    after: tuple[str, str] | None = ("", "") if cipher.has_later_keys else None
    while after is not None:
        after = _renew_some(database, cipher, after)


def _renew_some(database: Database, cipher: Cipher, after: tuple[str, str]) -> tuple[str, str] | None:
    """Renews the next rows; returns the key of the last one, None behind the last of all."""
    columns = *_KEY, FEEDBACK.c.texts, FEEDBACK.c.explanation
    query = select(*columns).where(FEEDBACK.c.texts.is_not(None), tuple_(*_KEY) > tuple_(*after))
    with database.reading() as connection:
        rows = connection.execute(query.order_by(*_KEY).limit(_TOGETHER)).all()
    renewed = [(row, cipher.renewed(row.texts), cipher.renewed(row.explanation)) for row in rows]

    def write(connection: Connection) -> None:
        for row, texts, explanation in renewed:
            if (texts, explanation) != (row.texts, row.explanation):
                # A row that was deleted or replaced meanwhile has another token.
                same = tuple_(*_KEY) == tuple_(row.task, row.identifier), FEEDBACK.c.texts == row.texts
                connection.execute(update(FEEDBACK).where(*same).values(texts=texts, explanation=explanation))

    database.erase(write)
    return (rows[-1].task, rows[-1].identifier) if len(rows) == _TOGETHER else None
