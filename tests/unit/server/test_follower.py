"""The follower: a directory shows what the registry is, whoever changed it, and says up to which change."""

import asyncio
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lengths import examples
from onebert_server.access.context import Context
from onebert_server.access.principal import root
from onebert_server.versions.directory import Directory
from onebert_server.versions.follower import Follower, Offer
from onebert_server.versions.position import MAX_WAITING
from onebert_server.versions.presence import LOOK_EVERY, LOOK_SELDOM, Presence, _Waiter
from onebert_server.versions.version import State
from onebert_store.errors import (
    ChangeUnknown,
    DeadlineExceeded,
    OneBertError,
    QueueFull,
    StorageUnavailable,
    TaskNotFound,
)
from onebert_store.registry.database import CHANGES, writing
from onebert_store.registry.feed import Feed
from onebert_store.registry.records import Alias, VersionRecord
from onebert_store.registry.registry import Registry
from onebert_store.registry.replicas import Replicas
from onebert_store.registry.store import join_store
from registry_changes import MUTATIONS
from servers import wait_until
from tiny_delta import make_delta


class Replica:
    """A directory that follows a registry, without an engine: slots that were given back, versions to be loaded."""

    def __init__(self, registry):
        self.released, self.asked = [], []
        self.directory = Directory(self.released.append, lambda version, _: self.asked.append(version), time.monotonic)
        self.renamed = []
        self.follower = Follower(registry.feed, self.directory, renamed=lambda *names: self.renamed.append(names))
        self.follower.load()

    def shown(self):
        tasks = self.directory.tasks("", 1000)
        return {task.name: ({n: one.entry.digest for n, one in task.versions.items()}, task.aliases) for task in tasks}

    @property
    def seq(self):
        return self.directory.position.seq


def registered(registry):
    digests = {(entry.task, entry.version): entry.digest for entry in registry.entries()}
    return {
        task.name: ({n: digests[task.name, n] for n in task.versions}, dict(task.aliases)) for task in registry.tasks()
    }


@pytest.fixture
def registry(tmp_path):
    with Registry.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def replica(registry):
    return Replica(registry)


def context(min_seq, seconds=30.0, principal="test"):
    now = time.monotonic()
    return Context(root(principal), now + seconds, now, "request", min_seq)


STEPS = MUTATIONS | st.tuples(st.just("catch up"), st.integers(0, 1))


@settings(max_examples=examples(60))
@given(st.lists(STEPS, max_size=60))
def test_replicas_show_what_is_registered_however_often_they_look(tmp_path_factory, steps):
    """Two replicas look at different times, a third starts at the end; all of them end with the registry."""
    with Registry.open(tmp_path_factory.mktemp("feed")) as registry:
        replicas = [Replica(registry), Replica(registry)]
        for name, first, *rest in steps:
            if name == "catch up":
                replicas[first].follower.catch_up()
                assert replicas[first].shown() == registered(registry)
                continue
            try:
                getattr(registry, name)(first, *([make_delta(rest[0])] if name == "add" else rest))
            except OneBertError:
                continue
        for replica in (*replicas, Replica(registry)):
            replica.follower.catch_up()
            assert replica.shown() == registered(registry)
            assert replica.seq == registry.feed.last().seq


def test_a_task_that_is_renamed_stays_in_memory_and_answers_whoever_holds_it(registry, replica):
    for seed in (1, 2):
        registry.add("tone", make_delta(seed))
    registry.move_alias("tone", "next", 2, None)
    replica.follower.catch_up()
    (held,) = replica.directory.pin(["tone@next"], root("test"))
    replica.directory.loaded(held, 7, registry.version("tone", 2))
    registry.rename_task("tone", "mood")
    replica.follower.catch_up()
    assert replica.shown() == registered(registry)
    assert replica.renamed == [("tone", "mood")]
    (again,) = replica.directory.pin(["mood@next"], root("test"))
    assert (again is held, again.slot, again.entry.task) == (True, 7, "mood")
    with pytest.raises(TaskNotFound):
        replica.directory.pin(["tone"], root("test"))
    # What the loader read of it before it was renamed does not bring the old name back.
    replica.directory.know(held, VersionRecord("tone", 2, *_rest(registry.version("mood", 2))))
    assert held.entry.task == "mood"


def test_a_task_stays_in_memory_although_its_rename_is_read_later_than_what_came_before(registry, replica, monkeypatch):
    for seed in (1, 2):
        registry.add("tone", make_delta(seed))
    replica.follower.catch_up()
    (held,) = replica.directory.pin(["tone@2"], root("test"))
    replica.directory.loaded(held, 7, registry.version("tone", 2))
    registry.move_alias("tone", "live", 2, 1)
    registry.rename_task("tone", "mood")
    monkeypatch.setattr("onebert_server.versions.follower.READ_TOGETHER", 1)
    replica.follower.catch_up()
    assert replica.shown() == registered(registry)
    assert replica.directory.pin(["mood"], root("test")) == [held]


def test_changes_are_read_again_where_the_registry_fails_between_them_and_its_tasks(registry, replica, monkeypatch):
    registry.add("tone", make_delta(1))
    replica.follower.catch_up()
    (held,) = replica.directory.pin(["tone"], root("test"))
    registry.rename_task("tone", "mood")
    registry.add("tone", make_delta(2))
    task = Feed.task
    with monkeypatch.context() as disk:

        def failing(feed, name, *more):
            return _raise(StorageUnavailable("the disk does not answer")) if name == "tone" else task(feed, name, *more)

        disk.setattr(Feed, "task", failing)
        with pytest.raises(StorageUnavailable):
            replica.follower.catch_up()
    assert replica.directory.pin(["tone"], root("test")) == [held]
    replica.follower.catch_up()
    assert replica.shown() == registered(registry)
    assert replica.directory.pin(["mood"], root("test")) == [held]


def test_a_name_that_was_given_on_and_back_keeps_nothing_of_its_next_task(registry, replica):
    registry.add("b", make_delta(0))
    registry.rename_task("b", "a")
    registry.rename_task("a", "b")
    registry.add("a", make_delta(0))
    replica.follower.catch_up()
    assert replica.shown() == registered(registry)
    assert list(replica.shown()["b"][0]) == [1]


def _rest(record):
    return record.digest, record.size, record.created_at, record.manifest


def test_a_replica_that_was_away_shows_a_renamed_task_whole(registry, replica):
    """It reads the uploads when their versions are under another name already, and one more of that name."""
    registry.add("tone", make_delta(1))
    registry.add("tone", make_delta(2))
    registry.move_alias("tone", "live", 2, 1)
    registry.rename_task("tone", "mood")
    registry.add("mood", make_delta(3))
    registry.move_alias("mood", "live", 3, 2)
    registry.add("tone", make_delta(4))
    registry.rename_task("mood", "air")
    replica.follower.catch_up()
    assert replica.shown() == registered(registry)
    assert registered(registry)["tone"][0].keys() == {3}
    assert replica.directory.task_alias("air", "live") == Alias(3, previous=2)


def test_more_changes_than_are_read_at_once_are_all_applied(registry, replica, monkeypatch):
    monkeypatch.setattr("onebert_server.versions.follower.READ_TOGETHER", 3)
    for seed in range(10):
        registry.add("task", make_delta(seed))
    replica.follower.catch_up()
    assert replica.shown() == registered(registry)


def test_an_alias_that_is_always_there_always_means_a_version(registry, replica, monkeypatch):
    """Versions that are gone by the time their upload is read, one change at a time."""
    registry.add("task", make_delta(1))
    replica.follower.catch_up()
    for seed, version in enumerate(range(2, 6), 2):
        registry.add("task", make_delta(seed))
        registry.move_alias("task", "live", version, version - 1)
        registry.delete_version("task", version - 1)
    monkeypatch.setattr("onebert_server.versions.follower.READ_TOGETHER", 1)
    read = Feed.read

    def looked_at(feed, *arguments):
        replica.directory.unpin(replica.directory.pin(["task"], root("test")))
        return read(feed, *arguments)

    monkeypatch.setattr(Feed, "read", looked_at)
    replica.follower.catch_up()
    assert replica.shown() == registered(registry)


def test_a_version_that_is_deleted_is_not_shown_once_the_replica_has_caught_up(registry, replica, monkeypatch):
    """Its alias moves on to a version that is deleted while the changes until then are read, one at a time."""
    registry.add("task", make_delta(1))
    replica.follower.catch_up()
    registry.add("task", make_delta(2))
    registry.move_alias("task", "live", 2, 1)
    registry.delete_version("task", 1)
    last = registry.feed.last()
    registry.add("task", make_delta(3))
    registry.move_alias("task", "live", 3, 2)
    registry.delete_version("task", 2)
    monkeypatch.setattr(Feed, "last", lambda _: last)
    monkeypatch.setattr("onebert_server.versions.follower.READ_TOGETHER", 1)
    replica.follower.catch_up()
    assert replica.directory.find("task", make_delta(1).digest) is None
    assert replica.directory.task_alias("task", "live") == Alias(3, 2)


def test_a_task_without_its_last_alias_is_shown_without_it(registry, replica):
    for seed in (1, 2):
        registry.add("task", make_delta(seed))
    replica.follower.catch_up()
    registry.delete_alias("task", "live", 1)
    replica.follower.catch_up()
    assert replica.shown() == registered(registry)
    registry.delete_version("task", 1)
    replica.follower.catch_up()
    assert replica.shown() == registered(registry) == {"task": ({2: make_delta(2).digest}, {})}


def test_a_task_whose_last_version_is_deleted_is_gone_and_may_begin_again(registry, replica):
    registry.add("task", make_delta(1))
    replica.follower.catch_up()
    registry.delete_alias("task", "live", 1)
    replica.follower.catch_up()
    registry.delete_version("task", 1)
    replica.follower.catch_up()
    assert replica.shown() == registered(registry) == {}
    registry.add("task", make_delta(1))
    replica.follower.catch_up()
    assert replica.shown() == registered(registry) == {"task": ({2: make_delta(1).digest}, {"live": Alias(2)})}


def test_a_row_that_is_offered_is_the_row_of_the_version(registry, replica):
    offer = Offer("task", make_delta(1).digest, slot=7, row_bytes=70)
    replica.follower.offer(offer)
    registry.add("other", make_delta(1))
    registry.add("task", make_delta(1))
    replica.follower.catch_up()
    replica.follower.withdraw(offer)
    version = replica.directory.version("task", 1)
    assert (version.state, version.slot, version.row_bytes, offer.taken) == (State.RESIDENT, 7, 70, True)
    assert replica.directory.version("other", 1).state is State.LOADING


def test_a_row_that_nobody_took_stays_the_callers(registry, replica):
    offer = Offer("task", make_delta(1).digest, slot=7, row_bytes=70)
    replica.follower.offer(offer)
    replica.follower.withdraw(offer)
    registry.add("task", make_delta(1))
    replica.follower.catch_up()
    assert not offer.taken
    replica.follower.heal(offer, registry.entries()[0])
    assert replica.directory.version("task", 1).slot == 7


def test_what_becomes_live_elsewhere_is_loaded_before_anybody_asks(registry, replica):
    for seed in (1, 2):
        registry.add("task", make_delta(seed))
    registry.move_alias("task", "live", 2, 1)
    replica.follower.catch_up()
    # What was live in between is asked for by nobody any more.
    assert [version.entry.version for version in replica.asked] == [2]
    assert not replica.directory.give_up_unwanted(replica.asked[0])
    registry.add("task", make_delta(3))
    replica.follower.catch_up()
    assert len(replica.asked) == 1


def test_an_older_database_that_was_put_back_is_shown_as_it_is(registry, replica, tmp_path):
    registry.add("task", make_delta(1))
    registry.add("gone", make_delta(1))
    registry.close()
    shutil.copy(tmp_path / "store" / "registry.sqlite3", tmp_path / "backup")
    with Registry.open(tmp_path / "store") as before:
        before.add("task", make_delta(2))
        before.delete_task("gone")
        replica = Replica(before)
        assert replica.seq == 4
    shutil.copy(tmp_path / "backup", tmp_path / "store" / "registry.sqlite3")
    with Registry.open(tmp_path / "store") as restored:
        restored.add("task", make_delta(3))
        replica.follower._feed = restored.feed
        replica.follower.catch_up()
        assert replica.shown() == registered(restored)
        assert replica.seq == 3


@pytest.mark.parametrize("others", [2, 3])
def test_changes_that_were_lost_and_others_in_their_place_are_seen(registry, tmp_path, others):
    """As after a failover to a standby that lacked the last changes, and has by now as many others, or more."""
    registry.add("task", make_delta(1))
    registry.close()
    shutil.copy(tmp_path / "store" / "registry.sqlite3", tmp_path / "standby")
    with Registry.open(tmp_path / "store") as lost:
        lost.add("task", make_delta(2))
        lost.add("lost", make_delta(1))
        replica = Replica(lost)
    shutil.copy(tmp_path / "standby", tmp_path / "store" / "registry.sqlite3")
    with Registry.open(tmp_path / "store") as after:
        for seed in range(3, 3 + others):
            after.add("task", make_delta(seed))
        replica.follower._feed = after.feed
        replica.follower.catch_up()
        assert replica.shown() == registered(after)
        assert replica.seq == after.feed.last().seq
        after.add("task", make_delta(6))
        replica.follower.catch_up()
        assert replica.shown() == registered(after)


def test_an_alias_was_before_where_it_was_before_although_that_version_was_never_shown(registry, replica):
    registry.add("task", make_delta(1))
    replica.follower.catch_up()
    registry.add("task", make_delta(2))
    registry.move_alias("task", "live", 2, 1)
    registry.move_alias("task", "live", 1, 2)
    registry.delete_version("task", 2)
    replica.follower.catch_up()
    assert replica.directory.task_alias("task", "live") == Alias(1, previous=2)


def test_a_replica_whose_next_changes_are_gone_reads_everything_anew(registry, replica, tmp_path):
    for seed in range(4):
        registry.add("task", make_delta(seed))
    with join_store(tmp_path / "store") as store, writing(store.database) as connection:
        connection.execute(CHANGES.delete().where(CHANGES.c.seq < 3))
    replica.follower.catch_up()
    assert replica.shown() == registered(registry)
    with join_store(tmp_path / "store") as store, writing(store.database) as connection:
        connection.execute(CHANGES.delete())
    late = Replica(registry)
    registry.delete_version("task", 4)
    late.follower.catch_up()
    assert late.shown() == registered(registry)


def test_who_wants_a_change_to_be_seen_waits_for_it(registry, replica):
    async def live():
        waiting = asyncio.create_task(replica.directory.position.seen(context(1)))
        await asyncio.sleep(0)
        assert not waiting.done()
        await asyncio.to_thread(registry.add, "task", make_delta(1))
        await asyncio.to_thread(replica.follower.catch_up)
        await waiting
        await replica.directory.position.seen(context(1, seconds=0))

    asyncio.run(live())


def test_who_wants_a_change_of_a_registry_that_does_not_answer_waits_until_its_time_is_over(replica):
    with pytest.raises(DeadlineExceeded, match="shows change 0, and not yet change 9"):
        asyncio.run(replica.directory.position.seen(context(9, seconds=0.01)))


def test_who_waits_for_changes_leaves_room_for_others_where_the_registry_does_not_answer(replica):
    """Each holds its body as long as it waits."""
    position = replica.directory.position

    async def live():
        waiting = [asyncio.create_task(position.seen(context(9))) for _ in range(MAX_WAITING // 2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await position.seen(context(9))
        with pytest.raises(DeadlineExceeded):
            await position.seen(context(9, seconds=0.01, principal="another"))
        position.move(9)
        await asyncio.gather(*waiting)
        position.seq = 0
        with pytest.raises(DeadlineExceeded):
            await position.seen(context(9, seconds=0.01))

    asyncio.run(live())


def test_who_wants_more_than_there_is_hears_so_after_a_look_that_began_later(registry, replica):
    registry.add("task", make_delta(1))
    position = replica.directory.position

    async def live():
        position.begin_look()
        waiting = asyncio.create_task(position.seen(context(2)))
        await asyncio.sleep(0)
        position.end_look()
        await asyncio.sleep(0)
        assert not waiting.done()
        await asyncio.to_thread(replica.follower.catch_up)
        with pytest.raises(ChangeUnknown, match="the registry's last change is 1; there is no change 2"):
            await waiting

    asyncio.run(live())


def test_the_thread_shows_what_others_change_and_at_once_what_somebody_waits_for(registry, replica, monkeypatch):
    monkeypatch.setattr("onebert_server.versions.follower.LOOK_EVERY", 3600.0)
    looked, catch_up = threading.Semaphore(0), Follower.catch_up

    def counted(follower):
        catch_up(follower)
        looked.release()

    monkeypatch.setattr(Follower, "catch_up", counted)
    replica.follower.start()
    with ExitStack() as stack:
        stack.callback(replica.follower.close)
        assert looked.acquire(timeout=180)
        registry.add("task", make_delta(1))
        asyncio.run(replica.directory.position.seen(context(1)))
        assert replica.shown() == registered(registry)
    assert not replica.follower.dead


def test_the_thread_outlives_a_registry_that_does_not_answer(registry, replica, monkeypatch, caplog):
    monkeypatch.setattr("onebert_server.versions.follower.LOOK_EVERY", 0.001)
    last, failures = Feed.last, []

    def failing(feed):
        if len(failures) < 3:
            failures.append(StorageUnavailable("the disk does not answer"))
            raise failures[-1]
        return last(feed)

    replica.follower.start()
    monkeypatch.setattr(Feed, "last", failing)
    registry.add("task", make_delta(1))
    wait_until(lambda: replica.seq == 1)
    replica.follower.close()
    assert replica.shown() == {"task": ({1: make_delta(1).digest}, {"live": Alias(1)})}
    assert [record.message for record in caplog.records] == [
        "the registry cannot be followed: the disk does not answer"
    ]


@pytest.fixture
def presence(registry):
    return Presence(registry.replicas)


def test_all_have_a_change_when_every_live_replica_says_so(registry, presence):
    presence.report(3)
    registry.replicas.report("other", 4)

    async def live(threads):
        await presence.all_at(4, context(0), threads)
        waiting = asyncio.create_task(presence.all_at(5, context(0), threads))
        await asyncio.sleep(0)
        await asyncio.to_thread(registry.replicas.report, "other", 5)
        await waiting
        with pytest.raises(DeadlineExceeded, match="it is done, as change 6; 1 of 2 replicas do not show it yet"):
            await presence.all_at(6, context(0, seconds=0.1), threads)
        await asyncio.to_thread(registry.replicas.leave, "other")
        await presence.all_at(6, context(0), threads)

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(live(threads))


def test_many_who_wait_for_all_are_told_by_the_same_few_looks(registry, presence, monkeypatch):
    """They share four threads with everybody who lists or uploads."""
    registry.replicas.report("other", 1)
    looks, live = [], Replicas.live
    monkeypatch.setattr(Replicas, "live", lambda self: looks.append(1) or live(self))

    async def run(threads):
        waiting = [asyncio.create_task(presence.all_at(2, context(0), threads)) for _ in range(500)]
        while len(looks) < 3:
            await asyncio.sleep(0)
        assert not any(one.done() for one in waiting)
        await asyncio.to_thread(registry.replicas.report, "other", 2)
        await asyncio.gather(*waiting)
        seen = len(looks)
        # Whoever comes now is told by a look that begins now.
        await presence.all_at(2, context(0), threads)
        assert seen < len(looks) < 100

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(run(threads))


def test_who_waits_for_all_for_long_has_the_database_asked_twice_a_second(presence):
    """At first fifty times, since most replicas are there at once; and once more before the time is over."""
    first, second = (_Waiter(1, None, deadline=60.0, since=since) for since in (0.0, 10.0))
    presence._waiting = {first}
    assert [presence._rest(now) for now in (0.0, 0.9, 1.1, 59.0)] == [0.0, 0.0, LOOK_SELDOM, LOOK_SELDOM]
    assert presence._rest(59.8) == pytest.approx(0.2 - LOOK_EVERY)
    assert presence._rest(60.0) == 0.0
    presence._waiting.add(second)
    assert (presence._rest(10.9), presence._rest(11.1)) == (0.0, LOOK_SELDOM)


def test_who_comes_while_looks_are_seldom_is_told_at_once(registry, presence, monkeypatch):
    monkeypatch.setattr("onebert_server.versions.presence.LOOK_SELDOM", 3600.0)
    monkeypatch.setattr("onebert_server.versions.presence.SOON", 0.0)
    registry.replicas.report("other", 1)

    async def run(threads):
        lags = asyncio.create_task(presence.all_at(2, context(0, seconds=7200.0), threads))
        await asyncio.sleep(0)
        await presence.all_at(1, context(0, seconds=7200.0), threads)
        lags.cancel()

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(run(threads))


def test_who_waits_for_all_is_told_that_the_registry_does_not_answer(presence, monkeypatch):
    monkeypatch.setattr(Replicas, "live", lambda _: _raise(StorageUnavailable("the disk does not answer")))

    async def run(threads):
        with pytest.raises(StorageUnavailable):
            await presence.all_at(2, context(0), threads)

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(run(threads))


def _raise(error):
    raise error


def test_a_replica_says_where_it_is_when_that_is_news_or_a_second_has_passed(registry):
    now, said = 0.0, []
    presence = Presence(registry.replicas, lambda: now)
    presence._replicas = type("Said", (), {"report": lambda _, replica, seq: said.append((replica, seq))})()
    for now, seq in ((0.0, 1), (0.5, 1), (0.6, 2), (1.1, 2), (1.6, 2), (1.7, 2)):  # noqa: B007 - the clock reads it
        presence.report(seq)
    assert said == [(presence.id, 1), (presence.id, 2), (presence.id, 2)]


def test_a_replica_is_listed_from_before_it_shows_anything_until_it_ends(registry, presence):
    registry.add("task", make_delta(1))
    directory = Directory(lambda _: None, lambda *_: None, time.monotonic)
    follower = Follower(registry.feed, directory, presence)
    follower.load()
    registry.add("task", make_delta(2))
    assert registry.replicas.live() == []
    follower.start()
    assert directory.position.seq == 2
    wait_until(lambda: [(one.id, one.seq) for one in registry.replicas.live()] == [(presence.id, 2)])
    follower.close()
    assert registry.replicas.live() == []


def test_processes_that_share_a_database_follow_each_other(registry, tmp_path):
    with join_store(tmp_path / "store") as store:
        other = Registry(store)
        here, there = Replica(registry), Replica(other)
        other.add("task", make_delta(1))
        registry.add("task", make_delta(2))
        _, seq = other.move_alias("task", "live", 2, 1)
        for replica in (here, there):
            replica.follower.reach(seq)
            assert replica.shown() == registered(registry)
