"""`onebert store backup`, `restore` and `copy`: whole stores from one place to another, also while they are in use."""

import os
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import select, text

from onebert_store.errors import InvalidInput
from onebert_store.registry.database import ORPHANS, TABLES
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.queries import version_entries
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import StoreAddress, join_store, open_store
from onebert_store.registry.target import alone
from onebert_store.samples.records import Feedback, Kind, Sample
from onebert_store.samples.store import open_samples
from onebert_store.samples.tables import OF_TASKS, UNKNOWN
from onebert_store.upkeep import transfer
from onebert_store.upkeep.check import check_versions
from onebert_store.upkeep.gc import sweep
from stores import digests, feedback_of, name_of
from tiny_delta import make_delta

KEY = Fernet.generate_key().decode()
KEPT = "1 kept answers, 2 rows of feedback\n"


@pytest.fixture
def source(tmp_path):
    """Two tasks, of which one has a moved alias and lost its newest version, so that its next number is 4.

    The other has a kept answer and two rows of feedback.
    """
    address = StoreAddress.within(tmp_path / "store")
    with Registry.open(address) as registry:
        for seed in (1, 2, 3):
            registry.add("spam", make_delta(seed))
        registry.move_alias("spam", "live", 2, 1)
        registry.move_alias("spam", "next", 1, None)
        registry.delete_version("spam", 3)
        registry.add("tone", make_delta(4, labels=["calm", "angry"]))
        registry.set_keeping("tone", Keeping(1.0, 3650, 1000))
    keep(address, "r/0", "order-1")
    give(address, "order-2")
    return address


def keep(address, id, *identifiers):
    """Keeps an answer of `tone`, with feedback on it."""
    sample = Sample("tone", id, 1, datetime.now(UTC), "key:app", ("late parcel",), ("angry",), 0.75, 0.1)
    with join_store(address) as store, open_samples(store.database, [KEY]) as samples:
        samples.keep([(samples.owner("tone").keeping, sample)])
    give(address, *identifiers, texts=("late parcel",), answer_id=id)


def give(address, *identifiers, task="tone", **more):
    rows = [
        Feedback(task, each, Kind.OUTCOME, "calm", {1: "angry"}, datetime.now(UTC), "key:people", **more)
        for each in identifiers
    ]
    with join_store(address) as store, open_samples(store.database, [KEY]) as samples:
        samples.prepare()
        samples.record([(samples.owner(task), row) for row in rows])


def labels(address, task="tone"):
    with join_store(address) as store, open_samples(store.database, [KEY]) as samples:
        return {row.identifier: (row.right, row.texts) for row in feedback_of(samples, task)}


def unknown(address):
    with join_store(address) as store, open_samples(store.database) as samples:
        samples.sweeper.sweep()
        return sum(rows.feedback for rows in samples.sweeper.unknown())


@pytest.fixture
def folder(tmp_path):
    """An empty folder for a store."""
    return StoreAddress.within(tmp_path / "target")


@pytest.fixture(params=["folder", "database and bucket"])
def target(request, tmp_path):
    """An empty place for a store: all of it in a folder, or nothing."""
    if request.param == "folder":
        return request.getfixturevalue("folder")
    urls = (request.getfixturevalue(name) for name in ("postgres_url", "bucket_url"))
    return StoreAddress.within(tmp_path / "target", *urls)


def rows(address):
    """All rows but the marks of orphans and of unknown rows; kept answers and feedback as they are on the disk."""
    with join_store(address) as store, open_samples(store.database) as samples:
        of_store = [table for table in TABLES.sorted_tables if table is not ORPHANS]
        of_samples = [table for table in OF_TASKS if table is not UNKNOWN]
        of_tables = {}
        for database, tables in ((store.database, of_store), (samples.database, of_samples)):
            for table in tables:
                with database.reading() as connection:
                    of_tables[table.name] = sorted(map(repr, connection.execute(select(table))))
        return of_tables


def blobs(address):
    with join_store(address) as store:
        return digests(store)


def problems(address):
    """What a check finds; the blobs of all versions are read."""
    with join_store(address) as store:
        with store.database.reading() as connection:
            entries = version_entries(connection)
        return [check_version.problem for check_version in check_versions(store, entries) if check_version.problem]


def copy(source, target, **arguments):
    with join_store(source) as opened, open_store(target, new_database=True) as filled:
        return transfer.copy_store(opened, filled, **arguments)


@pytest.mark.slow
def test_a_backup_is_restored_into_a_folder(onebert, source, target, tmp_path, monkeypatch):
    copy(source, target)
    monkeypatch.setenv("ONEBERT_REGISTRY", target.registry)
    monkeypatch.setenv("ONEBERT_BLOBS", target.blobs)
    monkeypatch.setenv("ONEBERT_DATA_DIR", str(tmp_path / "target"))
    with Registry.open(target) as registry:
        assert onebert("backup", tmp_path / "backup")[::2] == (0, "")
        registry.add("spam", make_delta(11))
        assert onebert("backup", tmp_path / "backup")[::2] == (0, "")
    for name in ("REGISTRY", "BLOBS"):
        monkeypatch.delenv(f"ONEBERT_{name}")
    monkeypatch.setenv("ONEBERT_DATA_DIR", str(tmp_path / "restored"))
    assert onebert("restore", tmp_path / "backup")[::2] == (0, "")
    restored = StoreAddress.within(tmp_path / "restored")
    assert rows(restored) == rows(target)
    assert problems(restored) == []


def as_argument(address):
    return f"{address.registry},{address.blobs}"


def test_a_copy_has_every_row_and_the_blobs_that_they_name(onebert, source, target, tmp_path):
    code, out, err = onebert("copy", tmp_path / "store", as_argument(target))
    assert (code, out, err) == (
        0,
        "3 versions; 3 files (3,080 bytes) were new\n" + KEPT,
        "",
    )
    assert rows(target) == rows(source)
    # The blob of the deleted version stays behind.
    assert blobs(source) - blobs(target) == {make_delta(3).digest}
    assert problems(target) == []
    with Registry.open(target) as registry:
        record, created = registry.add("spam", make_delta(5))
        assert (record.version, created) == (4, True)
        assert registry.task("spam").aliases["live"].earlier == (alone(1),)


def test_a_finished_copy_is_brought_up_to_date(source, target):
    copy(source, target)
    with Registry.open(source) as registry:
        registry.add("spam", make_delta(6))
        registry.delete_task("tone")
        registry.delete_alias("spam", "next", 1)
    again = copy(source, target)
    assert (again.versions, again.blobs, again.problems) == (3, 1, {})
    assert rows(target) == rows(source)


def test_feedback_that_comes_while_it_is_copied_is_known_to_the_copy(source, folder):
    """It is of a task that the first look at the registry does not have."""
    with Registry.open(source) as registry:

        def give_more(done, total):
            registry.add("late", make_delta(7))
            give(source, f"late-{done}", task="late")

        copy(source, folder, report=give_more)
    assert labels(folder, "late")
    assert unknown(folder) == 0


def test_feedback_that_the_source_never_had_is_not_overwritten(source, folder):
    copy(source, folder)
    give(folder, "order-3")
    with pytest.raises(InvalidInput, match="feedback of the target never was in the source"):
        copy(source, folder)
    assert labels(folder).keys() == {"order-1", "order-2", "order-3"}
    # What the source has deleted with its task may go.
    with Registry.open(source) as registry:
        registry.delete_task("tone")
    copy(source, folder)
    assert unknown(folder) == 0


def test_a_broken_copy_is_finished_by_the_next(source, target, monkeypatch):
    """In between, what the target's registry does not know yet stays there, marked."""
    copy(source, target)
    with Registry.open(source) as registry:
        registry.add("late", make_delta(7))
    give(source, "late-1", task="late")
    with monkeypatch.context() as broken:
        broken.setattr(transfer, "_copy_rows", interrupt)
        with pytest.raises(KeyboardInterrupt):
            copy(source, target)
    assert "late" not in "".join(rows(target)["tasks"])
    assert unknown(target) == 1
    give(source, "late-2", task="late")
    copy(source, target)
    assert rows(target) == rows(source)
    assert labels(target, "late").keys() == {"late-1", "late-2"}


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_registry_restored_beside_later_feedback_leaves_it(onebert, source, tmp_path):
    """Only the registry was lost; it knows no later task, and finds the others' feedback."""
    assert onebert("backup", tmp_path / "backup")[0] == 0
    with Registry.open(source) as registry:
        registry.add("late", make_delta(7))
    give(source, "late-1", task="late")
    give(source, "order-3")
    for path in (tmp_path / "store").glob("registry.sqlite3*"):
        path.unlink()
    code, out, _ = onebert("restore", tmp_path / "backup")
    assert (code, out.splitlines()[1][:44]) == (0, "kept answers and feedback stay as they are: ")
    assert labels(source).keys() == {"order-1", "order-2", "order-3"}
    assert unknown(source) == 1


def test_deleted_texts_leave_the_next_backup(onebert, source, tmp_path):
    backup = tmp_path / "backup"
    onebert("backup", backup)
    with join_store(source) as store, open_samples(store.database) as samples:
        with samples.database.reading() as connection:
            tokens = connection.scalars(text("SELECT texts FROM samples UNION SELECT texts FROM feedback")).all()
        samples.delete_texts(samples.owner("tone").task)
    stored = [token.encode() for token in tokens if token]
    files = lambda: b"".join(path.read_bytes() for path in backup.glob("samples.sqlite3*"))  # noqa: E731
    assert [token in files() for token in stored] == [True, True]
    onebert("backup", backup)
    assert [token in files() for token in stored] == [False, False]


def test_a_copy_that_was_broken_off_goes_on_where_it_stopped(source, target, monkeypatch):
    monkeypatch.setattr(transfer, "_BLOBS_TOGETHER", 2)

    def break_off(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(source, target, report=break_off)
    assert len(blobs(target)) == 2
    assert not any(rows(target)["versions"])
    assert copy(source, target).blobs == 1
    assert rows(target) == rows(source)


def test_a_copy_beside_changes_is_one_moment(source, folder):
    with (
        Registry.open(source) as registry,
        open_store(folder, new_database=True) as filled,
        join_store(source) as opened,
    ):
        changes = [
            lambda: registry.add("late", make_delta(7)),
            lambda: registry.delete_task("tone"),
            lambda: registry.add("spam", make_delta(8)),
        ]
        moments = [rows(source)]

        def change(done, total):
            if changes:
                changes.pop()()
                moments.append(rows(source))

        transfer.copy_store(opened, filled, report=change)
    assert len(moments) > 2
    assert rows(folder) in moments
    assert problems(folder) == []


def test_a_sweep_of_the_target_spares_the_copy(source, target):
    """A backup with files of no version, for longer than the grace, of which the source has one again."""
    copy(source, target)
    with Registry.open(source) as registry:
        registry.delete_task("tone")
    copy(source, target)
    with Registry.open(source) as registry:
        registry.add("tone", make_delta(4, labels=["calm", "angry"]))
    with join_store(source) as opened, open_store(target, new_database=True) as filled:
        swept = []

        def sweep_once(done, total):
            if not swept:
                swept.extend(sweep(filled, timedelta()).removed)

        transfer.copy_store(opened, filled, report=sweep_once)
    assert len(swept) == 1
    assert rows(target) == rows(source)
    assert problems(target) == []


def test_another_store_is_not_overwritten(source, folder):
    with Registry.open(folder) as registry:
        registry.add("spam", make_delta(9))
    before = rows(folder)
    with pytest.raises(InvalidInput, match="spam@1 of the target never was in the source"):
        copy(source, folder)
    assert rows(folder) == before
    newer = StoreAddress.within(folder.folder / "newer")
    copy(source, newer)
    with Registry.open(newer) as registry:
        registry.add("tone", make_delta(9))
    with pytest.raises(InvalidInput, match="tone@2 of the target"):
        copy(source, newer)


def test_a_store_that_is_not_empty_is_not_restored_into(onebert, source, tmp_path):
    onebert("backup", tmp_path / "backup")
    assert onebert("restore", tmp_path / "backup")[::2] == (1, "error: the store is not empty\n")
    for path in (tmp_path / "store").glob("registry.sqlite3*"):
        path.unlink()
    # Only the database was lost: the blobs that are there are not copied again.
    code, out, _ = onebert("restore", tmp_path / "backup")
    assert (code, out) == (0, "3 versions; 0 files (0 bytes) were new\n" + KEPT)
    assert rows(source) == rows(StoreAddress.within(tmp_path / "backup"))


@pytest.mark.parametrize("put", [lambda path: None, os.mkfifo], ids=["nothing", "a pipe"])
def test_a_damaged_file_is_named_and_the_rest_is_copied(onebert, source, tmp_path, put):
    path = tmp_path / "store" / "blobs" / name_of(make_delta(1))
    path.unlink()
    put(path)
    code, out, err = onebert("backup", tmp_path / "backup")
    assert (code, out) == (1, "3 versions; 2 files (2,056 bytes) were new\n" + KEPT)
    assert f"{make_delta(1).digest}: the blob" in err
    assert err.endswith("error: 1 files could not be read; `onebert store check` names their versions\n")
    backup = StoreAddress.within(tmp_path / "backup")
    assert rows(backup) == rows(source)
    assert len(problems(backup)) == 1


def test_a_copy_is_not_ended_by_the_time_that_other_statements_have(source, postgres, postgres_url, tmp_path):
    hurried = StoreAddress.within(tmp_path / "target", f"{postgres_url}&options=-c%20statement_timeout%3D500ms")
    copy(source, hurried)
    slow = "CREATE FUNCTION slow() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END' LANGUAGE plpgsql"
    trigger = "CREATE TRIGGER slow BEFORE DELETE ON versions EXECUTE FUNCTION slow()"
    postgres.execute(slow, trigger, database=postgres_url.partition("?")[0].rpartition("/")[2])
    with Registry.open(source) as registry:
        registry.add("late", make_delta(7))
    copy(source, hurried)
    assert rows(hurried) == rows(source)
