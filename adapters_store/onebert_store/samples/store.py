"""The sample store: keeps texts of answers encrypted, and feedback with or without them."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, Table, delete, exists, func, select, update

from onebert_store.errors import SampleNotFound
from onebert_store.registry.database import upsert
from onebert_store.registry.dialects.database import Database
from onebert_store.registry.dialects.sqlite import SqliteDatabase
from onebert_store.registry.keeping import Keeping
from onebert_store.samples.cipher import Cipher
from onebert_store.samples.records import Feedback, Kind, Outcomes, Sample
from onebert_store.samples.tables import FEEDBACK, SAMPLES, TABLES

FILE = "samples.sqlite3"
# Rows of feedback of a task; the oldest go.
MAX_FEEDBACK = 100_000


@contextmanager
def open_samples(registry: Database, keys: Sequence[str] = ()) -> Iterator["SampleStore"]:
    """Opens the store beside a registry's database: a file beside an SQLite registry, else tables in the same database.

    `keys` encrypt texts, the first one new texts. Raises InvalidSettings if a key is malformed, and like `open_store`
    if the database cannot be used.
    """
    cipher = Cipher(keys)
    if not isinstance(registry, SqliteDatabase):
        yield SampleStore(registry, cipher)
        return
    own = SqliteDatabase(registry.path.with_name(FILE))
    try:
        yield SampleStore(own, cipher)
    finally:
        own.close()


class SampleStore:
    """Samples and feedback; thread-safe, and several replicas may share one.

    Every method raises StorageUnavailable if the database fails. Methods that return texts raise SamplesKeyNeeded if
    the store has no key that decrypts them.
    """

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database = database
        self._cipher = cipher
        with database.writing() as connection, database.migrating(connection):
            TABLES.create_all(connection)

    @property
    def has_key(self) -> bool:
        """Whether texts can be kept."""
        return self._cipher.has_key

    def keep(self, samples: Sequence[Sample]) -> int:
        """Keeps samples and returns how many are new: the first sample of an id stays."""
        rows = [_columns(one) | {"texts": self._cipher.encrypt(one.texts)} for one in samples]
        with self._database.writing() as connection:
            made = upsert(connection, SAMPLES).on_conflict_do_nothing().returning(SAMPLES.c.id)
            return sum(connection.execute(made.values(row)).first() is not None for row in rows)

    def find(self, ids: Collection[str], sees: Callable[[str], bool]) -> list[Sample]:
        """Returns the samples of these ids whose task `sees` allows."""
        with self._database.reading() as connection:
            rows = connection.execute(select(SAMPLES).where(SAMPLES.c.id.in_(ids))).all()
        return [self._sample(row) for row in rows if sees(row.task)]

    def without_feedback(self, task: str, most: int) -> list[Sample]:
        """Returns the latest samples of a task that nobody has given feedback on."""
        given = exists().where(FEEDBACK.c.task == SAMPLES.c.task, FEEDBACK.c.answer_id == SAMPLES.c.id)
        found = select(SAMPLES).where(SAMPLES.c.task == task, ~given)
        with self._database.reading() as connection:
            rows = connection.execute(found.order_by(SAMPLES.c.at.desc(), SAMPLES.c.id).limit(most)).all()
        return [self._sample(row) for row in rows]

    def page(self, task: str, after: str, most: int) -> list[tuple[Sample, Feedback | None]]:
        """Returns the samples of a task behind an id, by id, each with the latest feedback on it."""
        found = select(SAMPLES).where(SAMPLES.c.task == task, SAMPLES.c.id > after).order_by(SAMPLES.c.id).limit(most)
        with self._database.reading() as connection:
            rows = connection.execute(found).all()
            about = FEEDBACK.c.task == task, FEEDBACK.c.answer_id.in_([row.id for row in rows])
            # Identifiers first: one answer may have a hundred thousand rows with texts.
            given = select(FEEDBACK.c.answer_id, FEEDBACK.c.identifier).where(*about).order_by(FEEDBACK.c.at)
            last = {row.answer_id: row.identifier for row in connection.execute(given)}
            newest = FEEDBACK.c.task == task, FEEDBACK.c.identifier.in_(last.values())
            latest = {one.answer_id: self._feedback(one) for one in connection.execute(select(FEEDBACK).where(*newest))}
        return [(self._sample(row), latest.get(row.id)) for row in rows]

    def feedback_page(self, task: str, after: str, most: int) -> list[Feedback]:
        """Returns the feedback of a task whose text is kept, by identifier, behind one."""
        own = FEEDBACK.c.task == task, FEEDBACK.c.texts.is_not(None), FEEDBACK.c.identifier > after
        with self._database.reading() as connection:
            rows = connection.execute(select(FEEDBACK).where(*own).order_by(FEEDBACK.c.identifier).limit(most)).all()
        return [self._feedback(row) for row in rows]

    def count(self, task: str) -> int:
        """Returns how many samples a task has."""
        counted = select(func.count()).select_from(SAMPLES).where(SAMPLES.c.task == task)
        with self._database.reading() as connection:
            return int(connection.execute(counted).scalar_one())

    def record(self, rows: Sequence[Feedback]) -> None:
        """Adds feedback, all or nothing; a row replaces an earlier one with the same task and identifier.

        The first outcome of an identifier still counts in `outcomes`.
        """
        made = [_columns(one) | {"texts": self._token(one.texts)} for one in rows]
        with self._database.writing() as connection:
            # In one order everywhere, so that two requests about the same rows cannot wait for each other.
            for row in sorted(made, key=lambda one: (one["task"], one["identifier"])):
                row |= {"explanation": self._token(row["explanation"]), "answers": {**row["answers"]}}
                counted = [row["right"], row["answers"]] if row["kind"] == Kind.OUTCOME else None
                added = upsert(connection, FEEDBACK).values(row | {"counted": counted})
                first = {"counted": func.coalesce(FEEDBACK.c.counted, added.excluded.counted)}
                connection.execute(added.on_conflict_do_update(index_elements=["task", "identifier"], set_=row | first))
            for task in {one.task for one in rows}:
                _trim(connection, FEEDBACK, FEEDBACK.c.identifier, task, MAX_FEEDBACK)

    def feedback(self, task: str, most: int = MAX_FEEDBACK) -> list[Feedback]:
        """Returns the latest feedback of a task."""
        found = select(FEEDBACK).where(FEEDBACK.c.task == task)
        with self._database.reading() as connection:
            rows = connection.execute(found.order_by(FEEDBACK.c.at.desc(), FEEDBACK.c.identifier).limit(most)).all()
        return [self._feedback(row) for row in rows]

    def outcomes(self, task: str, main: int, versions: Sequence[int]) -> dict[int, Outcomes]:
        """Counts outcomes that a version and `main` answered, by version: `wins` are rows where it alone is right."""
        found = select(FEEDBACK.c.counted).where(FEEDBACK.c.task == task, FEEDBACK.c.counted.is_not(None))
        counts: dict[int, Counter[tuple[bool, bool]]] = {version: Counter() for version in versions}
        with self._database.reading() as connection:
            for right, answers in connection.scalars(found):
                for version, count in counts.items():
                    if {str(version), str(main)} <= answers.keys():
                        count[answers[str(version)] == right, answers[str(main)] == right] += 1
        order = (True, True), (True, False), (False, True), (False, False)
        return {version: Outcomes(*(count[one] for one in order)) for version, count in counts.items()}

    def delete_sample(self, task: str, id: str) -> None:
        """Deletes one sample, also its text in feedback; raises SampleNotFound."""
        # PostgreSQL rejects text with a zero byte.
        if not id.isprintable():
            raise no_sample()
        with self._database.writing() as connection:
            of_sample = FEEDBACK.c.task == task, FEEDBACK.c.answer_id == id, FEEDBACK.c.texts.is_not(None)
            # Samples before feedback, everywhere: PostgreSQL would end one of two that wait for each other.
            gone = connection.execute(delete(SAMPLES).where(SAMPLES.c.task == task, SAMPLES.c.id == id)).rowcount
            gone += connection.execute(update(FEEDBACK).where(*of_sample).values(_NO_TEXT)).rowcount
        if not gone:
            raise no_sample()

    def delete_texts(self, task: str) -> None:
        """Deletes the samples of a task, and the texts in its feedback; its labels stay."""
        with self._database.writing() as connection:
            connection.execute(delete(SAMPLES).where(SAMPLES.c.task == task))
            connection.execute(update(FEEDBACK).where(FEEDBACK.c.task == task).values(_NO_TEXT))

    def delete_task(self, task: str) -> None:
        """Deletes everything of a task."""
        with self._database.writing() as connection:
            for table in (SAMPLES, FEEDBACK):
                connection.execute(delete(table).where(table.c.task == task))

    def rename_task(self, task: str, name: str) -> None:
        """Gives samples and feedback of a task to its new name; rows that were written under the new name stay."""
        with self._database.writing() as connection:
            for table, key in ((SAMPLES, SAMPLES.c.id), (FEEDBACK, FEEDBACK.c.identifier)):
                newer = table.c.task == task, key.in_(select(key).where(table.c.task == name))
                connection.execute(delete(table).where(*newer))
                connection.execute(update(table).where(table.c.task == task).values(task=name))

    def expire(self, keepings: Mapping[str, Keeping]) -> None:
        """Deletes texts that are older than their task keeps them, and the oldest samples above its bound."""
        with self._database.writing() as connection:
            for task, keeping in sorted(keepings.items()):
                since = datetime.now(UTC) - timedelta(days=keeping.days)
                connection.execute(delete(SAMPLES).where(SAMPLES.c.task == task, SAMPLES.c.at < since))
                _trim(connection, SAMPLES, SAMPLES.c.id, task, keeping.most)
                old = FEEDBACK.c.task == task, FEEDBACK.c.texts_at < since
                connection.execute(update(FEEDBACK).where(*old).values(_NO_TEXT))

    def tasks(self) -> list[str]:
        """Returns the names of all tasks with samples or feedback."""
        names = select(SAMPLES.c.task).union(select(FEEDBACK.c.task))
        with self._database.reading() as connection:
            return [*connection.scalars(names)]

    def _token(self, value: Any) -> str | None:
        return None if value is None else self._cipher.encrypt(value)

    def _sample(self, row: Row[Any]) -> Sample:
        read = row._asdict()
        return Sample(**read | {"texts": tuple(self._cipher.decrypt(row.texts)), "labels": tuple(row.labels)})

    def _feedback(self, row: Row[Any]) -> Feedback:
        read = row._asdict() | {"kind": Kind(row.kind), "answers": {int(key): one for key, one in row.answers.items()}}
        del read["counted"]
        if row.texts is not None:
            read["texts"] = tuple(self._cipher.decrypt(row.texts))
        if row.explanation is not None:
            read["explanation"] = self._cipher.decrypt(row.explanation)
        return Feedback(**read)


_NO_TEXT = {"texts": None, "texts_at": None, "explanation": None}


def without_texts(row: Feedback) -> Feedback:
    """The row as it is once its texts are deleted."""
    return replace(row, texts=None, texts_at=None, explanation=None)


def no_sample() -> SampleNotFound:
    """Makes the error for an id that is not kept, or not one of the caller's tasks; both look the same."""
    return SampleNotFound("no answer with this id is kept")


def _columns(record: Sample | Feedback) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _trim(connection: Connection, table: Table, key: Any, task: str, most: int) -> None:
    oldest = select(key).where(table.c.task == task).order_by(table.c.at.desc(), key).offset(most)
    connection.execute(delete(table).where(table.c.task == task, key.in_(oldest)))
