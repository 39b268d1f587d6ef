"""The sample store: keeps texts of answers encrypted, and feedback with or without them."""

import hmac
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import cached_property, partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Connection, Row, and_, exists, func, not_, or_, select, tuple_, update

from onebert_store.comparison import Outcomes, ShortAnswer, answer_from, outcomes_of, rights
from onebert_store.errors import SampleNotFound, SamplesKeyNeeded
from onebert_store.registry.database import upsert
from onebert_store.registry.dialects.database import Database
from onebert_store.registry.dialects.sqlite import SqliteDatabase
from onebert_store.registry.schema import ensure_schema, has_tables
from onebert_store.samples.cipher import Cipher, check_token
from onebert_store.samples.owners import Owners
from onebert_store.samples.reading import feedback_of, page_of, read_rows, rows_of, sample_of
from onebert_store.samples.records import Feedback, Kind, Owner, Sample
from onebert_store.samples.renewing import renew_texts
from onebert_store.samples.sweeping import NO_TEXT, Sweeper, erase, texts_of, trim_feedback
from onebert_store.samples.tables import FEEDBACK, NAMING, SAMPLES, TABLES

FILE = "samples.sqlite3"
# Rows of feedback of a task; the oldest go.
MAX_FEEDBACK = 100_000
# Rows that a check reads at a time.
_READ_TOGETHER = 500
# Labels that no version had: shown of a task, and counted at once.
MAX_LABELS, MAX_COUNTED = 64, 8192
# Tasks in one statement that counts: SQLite parses at most a thousand conditions in one.
_COUNTED_TOGETHER = 200


@contextmanager
def open_samples(registry: Database, keys: Sequence[str] = (), looking: bool = False) -> Iterator["SampleStore"]:
    """Opens the store beside a registry's database: a file beside an SQLite registry, else tables in the same database.

    `keys` encrypt texts, the first one new texts. Raises InvalidSettings if a key is malformed, and like `open_store`
    if the database cannot be used. `looking` changes nothing, and sees no rows where there are no such tables.
    """
    cipher = Cipher(keys)
    apart = isinstance(registry, SqliteDatabase)
    path = registry.path.with_name(FILE) if isinstance(registry, SqliteDatabase) else Path(FILE)
    absent = looking and not (path.exists() if apart else has_tables(registry, TABLES))
    if not (apart or absent):
        yield SampleStore(registry, registry, cipher, may_change=not looking)
        return
    with ExitStack() as stack:
        if absent:
            path = Path(stack.enter_context(TemporaryDirectory())) / FILE
        database = SqliteDatabase(path)
        stack.callback(database.close)
        yield SampleStore(registry, database, cipher, may_change=absent or not looking)


class SampleStore:
    """Samples and feedback; thread-safe, and several replicas may share one.

    Every method raises StorageUnavailable if the database fails, or is busy `until` a time. Methods that return texts
    raise SamplesKeyNeeded if the store has no key that decrypts them. Damaged rows are left out; `onebert store check`
    counts them.

    Attributes:
        sweeper: deletes rows that are too old, or of deleted tasks.
    """

    def __init__(self, registry: Database, database: Database, cipher: Cipher, may_change: bool = True) -> None:
        self._owners = Owners(registry, database)
        self.sweeper = Sweeper(self._owners, database)
        self.database = database
        self._cipher = cipher
        ensure_schema(database, TABLES, lambda: may_change, lambda: may_change)

    @property
    def has_key(self) -> bool:
        """Whether texts can be kept."""
        return self._cipher.has_key

    def owner(self, task: str) -> Owner:
        """Returns where the rows of a task are; see `Owners.owner`."""
        return self._owners.owner(task)

    def prepare(self) -> None:
        """Encrypts what outlasts keys with the first one, if there is a key, before another one is dropped."""
        if self.has_key:
            _ = self._naming
            renew_texts(self.database, self._cipher)

    def identifier(self, texts: Sequence[str]) -> str:
        """Returns the identifier of texts that came without one, an HMAC; raises SamplesKeyNeeded without a key."""
        return "hmac-sha256:" + hmac.digest(self._naming, json.dumps(texts).encode(), "sha256").hex()

    @cached_property
    def _naming(self) -> bytes:
        """The key of identifiers, from now on encrypted with the first key; a new one if no key decrypts it."""
        return bytes.fromhex(self.database.erase(self._renewed))

    def _renewed(self, connection: Connection) -> str:
        key = self._cipher.naming.hex()
        first = {"id": 1, "key": self._cipher.encrypt(key)}
        connection.execute(upsert(connection, NAMING).values(first).on_conflict_do_nothing())
        with suppress(SamplesKeyNeeded, ValueError):
            key = self._cipher.decrypt(connection.execute(select(NAMING.c.key)).scalar_one())
            connection.execute(update(NAMING).values(key=self._cipher.encrypt(key)))
        return key

    def keep(self, samples: Sequence[tuple[str, Sample]], until: float = inf) -> dict[str, str]:
        """Keeps samples whose keeping lasts, the first of an id; returns ids of tasks by their lasting keepings."""
        rows = [(keeping, _columns(each) | self._sealed(each.texts)) for keeping, each in samples]
        with self.database.writing(until) as connection:
            tasks = self._owners.keeping(connection, {keeping for keeping, _ in rows})
            stored = [row | {"task": tasks[keeping]} for keeping, row in rows if keeping in tasks]
            if stored:
                connection.execute(upsert(connection, SAMPLES).on_conflict_do_nothing(), stored)
        return tasks

    def find(self, ids: Collection[str], sees: Callable[[str], bool]) -> list[Sample]:
        """Returns the samples of these ids whose task `sees` allows."""
        selected = SAMPLES.c.id.in_(ids)
        with self.database.reading() as connection:
            tasks = {*connection.scalars(select(SAMPLES.c.task).where(selected))}
        names = self._owners.names(tasks, sees)
        query = select(SAMPLES).where(selected, SAMPLES.c.task.in_(names))
        with self.database.reading() as connection:
            return read_rows(connection, query, lambda row: sample_of(row, names[row.task], self._cipher.decrypt))

    def without_feedback(self, task: str, limit: int) -> list[Sample]:
        """Returns the latest samples of a task that nobody has given feedback on, nor on an equal text."""
        about = FEEDBACK.c.answer_id == SAMPLES.c.id, FEEDBACK.c.mac == SAMPLES.c.mac
        without = (~exists().where(FEEDBACK.c.task == SAMPLES.c.task, same) for same in about)
        query = select(SAMPLES).where(SAMPLES.c.task == self.owner(task).task, *without)
        latest = query.order_by(SAMPLES.c.at.desc(), SAMPLES.c.id).limit(limit)
        with self.database.reading() as connection:
            return read_rows(connection, latest, partial(sample_of, task=task, decrypt=self._cipher.decrypt))

    def page(self, task: str, after: str, limit: int) -> tuple[list[tuple[Sample, Feedback | None]], str | None]:
        """Returns the samples of a task behind an id, by id, each with the latest feedback on it, and the last id.

        The last id is None if no further samples follow; likewise in `feedback_page`.
        """
        id, decrypt = self.owner(task).task, self._cipher.decrypt
        with self.database.reading() as connection:
            query, end = page_of(connection, SAMPLES, id, after, limit)
            samples = read_rows(connection, query, partial(sample_of, task=task, decrypt=decrypt))
            about = FEEDBACK.c.task == id, FEEDBACK.c.answer_id.in_([sample.id for sample in samples])
            # Identifiers first: one answer may have a hundred thousand rows with texts.
            identifiers = select(FEEDBACK.c.answer_id, FEEDBACK.c.identifier).where(*about).order_by(FEEDBACK.c.at)
            last = {row.answer_id: row.identifier for row in connection.execute(identifiers)}
            newest = select(FEEDBACK).where(FEEDBACK.c.task == id, FEEDBACK.c.identifier.in_(last.values()))
            rows = read_rows(connection, newest, partial(feedback_of, task=task, decrypt=decrypt))
        latest = {feedback.answer_id: feedback for feedback in rows}
        return [(sample, latest.get(sample.id)) for sample in samples], end

    def feedback_page(self, task: str, after: str, limit: int) -> tuple[list[Feedback], str | None]:
        """Returns the feedback of a task whose text is kept, by identifier, behind one, and the last identifier."""
        id, has_text = self.owner(task).task, FEEDBACK.c.texts.is_not(None)
        with self.database.reading() as connection:
            query, end = page_of(connection, FEEDBACK, id, after, limit, has_text)
            return read_rows(connection, query, partial(feedback_of, task=task, decrypt=self._cipher.decrypt)), end

    def count(self, task: str) -> int:
        """Returns how many samples a task has."""
        counted = select(func.count()).select_from(SAMPLES).where(SAMPLES.c.task == self.owner(task).task)
        with self.database.reading() as connection:
            return int(connection.execute(counted).scalar_one())

    def record(self, feedback: Sequence[tuple[Owner, Feedback]], until: float = inf) -> list[bool]:
        """Adds feedback, all or nothing, until a time; a row replaces an earlier one with its task and identifier.

        The first outcome of an identifier still counts in `outcomes`. Returns whether each has its texts: they are left
        out if the keeping has ended, or the sample is deleted. Raises TaskNotFound if a task is deleted, ReviewerOnly
        if one would replace a row by a reviewer who is somebody else.
        """
        rows = [_columns(item) | {"task": owner.task} | self._sealed(item.texts) for owner, item in feedback]
        with self.database.writing(until) as connection:
            keeping = self._owners.keeping(connection, {owner.keeping for owner, _ in feedback if owner.keeping})
            self._owners.lock(connection, {owner.task: item.task for owner, item in feedback})
            answered = self._answered(connection, {(row["task"], row["answer_id"]) for row in rows if row["answer_id"]})
            for (owner, item), row in zip(feedback, rows, strict=True):
                keeps = owner.keeping in keeping and (
                    item.answer_id is None or (owner.task, item.answer_id) in answered
                )
                words = {"explanation": self._token(item.explanation), "answers": {**item.answers}}
                row["new_labels"] = [*item.new_labels] or None
                row.update(words if keeps else words | NO_TEXT)
                row["counted"] = _counted(row, row.pop("text_id"))
            # In one order everywhere, so that two requests about the same rows cannot wait for each other.
            for index in sorted(range(len(rows)), key=lambda index: (rows[index]["task"], rows[index]["identifier"])):
                if not _replaced(connection, rows[index]):
                    raise ReviewerOnly(index)
            for task in {owner.task for owner, _ in feedback}:
                trim_feedback(connection, task, MAX_FEEDBACK)
        return [row["texts"] is not None for row in rows]

    def feedback_since(self, times: Mapping[str, datetime]) -> dict[str, int]:
        """Counts the feedback of each task after its time; a task without any is left out."""
        names, counts = self._owners.by_id(times), dict[str, int]()
        ids = [*names]
        with self.database.reading() as connection:
            for start in range(0, len(ids), _COUNTED_TOGETHER):
                part = ids[start : start + _COUNTED_TOGETHER]
                later = or_(*(and_(FEEDBACK.c.task == id, FEEDBACK.c.at > times[names[id]]) for id in part))
                counted = select(FEEDBACK.c.task, func.count()).where(later).group_by(FEEDBACK.c.task)
                counts |= {names[id]: count for id, count in connection.execute(counted)}
        return counts

    def new_labels(self, task: str, known: Collection[str]) -> tuple[dict[str, int], int]:
        """Counts the rows of a task's feedback by the labels that were new when they came, but for known ones.

        Returns the `MAX_LABELS` most frequent labels, and the sum of the others' counts. Of very many, counts of rare
        labels may be among the others'.
        """
        new, counts, total = FEEDBACK.c.new_labels, Counter[str](), 0
        query = select(new).where(FEEDBACK.c.task == self.owner(task).task, new.is_not(None))
        with self.database.reading() as connection:
            rows = connection.execute(query.execution_options(yield_per=_READ_TOGETHER))
            for labels in rows_of(rows, lambda row: [str(label) for label in row.new_labels if label not in known]):
                counts.update(labels or ())
                total += len(labels or ())
                if len(counts) > MAX_COUNTED:
                    counts = Counter(dict(counts.most_common(MAX_COUNTED // 2)))
        shown = dict(counts.most_common(MAX_LABELS))
        return shown, total - sum(shown.values())

    def check(self) -> dict[str, int]:
        """Reads every row, without texts; returns the numbers of `samples`, `feedback` and `damaged` rows."""
        counts = Counter[str]()
        for table, read in ((SAMPLES, sample_of), (FEEDBACK, feedback_of)):
            rows = select(table).execution_options(yield_per=_READ_TOGETHER)
            with self.database.reading() as connection:
                for row in rows_of(connection.execute(rows), partial(read, task="", decrypt=check_token)):
                    counts[table.name if row else "damaged"] += 1
        return {name: counts[name] for name in (SAMPLES.name, FEEDBACK.name, "damaged")}

    def outcomes(self, task: str, main: int, versions: Sequence[int]) -> dict[int, Outcomes]:
        """Counts outcomes that a version and `main` answered, by version: `wins` are rows where it alone is right.

        A text counts once for a version, the first time, whatever identifiers it came with.
        """
        selected = FEEDBACK.c.task == self.owner(task).task, FEEDBACK.c.counted.is_not(None)
        outcomes = select(FEEDBACK.c.counted).where(*selected).order_by(FEEDBACK.c.at, FEEDBACK.c.identifier)
        counts: dict[int, Counter[tuple[bool, bool]]] = {version: Counter() for version in versions}
        texts = set[tuple[int, str]]()
        with self.database.reading() as connection:
            for right, answers, text_id in read_rows(connection, outcomes, _outcome):
                for version, count in counts.items():
                    if {version, main} <= answers.keys() and (version, text_id) not in texts:
                        count[rights(right, answers[version], answers[main])] += 1
                        if text_id is not None:
                            texts.add((version, text_id))
        return {version: outcomes_of(count) for version, count in counts.items()}

    def outcomes_mark(self, task: str) -> tuple[int, datetime | None]:
        """Returns the number of feedback rows of a task and the time of the last one, which change with `outcomes`."""
        with self.database.reading() as connection:
            rows = select(func.count(), func.max(FEEDBACK.c.at)).where(FEEDBACK.c.task == self.owner(task).task)
            count, last = connection.execute(rows).one()
            return count, last

    def delete_sample(self, task: str, id: str, until: float = inf) -> None:
        """Deletes the sample with this id, and texts of feedback on it or so identified; raises SampleNotFound."""
        owner = self.owner(task).task
        about = or_(FEEDBACK.c.answer_id == id, FEEDBACK.c.identifier == id)
        if not erase(self.database, texts_of(owner, SAMPLES.c.id == id, about), until):
            raise no_sample()

    def delete_texts(self, id: str, until: float = inf) -> None:
        """Deletes the samples of a task, by its id, and the texts in its feedback; its labels stay."""
        erase(self.database, texts_of(id), until)

    def _answered(self, connection: Connection, ids: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        query = select(SAMPLES.c.task, SAMPLES.c.id).where(tuple_(SAMPLES.c.task, SAMPLES.c.id).in_(ids))
        locked = query.order_by(SAMPLES.c.task, SAMPLES.c.id).with_for_update(read=True, key_share=True)
        return {(task, id) for task, id in connection.execute(locked)}

    def _sealed(self, texts: Sequence[str] | None) -> dict[str, str | None]:
        """The columns of texts: encrypted, and an HMAC that equal texts share."""
        return {"texts": self._token(texts), "mac": None if texts is None else self.identifier(texts)}

    def _token(self, value: Any) -> str | None:
        return None if value is None else self._cipher.encrypt(value)


class ReviewerOnly(Exception):
    """Feedback would replace a reviewer's; the argument is its index."""


def _replaced(connection: Connection, row: Mapping[str, Any]) -> bool:
    """Adds a row of feedback or replaces the one with its identifier; False, without effect, if it may not."""
    added = upsert(connection, FEEDBACK).values(row)
    first = {"counted": func.coalesce(FEEDBACK.c.counted, added.excluded.counted)}
    by_reviewer = func.coalesce(FEEDBACK.c.reviewer, FEEDBACK.c.kind == Kind.REVIEW)
    may = or_(FEEDBACK.c.principal == row["principal"], added.excluded.reviewer, not_(by_reviewer))
    keys = ["task", "identifier"]
    changed = added.on_conflict_do_update(index_elements=keys, set_={**row, **first}, where=may)
    return connection.execute(changed.returning(FEEDBACK.c.identifier)).first() is not None


def _counted(row: Mapping[str, Any], text_id: str | None) -> list[Any] | None:
    """The part of a row that `outcomes` reads; None if it does not count."""
    counts = row["kind"] == Kind.OUTCOME or (row["kind"] == Kind.REVIEW and _has_spans(row))
    return [row["right"], row["answers"], text_id] if counts and row["new_labels"] is None else None


def _has_spans(row: Mapping[str, Any]) -> bool:
    """Whether the right label or an answer has spans; people learn entities by labeling a text, not by its outcome."""
    labels = [row["right"], *row["answers"].values()]
    return any(isinstance(item, list) for label in labels if isinstance(label, list) for item in label)


def no_sample() -> SampleNotFound:
    """Makes the error for an id that is not kept, or not one of the caller's tasks; both look the same."""
    return SampleNotFound("no answer with this id is kept")


def _columns(record: Sample | Feedback) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__}


def _outcome(row: Row[Any]) -> tuple[ShortAnswer, dict[int, ShortAnswer], str | None]:
    """Returns the right answer of an outcome, each version's, and the id of its text, which older rows lack.

    Raises ValueError or TypeError if they are damaged.
    """
    right, answers, text_id = (*row.counted, None)[:3]
    each = {int(version): answer_from(answer) for version, answer in {**answers}.items()}
    return answer_from(right), each, None if text_id is None else str(text_id)
