"""A registry in PostgreSQL: many replicas at once, errors with a type, locks that are lost, a network that fails."""

import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from time import monotonic

import pytest
from sqlalchemy import Engine, event, text

from onebert_store.errors import InvalidSettings, StorageFull, StorageUnavailable, StoreCorrupt, TaskNotFound
from onebert_store.registry import schema
from onebert_store.registry.dialects.postgresql import PostgresDatabase
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import StoreAddress, join_store, open_store
from onebert_store.upkeep import gc
from stores import go_back
from tiny_delta import make_delta

REPLICAS = 8


@pytest.fixture
def place(tmp_path, postgres_url):
    return StoreAddress.within(tmp_path, postgres_url)


@pytest.fixture
def behind(proxy, tmp_path):
    """A store behind a network that can fail."""
    return StoreAddress.within(tmp_path, proxy.url)


def end_connections(postgres, name):
    others = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    postgres.execute(others)


def name_of(place):
    return place.registry.partition("?")[0].rpartition("/")[2]


def test_of_replicas_that_start_at_once_one_makes_the_tables(place):
    start, made = threading.Barrier(REPLICAS), []

    def note(connection, cursor, statement, parameters, context, many):
        if "CREATE TABLE tasks" in statement:
            made.append(statement)

    def begin(_):
        start.wait()
        return opened.enter_context(Registry.open(place))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        with ExitStack() as opened, ThreadPoolExecutor(REPLICAS) as pool:
            replicas = list(pool.map(begin, range(REPLICAS)))
            replicas[0].add("spam", make_delta(1))
            assert all(replica.task("spam").versions == (1,) for replica in replicas)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert len(made) == 1


def test_a_replica_upgrades_an_older_schema_and_a_tool_does_not(place):
    with open_store(place) as store:
        go_back(store.database, 1)
    with pytest.raises(StoreCorrupt, match="start one of this version"), join_store(place):
        pass
    with Registry.open(place), join_store(place) as store, store.database.reading() as connection:
        assert store.database.schema_mark(connection) == schema.REGISTRY.schema


def test_a_newer_schema_and_another_programs_tables_are_refused(place, postgres):
    Registry.open(place).close()
    for mark, message in (("0099", "schema 99"), ("ab12cd", "another program")):
        postgres.execute(f"UPDATE alembic_version SET version_num = '{mark}'", database=name_of(place))
        for opening in (Registry.open, lambda where: join_store(where).__enter__()):
            with pytest.raises(StoreCorrupt, match=message):
                opening(place)


STATES = [
    ("53100", StorageFull, "no room"),
    ("53300", StorageUnavailable, "no resources"),
    ("08006", StorageUnavailable, "connection is lost"),
    ("57P01", StorageUnavailable, "stopped or started"),
    ("57014", StorageUnavailable, "took too long"),
    ("55P03", StorageUnavailable, "another process holds it"),
    ("40001", StorageUnavailable, "another change"),
    ("40P01", StorageUnavailable, "another change"),
    ("25006", StorageUnavailable, "read-only"),
    ("28P01", StorageUnavailable, "refuses the login"),
    ("42501", StorageUnavailable, "does not allow"),
    ("58030", StorageUnavailable, "disk fails"),
    ("XX001", StoreCorrupt, "damaged"),
    ("42P01", StoreCorrupt, "tables are missing"),
]


def test_errors_have_a_type_by_their_code(place):
    with open_store(place) as store:
        for state, error, message in STATES:
            with pytest.raises(error, match=message), store.database.writing() as connection:
                connection.execute(text(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{state}'; END $$"))
            with store.database.writing() as connection:
                connection.execute(text("SELECT 1"))


def test_a_task_is_deleted_once(place):
    with Registry.open(place) as registry, join_store(place) as store:
        registry.add("tone", make_delta(1))
        other = Registry(store)

        def delete_first(connection, cursor, statement, parameters, context, many):
            if "FOR NO KEY UPDATE" in statement and other.tasks():
                other.delete_task("tone")

        writers = registry._store.database.writers
        event.listen(writers, "before_cursor_execute", delete_first)
        with pytest.raises(TaskNotFound):
            registry.delete_task("tone")
        assert [change.action for change in registry.feed.read(0, 10)] == ["upload", "delete-task"]


def test_a_lock_that_was_lost_leaves_no_row(place, postgres):
    """Meanwhile a sweep might have removed the file."""
    with Registry.open(place) as registry:
        registry.add("spam", make_delta(1))
        delta = make_delta(2)
        with registry.storing(delta) as stored:
            end_connections(postgres, name_of(place))
            with join_store(place) as store:
                assert len(gc.sweep(store, timedelta(0)).removed) == 1
            with pytest.raises(StorageUnavailable):
                registry.add_stored("spam", delta, stored)
        assert registry.task("spam").versions == (1,)
        assert registry.add("spam", delta)[0].version == 2
        registry.verify(registry.version("spam", 2))


def test_a_sweep_that_has_lost_its_lock_removes_nothing_more(place, postgres):
    with Registry.open(place) as registry, join_store(place) as store:
        with store.database.sweeping() as lock:
            lock.check()
            end_connections(postgres, name_of(place))
            with pytest.raises(StorageUnavailable):
                lock.check()
        registry.add("spam", make_delta(1))


def test_a_failure_while_the_file_is_stored_gives_the_lock_back(place):
    with Registry.open(place) as registry, join_store(place) as store:
        with pytest.raises(RuntimeError), registry.storing(make_delta(1)):
            raise RuntimeError
        with store.database.sweeping():
            pass


def test_a_registry_goes_on_after_a_restart(place, postgres):
    with Registry.open(place) as registry:
        registry.add("spam", make_delta(1))
        postgres.stop()
        try:
            for call in (lambda: registry.add("spam", make_delta(2)), registry.tasks):
                with pytest.raises(StorageUnavailable):
                    call()
        finally:
            postgres.start()
        assert registry.task("spam").versions == (1,)
        assert registry.add("spam", make_delta(2))[0].version == 2


@pytest.mark.parametrize(("fault", "end"), [("silence", "speak"), ("refuse", "accept")])
def test_a_registry_goes_on_after_a_fault_of_the_network(behind, proxy, fault, end):
    with Registry.open(behind) as registry:
        registry.add("spam", make_delta(1))
        proxy.cut()
        assert registry.task("spam").versions == (1,)
        getattr(proxy, fault)()
        for call in (lambda: registry.add("spam", make_delta(2)), registry.tasks):
            with pytest.raises(StorageUnavailable):
                call()
        getattr(proxy, end)()
        assert registry.task("spam").versions == (1,)
        assert registry.add("spam", make_delta(2))[0].version == 2


def test_a_read_only_server_is_left(place, postgres):
    """As after a failover: connections to the old primary stay open, and only new ones find the new one."""
    read_only = f"ALTER DATABASE {name_of(place)} SET default_transaction_read_only = "
    with Registry.open(place) as registry:
        registry.add("spam", make_delta(1))
        postgres.execute(read_only + "on")
        end_connections(postgres, name_of(place))
        with pytest.raises(StorageUnavailable, match="read-only"):
            registry.add("spam", make_delta(2))
        postgres.execute(read_only + "off")
        assert registry.add("spam", make_delta(2))[0].version == 2


def test_names_are_ordered_by_their_bytes(place):
    names = ["a", "a-b", "a.b", "a0", "a_b", "ab", "b"]
    with Registry.open(place) as registry:
        for name in reversed(names):
            registry.add(name, make_delta(1))
        assert [task.name for task in registry.tasks()] == names == sorted(names)


def test_no_password_is_in_an_error_a_log_or_a_value(behind, proxy, caplog):
    caplog.set_level(logging.DEBUG)
    proxy.refuse()
    with pytest.raises(StorageUnavailable) as caught:
        Registry.open(behind)
    assert "s3cret" not in f"{caught.value.detail} {behind!r} {behind} {caplog.text}"
    assert "Connection refused" in caplog.text


@pytest.mark.parametrize("url", ["//u:s3cret@h:1/db", "//h:1/db?user=u&password=s3cret", "//u:s3cret?s3cret@h:1/db"])
def test_where_it_is_says_nothing_of_the_login(url):
    database = PostgresDatabase(f"postgresql:{url}")
    database.close()
    assert database.where == "PostgreSQL, host h, port 1, dbname db"


@pytest.mark.parametrize("rest", ["//u:s3cret@h/db?no_such=1", "//u:s3cret@[h/db"])
def test_a_url_that_is_none_is_refused_without_repeating_it(tmp_path, rest):
    with pytest.raises(InvalidSettings) as caught:
        Registry.open(StoreAddress.within(tmp_path, f"postgresql:{rest}"))
    assert "s3cret" not in caught.value.detail
    assert caught.value.__cause__ is None


def test_a_change_that_is_given_up_soon_waits_no_longer_for_others(place):
    with open_store(place) as store:
        with store.database.writing(monotonic() + 5) as connection:
            limits = {connection.scalar(text(f"SHOW {name}_timeout")) for name in ("statement", "lock")}
        assert len(limits) == 1
        assert re.fullmatch(r"\d{1,4}ms|\ds", limits.pop())
        with store.database.writing(monotonic() + 3600) as holder:
            assert holder.scalar(text("SHOW lock_timeout")) == "10s"
            holder.execute(text("LOCK TABLE tasks"))
            with (
                pytest.raises(StorageUnavailable, match=r"it took too long|another process holds it"),
                store.database.writing(monotonic()) as connection,
            ):
                connection.execute(text("LOCK TABLE tasks"))
