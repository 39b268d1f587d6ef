"""Versions that wait to be loaded: fair between principals, each given out once, none lost."""

from datetime import UTC, datetime

from directories import SlotHost, publish
from onebert_server.access.principal import root
from onebert_server.versions.directory import Directory
from onebert_server.versions.residency.load_queue import LoadQueue
from onebert_server.versions.version import Version
from onebert_store.registry.records import VersionEntry


def filled(count):
    """A directory of so many tasks of which none is in memory, and the queue that they wait in."""
    queue = LoadQueue()
    directory = Directory([SlotHost()], queue.put, lambda: 0.0)
    for number in range(count):
        entry = VersionEntry(f"task{number}", 1, f"sha256:{number:064x}", 1, datetime(2026, 1, 1, tzinfo=UTC))
        publish(directory, Version(entry), live=1)
    return directory, queue


def refs(first, last):
    return [f"task{number}" for number in range(first, last)]


def names(versions):
    return [version.entry.task for version in versions]


def test_a_thousand_cold_tasks_do_not_delay_anothers_one():
    directory, queue = filled(1001)
    directory.pin(refs(0, 1000), root("greedy"))
    directory.pin(refs(1000, 1001), root("modest"))
    assert names(queue.take(3)) == ["task0", "task1000", "task1"]


def test_what_was_loaded_in_anothers_turn_costs_nobody_a_turn():
    directory, queue = filled(3)
    directory.pin(refs(0, 3), root("one"))
    directory.pin(refs(0, 2), root("two"))
    for version in queue.take(2):
        directory.failed(version, "for a test", None)
    assert [names(queue.take(9)) for _ in range(2)] == [["task2"], []]


def test_what_still_waits_when_all_ends_is_given_back_once():
    directory, queue = filled(3)
    directory.pin(refs(0, 2), root("one"))
    directory.pin(refs(1, 3), root("two"))
    queue.close()
    assert not queue.take(9)
    assert sorted(names(queue.clear())) == refs(0, 3)
    assert queue.clear() == []
