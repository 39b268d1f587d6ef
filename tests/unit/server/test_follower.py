"""The follower: a directory shows what the registry is, whoever changed it, and says up to which change."""

import asyncio
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from directories import SlotHost
from lengths import examples
from onebert_server.access.principal import root
from onebert_server.versions import follower
from onebert_server.versions.directory import Directory
from onebert_server.versions.follower import Follower, Offer
from onebert_server.versions.position import MAX_WAITING
from onebert_server.versions.presence import Presence
from onebert_server.versions.version import State
from onebert_store.errors import (
    ChangeUnknown,
    DeadlineExceeded,
    OneBertError,
    QueueFull,
    StorageUnavailable,
    TaskNotFound,
)
from onebert_store.registry.database import CHANGES
from onebert_store.registry.feed import Feed
from onebert_store.registry.registry import Registry
from onebert_store.registry.replicas import Replicas
from onebert_store.registry.store import join_store
from parts import context
from registry_changes import MUTATIONS, rename_as_before
from servers import wait_until
from tiny_delta import make_delta

ASKS = root("test")


class Replica:
    """A directory that follows a registry, without an engine: slots that were given back, versions to be loaded."""

    def __init__(self, registry, page=500):
        self.registry, self.page, self.slots = registry, page, count(1)
        self.host, self.asked, self.held = SlotHost(), [], []
        self.directory = Directory([self.host], lambda version, _: self.asked.append(version), time.monotonic)
        self.follower = Follower(registry.feed, self.directory)
        self.follower.load()

    @property
    def seq(self):
        return self.directory.position.seq

    def shown(self):
        return {
            task.name: ({n: _facts(version.entry) for n, version in task.versions.items()}, _pointers(task))
            for task in self.directory.tasks("", 1000)
        }

    def change(self, name, *what):
        """Makes a change as this replica's catalog does: of an upload it has the row already."""
        if name != "add":
            change(self.registry, name, *what)
            return
        self.follower.catch_up()
        task, delta = what[0], make_delta(what[1])
        if self.directory.find(task, delta.digest):
            return
        offer = Offer(task, delta.digest, self.host.slot(next(self.slots)), row_bytes=70)
        with self.follower.offering(offer):
            record, created = self.registry.add(task, delta)
            self.follower.catch_up()
            if not created:
                self.follower.show_registered(record)
        assert offer.taken
        assert self.directory.version(task, record.version).slot == offer.slot

    def poll(self):
        """Looks at the registry: afterwards all is as it is there, and what was in memory is still there."""
        before = {version: version.held_slot for version in self.resident()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(follower, "READ_TOGETHER", self.page)
            self.follower.catch_up()
        assert self.shown() == registered(self.registry)
        assert self.seq == self.registry.feed.last().seq
        there = {version.entry: version for version in self.directory.versions()}
        for entry in self.registry.entries():
            same = [version for version in before if version.entry == entry]
            assert not same or there[entry] in same
        assert all(version.held_slot == before[version] for version in self.resident() if version in before)
        assert self.resident() >= {version for version in before if not version.retired}

    def resident(self):
        return {version for version in self.directory.versions() if version.state is State.RESIDENT}

    def load(self):
        """Loads all that requests or the follower ask for, as the loader does."""
        for version in dict.fromkeys(self.asked):
            if version.state is State.LOADING:
                record = version.entry.with_manifest(make_delta(1).manifest)
                self.directory.loaded(version, self.host.slot(next(self.slots)), record)
        self.asked.clear()

    def ask(self, ref):
        """Holds what a reference means, if it means something here, and asks for its row."""
        try:
            self.held += self.directory.pin([ref], ASKS)
        except OneBertError:
            return

    def check_slots(self):
        """Each slot is a shown version's, a held one's, or was given back once."""
        self.load()
        self.directory.unpin(self.held)
        numbers = [version.slot.number for version in self.resident()]
        assert sorted(self.host.freed + numbers) == list(range(1, next(self.slots)))


def _facts(entry):
    """What tells a version from all others, under whatever name its task has."""
    return entry.version, entry.digest, entry.created_at


def _pointers(task):
    """Where aliases point and pointed before; each means a version that is there."""
    return {name: (at.version, at.earlier) for name, at in task.aliases.items() if at.version in task.versions}


def registered(registry):
    entries = {(entry.task, entry.version): _facts(entry) for entry in registry.entries()}
    return {
        task.name: ({n: entries[task.name, n] for n in task.versions}, _pointers(task)) for task in registry.tasks()
    }


def change(registry, name, task, *what):
    try:
        getattr(registry, name)(task, *([make_delta(what[0])] if name == "add" else what))
    except OneBertError:
        return


@pytest.fixture
def registry(tmp_path):
    with Registry.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def replica(registry):
    return Replica(registry)


REPLICAS = st.integers(0, 1)
REFS = st.sampled_from(["a", "b@next", "a@1", "b@2", "c"])
STEPS = st.one_of(
    st.tuples(st.just("change"), st.none() | REPLICAS, MUTATIONS),
    st.tuples(st.sampled_from(["poll", "load"]), REPLICAS),
    st.tuples(st.just("ask"), REPLICAS, REFS),
)


@settings(max_examples=examples(40))
@given(pages=st.tuples(*[st.sampled_from([1, 2, 500])] * 2), steps=st.lists(STEPS, max_size=40))
def test_replicas_show_what_is_registered_however_often_they_look(tmp_path_factory, pages, steps):
    """Two replicas, and others, make changes, and they look at different times; a third one starts at the end."""
    with Registry.open(tmp_path_factory.mktemp("feed")) as registry:
        replicas = [Replica(registry, page) for page in pages]
        for step, who, *what in steps:
            if step != "change":
                getattr(replicas[who], step)(*what)
            elif who is None:
                change(registry, *what[0])
            else:
                replicas[who].change(*what[0])
        fresh = Replica(registry).shown()
        for replica in replicas:
            replica.poll()
            assert replica.shown() == fresh
            replica.check_slots()


def steps_of(text):
    """Changes in words: `move_alias a live 2 1; delete_task b`."""
    return [tuple(int(part) if part.isdigit() else part for part in step.split()) for step in text.split("; ")]


PROMOTED = steps_of(
    "add a 1; add a 2; move_alias a live 2 1; delete_version a 1; add a 3; move_alias a live 3 2; delete_version a 2"
)
HISTORIES = {
    "an alias moves on, and the version before is deleted, again and again": PROMOTED,
    "an alias was before where a version was never shown": steps_of(
        "add a 1; add a 2; move_alias a live 2 1; move_alias a live 1 2; delete_version a 2"
    ),
    "a task without an alias ends with its last version and begins again": steps_of(
        "add a 1; add a 2; delete_alias a live 1; delete_version a 1; delete_version a 2; add a 1"
    ),
    "another task has the name of one that was deleted": steps_of(
        "add a 1; add b 1; add a 2; move_alias a live 2 1; delete_task b; add b 1"
    ),
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_a_replica_that_looked_last_at_any_point_shows_the_end(registry, history):
    """Whatever it reads at once; what it has in memory stays there."""
    replicas = []
    for step in history:
        replicas += [Replica(registry, page) for page in (1, 3, 500)]
        for replica in replicas[-3:]:
            for version in replica.directory.versions():
                replica.ask(f"{version.entry.task}@{version.entry.version}")
            replica.load()
        change(registry, *step)
    for replica in replicas:
        replica.poll()
        replica.check_slots()


def test_a_rename_by_a_server_of_an_earlier_release_is_followed(registry, replica):
    replica.change("add", "tone", 1)
    replica.poll()
    rename_as_before(registry, "tone", "mood")
    replica.poll()
    assert [*replica.shown()] == ["mood"]
    [version] = replica.directory.pin(["mood"], ASKS)
    assert (version.entry.task, version.entry.version) == ("mood", 1)
    with pytest.raises(TaskNotFound):
        replica.directory.pin(["tone"], ASKS)


def test_an_alias_that_is_always_there_always_means_a_version(registry, replica, monkeypatch):
    """Versions that are gone by the time their upload is read, one change at a time."""
    change(registry, *PROMOTED[0])
    replica.poll()
    for step in PROMOTED[1:]:
        change(registry, *step)
    replica.page, read = 1, Feed.read

    def looked_at(feed, *arguments):
        replica.directory.unpin(replica.directory.pin(["a"], ASKS))
        return read(feed, *arguments)

    monkeypatch.setattr(Feed, "read", looked_at)
    replica.poll()


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


@pytest.mark.parametrize(
    ("lost", "others"),
    [
        pytest.param("add a 2; delete_task gone", "add a 3", id="an older backup"),
        pytest.param("add a 2; add lost 1", "add a 3; add a 4", id="as many"),
        pytest.param("add a 2", "add a 3; add a 4; add a 5", id="more than were lost"),
        pytest.param("add a 2", "add a 2", id="the same content again"),
    ],
)
def test_changes_that_were_lost_and_others_in_their_place_are_seen(tmp_path, lost, others):
    """As after a backup was put back, or a failover to a standby that lacked the last changes."""
    store = tmp_path / "store"
    with Registry.open(store) as registry:
        for task in ("a", "gone"):
            registry.add(task, make_delta(1))
    shutil.copy(store / "registry.sqlite3", tmp_path / "standby")
    with Registry.open(store) as before:
        for step in steps_of(lost):
            change(before, *step)
        replica = Replica(before)
    shutil.copy(tmp_path / "standby", store / "registry.sqlite3")
    with Registry.open(store) as after:
        replica.registry, replica.follower._feed = after, after.feed
        for step in [*steps_of(others), ("add", "a", 6)]:
            change(after, *step)
            replica.poll()


def test_a_replica_without_its_next_changes_reads_all_anew(registry, replica, tmp_path):
    for seed in range(4):
        registry.add("task", make_delta(seed))
    with join_store(tmp_path / "store") as store, store.database.writing() as connection:
        connection.execute(CHANGES.delete().where(CHANGES.c.seq < 3))
    replica.poll()
    with join_store(tmp_path / "store") as store, store.database.writing() as connection:
        connection.execute(CHANGES.delete())
    late = Replica(registry)
    registry.delete_version("task", 4)
    late.poll()


async def test_who_waits_for_changes_leaves_room_for_others(replica):
    """Each holds its body as long as it waits."""
    position = replica.directory.position
    waiting = [asyncio.create_task(position.reached(context(min_seq=9))) for _ in range(MAX_WAITING // 2)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await position.reached(context(min_seq=9))
    with pytest.raises(DeadlineExceeded):
        await position.reached(context(min_seq=9, seconds=0.01, principal="another"))
    position.move(9)
    await asyncio.gather(*waiting)
    position.seq = 0
    with pytest.raises(DeadlineExceeded, match="shows change 0, and not yet change 9"):
        await position.reached(context(min_seq=9, seconds=0.01))


async def test_an_unknown_change_is_refused_after_a_later_look(registry, replica):
    registry.add("task", make_delta(1))
    position = replica.directory.position
    position.begin_poll()
    waiting = asyncio.create_task(position.reached(context(min_seq=2)))
    await asyncio.sleep(0)
    position.end_poll()
    await asyncio.sleep(0)
    assert not waiting.done()
    await asyncio.to_thread(replica.follower.catch_up)
    with pytest.raises(ChangeUnknown, match="the registry's last change is 1; there is no change 2"):
        await waiting


def test_the_thread_shows_at_once_what_somebody_waits_for(registry, replica, monkeypatch):
    monkeypatch.setattr("onebert_server.versions.follower.POLL_EVERY", 3600.0)
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
        asyncio.run(replica.directory.position.reached(context(min_seq=1)))
        assert replica.shown() == registered(registry)
    assert not replica.follower.dead


def test_the_thread_outlives_a_registry_that_does_not_answer(registry, replica, monkeypatch, caplog):
    monkeypatch.setattr("onebert_server.versions.follower.POLL_EVERY", 0.001)
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
    assert replica.shown() == registered(registry)
    assert [record.message for record in caplog.records] == [
        "the registry cannot be followed: the disk does not answer"
    ]


@pytest.fixture
def threads():
    with ThreadPoolExecutor(1) as started:
        yield started


@pytest.fixture
def presence(registry):
    return Presence(registry.replicas)


async def test_all_have_a_change_when_every_live_replica_says_so(registry, presence, threads):
    presence.report(3)
    registry.replicas.report("other", 4)
    await presence.all_at(4, context(), threads)
    waiting = asyncio.create_task(presence.all_at(5, context(), threads))
    await asyncio.sleep(0)
    await asyncio.to_thread(registry.replicas.report, "other", 5)
    await waiting
    with pytest.raises(DeadlineExceeded, match="it is done, as change 6; 1 of 2 replicas do not show it yet"):
        await presence.all_at(6, context(seconds=0.1), threads)
    await asyncio.to_thread(registry.replicas.leave, "other")
    await presence.all_at(6, context(), threads)


async def test_who_waits_for_all_hears_of_a_silent_registry(presence, monkeypatch, threads):
    monkeypatch.setattr(Replicas, "live", lambda _: _raise(StorageUnavailable("the disk does not answer")))
    with pytest.raises(StorageUnavailable):
        await presence.all_at(2, context(), threads)


def _raise(error):
    raise error


def test_a_replica_is_listed_as_long_as_it_shows_anything(registry, presence):
    registry.add("task", make_delta(1))
    directory = Directory([SlotHost()], lambda *_: None, time.monotonic)
    follower = Follower(registry.feed, directory, presence)
    follower.load()
    registry.add("task", make_delta(2))
    assert registry.replicas.live() == []
    follower.start()
    assert directory.position.seq == 2
    wait_until(lambda: [(replica.id, replica.seq) for replica in registry.replicas.live()] == [(presence.id, 2)])
    follower.close()
    assert registry.replicas.live() == []


def test_a_replica_reports_news_or_each_second(registry):
    now, reports = 0.0, []
    presence = Presence(registry.replicas, lambda: now)
    presence._replicas = type("Said", (), {"report": lambda _, replica, seq: reports.append((replica, seq))})()
    for now, seq in ((0.0, 1), (0.5, 1), (0.6, 2), (1.1, 2), (1.6, 2), (1.7, 2)):  # noqa: B007 - the clock reads it
        presence.report(seq)
    assert reports == [(presence.id, 1), (presence.id, 2), (presence.id, 2)]
