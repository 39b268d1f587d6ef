"""The sample store on each kind of database: encrypted texts, first samples win, feedback replaces, bounds, counts."""

import hmac
import random
import sqlite3
from base64 import urlsafe_b64decode
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text

from onebert_store.comparison import Outcomes
from onebert_store.errors import (
    InvalidSettings,
    SampleNotFound,
    SamplesKeyNeeded,
    StorageUnavailable,
    TaskNotFound,
)
from onebert_store.registry.dialects import sqlite
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import open_store
from onebert_store.samples import store as sample_store
from onebert_store.samples.records import Feedback, Kind, Owner, Sample
from onebert_store.samples.store import FILE, ReviewerOnly, open_samples
from onebert_store.samples.tables import UNKNOWN
from stores import all_at_once, feedback_of
from tiny_delta import make_delta

KEY, OTHER = (Fernet.generate_key().decode() for _ in range(2))
MARKER = "a marker that no other file has"
NOW, DAY = datetime.now(UTC), timedelta(hours=24)
EVERYTHING = Keeping(1.0, 3650, 1_000_000)


def sample(id="r/0", task="tone", at=NOW, texts=(f"{MARKER} of an answer",), **fields):
    known = {"version": 3, "principal": "key:app", "labels": ("good",), "score": 0.75, "share": 0.1}
    return Sample(task=task, id=id, at=at, texts=texts, **known | fields)


def feedback(identifier="r/0", task="tone", right="bad", answers=None, at=NOW, **fields):
    known = {"kind": Kind.OUTCOME, "principal": "key:people"}
    return Feedback(task, identifier, right=right, answers=answers or {3: "good", 4: "bad"}, at=at, **known | fields)


@contextmanager
def opened(place, *keys):
    """The samples of a store whose tasks keep all answers."""
    with open_store(place) as store, open_samples(store.database, keys) as samples:
        registry = Registry(store)
        for task in ("tone", "two", "other"):
            registry.add(task, make_delta(1))
            registry.set_keeping(task, EVERYTHING)
        yield samples, registry


@pytest.fixture
def both(place):
    with opened(place, KEY) as made:
        yield made


@pytest.fixture
def samples(both):
    return both[0]


@pytest.fixture
def registry(both):
    return both[1]


def keep(samples, rows):
    return samples.keep([(samples.owner(row.task).keeping, row) for row in rows])


def record(samples, rows):
    return samples.record([(samples.owner(row.task), row) for row in rows])


def ids(samples, task="tone"):
    return [sample.id for sample in samples.without_feedback(task, 1000)]


def test_samples_and_feedback_come_back_as_they_were(samples):
    pair = sample("r/1", texts=("question?", "answer\u2028\x00"), labels=(), score=None)
    keep(samples, [sample(), pair])
    assert sorted(samples.find(["r/0", "r/1", "none"], lambda task: True), key=lambda sample: sample.id) == [
        sample(),
        pair,
    ]
    rows = [
        feedback("a", right=["x", "y"], answers={3: ["x"], 4: None}, at=NOW),
        feedback("b", right=0.25, answers={3: 0.5}, at=NOW - timedelta(1), kind=Kind.CORRECTION),
        feedback("c", right=[[0, 3, "PER"]], answers={3: []}, at=NOW - timedelta(2), kind=Kind.REVIEW),
        feedback("d", at=NOW - timedelta(3), texts=(MARKER,), explanation="why?", answer_id="r/0"),
    ]
    record(samples, rows)
    assert feedback_of(samples, "tone") == rows


def test_a_first_sample_stays_and_another_task_may_have_its_id(samples):
    keep(samples, [sample(), sample(texts=("another",)), sample(task="two")])
    keep(samples, [sample(texts=("late",))])
    assert samples.find(["r/0"], "tone".__eq__) == [sample()]
    assert len(samples.find(["r/0"], lambda task: True)) == 2


def test_feedback_replaces_feedback_with_its_identifier(samples):
    record(samples, [feedback("a"), feedback("b")])
    late = feedback("a", right="good", kind=Kind.REVIEW, at=NOW + timedelta(1))
    record(samples, [feedback("a"), late, feedback("a", task="two")])
    assert feedback_of(samples, "tone") == [late, feedback("b")]


def test_what_has_feedback_waits_no_more(samples):
    keep(samples, [sample(f"r/{n}", at=NOW + timedelta(n)) for n in range(4)])
    keep(samples, [sample("r/9", task="two")])
    record(samples, [feedback("x", answer_id="r/2"), feedback("y", task="two", answer_id="r/3")])
    assert ids(samples) == ["r/3", "r/1", "r/0"]
    assert [sample.id for sample in samples.without_feedback("tone", 1)] == ["r/3"]
    # Nor does an equal text with another id, or with none; of another task, or without its text, it is another one.
    keep(samples, [sample(f"same/{n}", texts=("a", "b")) for n in range(2)] + [sample("other", texts=("ab",))])
    given = {"texts": ("a", "b")}
    record(samples, [feedback("by text", task="two", **given), feedback("x", answer_id="r/2")])
    assert ids(samples) == ["r/3", "r/1", "other", "r/0", "same/0", "same/1"]
    record(samples, [feedback("by text", **given)])
    assert ids(samples) == ["r/3", "r/1", "other", "r/0"]
    samples.delete_sample("tone", "by text")
    assert ids(samples) == ["r/3", "r/1", "other", "r/0", "same/0", "same/1"]


def test_no_text_is_readable_in_the_database(place):
    with opened(place, KEY) as (samples, registry):
        keep(samples, [sample(texts=(MARKER, MARKER))])
        record(samples, [feedback(texts=(MARKER,), explanation=MARKER)])
        if registry.shared:
            with registry.database.reading() as connection:
                rows = [
                    *connection.execute(text("SELECT * FROM samples")),
                    *connection.execute(text("SELECT * FROM feedback")),
                ]
            stored = repr(rows).encode()
        else:
            stored = b"".join(file.read_bytes() for file in place.folder.glob(f"{FILE}*"))
    assert b"key:app" in stored
    assert MARKER.encode() not in stored


def test_a_later_key_encrypts_and_an_earlier_one_still_decrypts(place, monkeypatch):
    monkeypatch.setattr("onebert_store.samples.renewing._TOGETHER", 2)
    given = [feedback(f"{n}", texts=(MARKER,), explanation="why") for n in range(5)]
    with opened(place, KEY) as (samples, _):
        keep(samples, [sample("old")])
        record(samples, given)
    with opened(place, OTHER, KEY) as (samples, _):
        samples.prepare()
        keep(samples, [sample("new")])
        assert {sample.id for sample in samples.find(["old", "new"], lambda task: True)} == {"old", "new"}
    with opened(place, OTHER) as (samples, _):
        assert samples.find(["new"], lambda task: True) == [sample("new")]
        with pytest.raises(SamplesKeyNeeded, match="ONEBERT_SAMPLES_KEY lacks the key"):
            samples.find(["old"], lambda task: True)
        assert samples.find(["old"], "two".__eq__) == []
        # What feedback has outlasts every key.
        assert feedback_of(samples, "tone") == given


def test_a_text_keeps_its_identifier_under_later_keys(place):
    identifiers = []
    for keys in ((KEY,), (OTHER, KEY), (OTHER,), (KEY, OTHER)):
        with opened(place, *keys) as (samples, _):
            samples.prepare()
            identifiers.append(samples.identifier(["late"]))
    with opened(place, Fernet.generate_key().decode()) as (samples, _):
        unrelated = samples.identifier(["late"])
        with samples.database.reading() as connection:
            [stored] = connection.scalars(text("SELECT key FROM samples_naming"))
    derived = hmac.digest(urlsafe_b64decode(KEY), b"onebert: identifiers of feedback", "sha256")
    assert {*identifiers} == {"hmac-sha256:" + hmac.digest(derived, b'["late"]', "sha256").hex()}
    assert unrelated not in identifiers
    assert Fernet(KEY).decrypt(stored)


def test_without_a_key_there_is_feedback_and_no_text(place):
    with opened(place, KEY) as (samples, _):
        keep(samples, [sample()])
    with opened(place) as (samples, _):
        assert not samples.has_key
        record(samples, [feedback()])
        assert feedback_of(samples, "tone") == [feedback()]
        for call in (lambda: keep(samples, [sample("r/7")]), lambda: samples.find(["r/0"], lambda task: True)):
            with pytest.raises(SamplesKeyNeeded, match="ONEBERT_SAMPLES_KEY is not set"):
                call()
        samples.delete_sample("tone", "r/0")
        assert samples.count("tone") == 0


@pytest.mark.parametrize("key", ["short", "A" * 42, "A" * 45, "ü" * 44])
def test_a_malformed_key_is_refused_without_its_text(tmp_path, key):
    with (
        pytest.raises(InvalidSettings, match="ONEBERT_SAMPLES_KEY: a key is 32 bytes") as caught,
        opened(tmp_path, key),
    ):
        pass
    assert key not in str(caught.value)


def test_old_texts_and_the_oldest_samples_above_the_bound_go(samples, registry):
    keep(samples, [sample(f"r/{n}", at=NOW - timedelta(days=n, hours=1)) for n in range(6)])
    keep(samples, [sample("r/5", task="two", at=NOW - timedelta(days=9))])
    rows = [feedback(n, at=NOW - timedelta(9), answer_id=n, texts=(MARKER,), explanation="why") for n in ("r/4", "r/5")]
    record(samples, rows)
    registry.set_keeping("tone", Keeping(1.0, 4, 3))
    samples.sweeper.sweep()
    assert ids(samples) == ["r/0", "r/1", "r/2"]
    assert samples.count("two") == 1
    # A label that a person gave stays with its text, until that is deleted.
    assert samples.find(["r/4", "r/5"], "tone".__eq__) == []
    assert feedback_of(samples, "tone") == rows
    samples.delete_sample("tone", "r/4")
    assert samples.feedback_page("tone", "", 9) == (rows[1:], None)
    registry.set_keeping("tone", EVERYTHING)
    samples.sweeper.sweep()
    assert samples.count("tone") == 3


def test_above_the_bound_the_principal_with_most_rows_loses_its_oldest(samples, monkeypatch):
    monkeypatch.setattr("onebert_store.samples.store.MAX_FEEDBACK", 6)
    people = {"key:people": 3, "key:other": 2}
    for name, number in people.items():
        record(samples, [feedback(f"{name}-{n}", principal=name, at=NOW + timedelta(n)) for n in range(number)])
    record(samples, [feedback("kept", task="two")])
    for n in range(5):
        record(samples, [feedback(f"flood-{n}-{each}", principal="key:flood", at=NOW + DAY) for each in range(4)])
    names = [row.principal for row in feedback_of(samples, "tone")]
    assert {name: names.count(name) for name in set(names)} == {"key:people": 2, "key:other": 2, "key:flood": 2}
    left = [row.identifier for row in feedback_of(samples, "tone") if row.principal == "key:people"]
    assert left == ["key:people-2", "key:people-1"]
    assert len(feedback_of(samples, "two")) == 1


def test_a_reviewers_feedback_is_replaced_by_itself_and_by_reviewers_alone(samples):
    """Of every order of two rows by principals of both scopes, in one request and in two."""
    for together in (False, True):
        for first in (("key:a", True), ("key:a", False)):
            for second in (("key:a", True), ("key:a", False), ("key:b", True), ("key:b", False)):
                identifier = f"{together}-{first}-{second}"
                rows = [
                    feedback(identifier, principal=name, reviewer=reviewer, at=NOW + timedelta(n))
                    for n, (name, reviewer) in enumerate((first, second))
                ]
                refused = first[1] and second == ("key:b", False)
                if not together:
                    record(samples, rows[:1])
                with pytest.raises(ReviewerOnly, match="1" if not together else "2") if refused else nullcontext():
                    record(samples, [feedback(f"beside {identifier}"), *rows[1 - together :]])
                there = {row.identifier: row for row in feedback_of(samples, "tone")}
                assert there.get(identifier) == (rows[1] if not refused else None if together else rows[0])
                assert (f"beside {identifier}" in there) == (not refused)


def test_a_deleted_sample_leaves_no_text_in_feedback(samples):
    keep(samples, [sample(), sample("r/1")])
    given = feedback("mine", answer_id="r/0", texts=(MARKER,), explanation=MARKER)
    record(samples, [given])
    samples.delete_sample("tone", "r/0")
    assert feedback_of(samples, "tone") == [replace(given, texts=None, explanation=None)]
    assert ids(samples) == ["r/1"]
    record(samples, [feedback("by id", texts=(MARKER,))])
    samples.delete_sample("tone", "by id")
    assert {row.texts for row in feedback_of(samples, "tone")} == {None}
    for task, id in (("tone", "r/0"), ("two", "r/1"), ("tone", "by id")):
        with pytest.raises(SampleNotFound):
            samples.delete_sample(task, id)


def test_of_a_deleted_task_nothing_stays_and_nothing_comes_back(samples, registry):
    keep(samples, [sample()])
    record(samples, [feedback(texts=(MARKER,))])
    before = samples.owner("tone")
    registry.delete_task("tone")
    assert samples.owner("tone") == Owner("", None)
    registry.add("tone", make_delta(2))
    assert samples.owner("tone").keeping is None
    assert samples.keep([(before.keeping, sample("r/1"))]) == {}
    with pytest.raises(TaskNotFound):
        samples.record([(before, feedback("late"))])
    samples.sweeper.sweep()
    assert samples.find(["r/0", "r/1"], lambda task: True) == []
    assert rows_of(samples) == [0, 0]


@contextmanager
def forgotten(registry, task):
    """While the block runs the registry is as it was before the task was made."""
    tables = {table: f"SELECT * FROM {table} WHERE task = '{task}'" for table in ("keepings", "identities")}
    with registry.database.writing() as connection:
        rows = {table: connection.execute(text(query)).mappings().one() for table, query in tables.items()}
        for table in tables:
            connection.execute(text(f"DELETE FROM {table} WHERE task = '{task}'"))
    yield
    with registry.database.writing() as connection:
        for table, row in rows.items():
            values = ", ".join(f":{column}" for column in row)
            connection.execute(text(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values})"), dict(row))


def age_marks(samples, by):
    with samples.database.writing() as connection:
        connection.execute(UNKNOWN.update().values(since=datetime.now(UTC) - by))


def test_unknown_rows_are_removed_after_the_grace(samples, registry):
    for task in ("tone", "two"):
        keep(samples, [sample(task=task)])
        record(samples, [feedback(task=task), feedback("another", task=task)])
    id = samples.owner("tone").task
    with forgotten(registry, "tone"):
        assert [(rows.id, rows.since) for rows in samples.sweeper.sweep()] == [(id, None)]
        assert samples.sweeper.sweep() == []
        [marked] = samples.sweeper.unknown()
        assert (marked.id, marked.task, marked.samples, marked.feedback) == (id, None, 1, 2)
        age_marks(samples, DAY - timedelta(minutes=1))
        assert [*samples.sweeper.remove_unknown(DAY).values()] == [False]
    assert (samples.count("tone"), len(feedback_of(samples, "tone"))) == (1, 2)
    # A registry that knows the task again: the time begins anew afterwards.
    assert (samples.sweeper.sweep(), samples.sweeper.unknown()) == ([], [])
    with forgotten(registry, "tone"):
        assert [*samples.sweeper.remove_unknown(DAY).values()] == [False]
        age_marks(samples, DAY + timedelta(minutes=1))
        assert [*samples.sweeper.remove_unknown(DAY).values()] == [True]
        assert samples.sweeper.unknown() == []
    assert (samples.count("tone"), feedback_of(samples, "tone")) == (0, [])
    assert (samples.count("two"), len(feedback_of(samples, "two"))) == (1, 2)


def test_texts_of_an_unknown_keeping_are_marked(samples, registry):
    def write(id):
        keep(samples, [sample(id, at=datetime.now(UTC))])
        record(samples, [feedback(id, texts=(MARKER,), at=datetime.now(UTC)), feedback(f"{id} without")])

    write("before")
    # A crash between the registry's half of `delete_samples` and the other.
    registry.delete_keeping("tone")
    registry.set_keeping("tone", EVERYTHING)
    write("after")
    with registry.database.writing() as connection:
        connection.execute(text("DELETE FROM keepings WHERE task = 'tone'"))
    [unknown] = samples.sweeper.sweep()
    assert (unknown.task, unknown.samples, unknown.feedback) == ("tone", 1, 1)
    assert ids(samples) == ["after"]
    assert [row.identifier for row in feedback_of(samples, "tone") if row.texts] == ["after"]
    assert [*samples.sweeper.remove_unknown(timedelta(0)).values()] == [True]
    assert (ids(samples), {row.texts for row in feedback_of(samples, "tone")}) == ([], {None})
    assert len(feedback_of(samples, "tone")) == 4


def in_files(folder, tokens):
    """Whether a piece of each token is in a file; long ones lie in several pages."""
    files = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    pieces = ([token[at : at + 40].encode() for at in range(20, len(token) - 40, 999)] for token in tokens)
    return {any(piece in files for piece in each) for each in pieces}


@pytest.mark.parametrize("ending", ["texts", "each", "sweep", "bound", "task", "unknown"])
def test_deleted_texts_are_in_no_file_of_the_folder(tmp_path, ending, monkeypatch):
    """Also encrypted, also of a store that is open; texts have more than a page."""
    monkeypatch.setattr("onebert_store.samples.sweeping._ERASED_TOGETHER", 3)
    with opened(tmp_path, KEY) as (samples, registry):
        at, long = datetime.now(UTC), MARKER * 200
        keep(samples, [sample(f"r/{number}", at=at, texts=(long,)) for number in range(8)])
        record(samples, [feedback(f"r/{n}", texts=(long, ""), at=at, explanation="why") for n in range(8)])
        with samples.database.reading() as connection:
            query = "SELECT texts FROM samples UNION SELECT texts FROM feedback UNION SELECT explanation FROM feedback"
            tokens = connection.scalars(text(query)).all()
        assert (len(tokens), in_files(tmp_path, tokens)) == (24, {True})
        match ending:
            case "texts":
                samples.delete_texts(samples.owner("tone").task)
            case "each":
                for number in range(8):
                    samples.delete_sample("tone", f"r/{number}")
            case "sweep":
                registry.delete_keeping("tone")
                samples.sweeper.sweep()
            case "bound":
                registry.set_keeping("tone", Keeping(1.0, 3650, 1))
                samples.sweeper.sweep()
                [left] = ids(samples)
                samples.delete_sample("tone", left)
                samples.delete_texts(samples.owner("tone").task)
            case "task":
                registry.delete_task("tone")
                samples.sweeper.sweep()
            case "unknown":
                with forgotten(registry, "tone"):
                    samples.sweeper.remove_unknown(timedelta(0))
        assert in_files(tmp_path, tokens) == {False}


def test_a_database_that_another_program_holds_is_one_error_soon(tmp_path, monkeypatch):
    assert sqlite.BUSY_TIMEOUT_S <= 10
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.01)
    with opened(tmp_path, KEY) as (samples, _):
        keep(samples, [sample()])
        owner = samples.owner("tone")
        changes = [
            lambda: samples.delete_sample("tone", "r/0"),
            lambda: samples.delete_texts(owner.task),
            lambda: record(samples, [feedback()]),
            lambda: keep(samples, [sample("r/1")]),
            samples.sweeper.sweep,
        ]
        with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            for change in changes:
                with pytest.raises(StorageUnavailable, match="another process holds it"):
                    change()
                assert samples.database.state == "storage-unavailable"
            assert ids(samples) == ["r/0"]
        for change in changes:
            change()
            assert samples.database.state == "ok"


def rows_of(samples):
    with samples.database.reading() as connection:
        tables = ("samples", "feedback")
        return [connection.scalar(text(f"SELECT COUNT(*) FROM {table}")) for table in tables]


@contextmanager
def two_stores(place):
    """Two stores on one database, as two replicas have them."""
    with opened(place, KEY) as (first, registry), open_samples(registry.database, [KEY]) as two:
        yield first, two, registry


def test_a_deletion_holds_on_a_replica_that_has_not_heard_of_it(place):
    with two_stores(place) as (first, two, registry):
        before = two.owner("tone")
        keep(first, [sample()])
        registry.delete_keeping("tone")
        first.delete_texts(before.task)
        # Keeping begins anew, while the other replica still writes an answer and feedback from before.
        registry.set_keeping("tone", EVERYTHING)
        assert two.keep([(before.keeping, sample("late"))]) == {}
        assert two.record([(before, feedback("late", texts=(MARKER,)))]) == [False]
        assert (two.count("tone"), [row.texts for row in feedback_of(two, "tone")]) == (0, [None])
        keep(two, [sample("new")])
        assert ids(two) == ["new"]


def test_no_order_of_a_deletion_and_writes_leaves_a_text(place):
    """Two replicas write while a third call deletes all texts, or one: when all have ended, none is there."""
    with two_stores(place) as (first, two, registry):
        for turn in range(10):
            registry.set_keeping("tone", EVERYTHING)
            keep(first, [sample(f"r/{turn}")])
            before = first.owner("tone")

            def act(n, turn=turn, before=before):
                writer = (first, two)[n // 2 % 2]
                if n == 0 and turn % 2:
                    registry.delete_keeping("tone")
                    first.delete_texts(before.task)
                elif n == 0:
                    first.delete_sample("tone", f"r/{turn}")
                elif n % 2 and turn % 2:
                    writer.keep([(before.keeping, sample(f"{turn}/{n}"))])
                else:
                    given = feedback(f"{turn}/{n}", answer_id=f"r/{turn}", texts=(MARKER,))
                    writer.record([(before, given)])

            all_at_once(7, act)
            assert first.count("tone") == 0
            assert {row.texts for row in feedback_of(first, "tone")} <= {None}


def test_outcomes_are_those_of_counting_by_hand(samples):
    rng = random.Random(7)
    labels = [["x"], ["x", "y"], []]
    rows = [
        feedback(
            f"{n}",
            kind=rng.choice([*Kind]),
            right=rng.choice(labels),
            answers={version: rng.choice(labels) for version in (1, 2, 3) if rng.random() < 0.8},
        )
        for n in range(100)
    ]
    record(samples, rows)
    judged = [row for row in rows if row.kind is Kind.OUTCOME and {1, 3} <= row.answers.keys()]
    right = [(row.answers[1] == row.right, row.answers[3] == row.right) for row in judged]
    expected = Outcomes(*(right.count(pair) for pair in ((True, True), (True, False), (False, True), (False, False))))
    assert samples.outcomes("tone", 3, [1])[1] == expected
    assert min(expected) > 0
    assert samples.outcomes("tone", 9, [1])[1] == Outcomes()


def test_the_first_outcome_of_an_identifier_counts_whatever_comes_later(samples):
    record(samples, [feedback("a", kind=Kind.CORRECTION), feedback("b")])
    assert samples.outcomes("tone", 3, [4])[4] == Outcomes(wins=1)
    again = feedback("a", right="good"), feedback("b", right="good", answers={3: "good", 4: "bad", 5: "good"})
    record(samples, again)
    record(samples, [feedback("b", right="good", kind=Kind.REVIEW), feedback("a", kind=Kind.CORRECTION)])
    assert samples.outcomes("tone", 3, [4])[4] == Outcomes(wins=1, losses=1)
    assert samples.outcomes("tone", 3, [5])[5] == Outcomes()
    assert {row.identifier: row.right for row in feedback_of(samples, "tone")} == {"a": "bad", "b": "good"}


def test_concurrent_writers_leave_feedback_whole(samples):
    def write(n):
        record(samples, [feedback(f"{each}", right=f"{n}") for each in (range(9) if n % 2 else reversed(range(9)))])
        keep(samples, [sample(texts=(f"{n}",))])

    all_at_once(6, write)
    assert ids(samples) == ["r/0"]
    assert len({row.right for row in feedback_of(samples, "tone")}) == 1


def test_pages_of_samples_have_each_once_with_the_latest_feedback(samples):
    keep(samples, [sample(f"r/{at}") for at in range(7)] + [sample("r/0", task="other")])
    record(
        samples,
        [
            feedback("first", answer_id="r/3", at=NOW - timedelta(1)),
            feedback("second", answer_id="r/3", at=NOW, texts=(MARKER,)),
            feedback("third", task="other", answer_id="r/4"),
        ],
    )
    samples_of_pages, after = [], ""
    while after is not None:
        page, after = samples.page("tone", after, 3)
        assert len(page) <= 3
        samples_of_pages += page
    assert [sample.id for sample, _ in samples_of_pages] == [f"r/{at}" for at in range(7)]
    assert {sample.id: given.identifier for sample, given in samples_of_pages if given} == {"r/3": "second"}


def test_feedback_is_counted_from_each_tasks_own_time(samples, monkeypatch):
    monkeypatch.setattr(sample_store, "_COUNTED_TOGETHER", 2)
    rows = [feedback(f"{at}", task, at=NOW + timedelta(hours=at)) for task in ("tone", "two") for at in range(8)]
    record(samples, rows)
    times = {"tone": NOW + timedelta(hours=2), "two": NOW - timedelta(hours=1), "other": NOW, "none": NOW}
    assert samples.feedback_since(times) == {"tone": 5, "two": 8}


def test_pages_of_feedback_have_the_rows_with_a_text(samples):
    rows = [feedback(f"{at}", texts=(MARKER,) if at % 2 else None) for at in range(8)]
    record(samples, rows)
    assert samples.feedback_page("tone", "", 3) == (rows[1:7:2], "5")
    assert samples.feedback_page("tone", "5", 3) == (rows[7:], None)
    assert samples.feedback_page("other", "", 3) == ([], None)


JUNK = {
    "samples": {"labels": "x", "at": "yesterday", "texts": "", "score": "much", "share": "[]"},
    "feedback": {"answers": "[1]", "right": "x", "at": "", "kind": "guess", "texts": "gAAAAAjunk", "explanation": 5},
}


@pytest.mark.parametrize(("table", "column"), [(table, column) for table in JUNK for column in JUNK[table]])
def test_a_damaged_row_is_left_out_and_counted(tmp_path, table, column):
    with opened(tmp_path, KEY) as (samples, _):
        keep(samples, [sample(f"r/{at}") for at in range(4)])
        record(samples, [feedback(f"r/{at}", texts=(MARKER,), explanation="e") for at in range(4)])
        key = "id" if table == "samples" else "identifier"
        damage = text(f"UPDATE {table} SET \"{column}\" = :junk WHERE {key} = 'r/1'")
        samples.database.erase(lambda connection: connection.execute(damage, {"junk": JUNK[table][column]}))
        assert samples.check() == {"samples": 4, "feedback": 4, "damaged": 1} | {table: 3}
        pages = samples.page if table == "samples" else samples.feedback_page
        first, second = pages("tone", "", 2), pages("tone", "r/1", 2)
        assert [(len(rows), end) for rows, end in (first, second)] == [(1, "r/1"), (2, "r/3")]
        assert len(samples.find([f"r/{at}" for at in range(4)], "tone".__eq__)) == 4 - (table == "samples")
        assert len(ids(samples)) == 4 - (table == "samples")
        # What an outcome counts by stands apart.
        assert sum(samples.outcomes("tone", 3, [4])[4]) == 4
