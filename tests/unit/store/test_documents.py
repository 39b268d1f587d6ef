"""Documents of tasks on each kind of database: they go with the task, and are in the audit trail."""

import pytest

from onebert_store.errors import TaskNotFound
from onebert_store.registry.records import Actor
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import open_store
from tiny_delta import make_delta


@pytest.fixture
def registry(place):
    with open_store(place) as store:
        registry = Registry(store)
        for task in ("tone", "spam"):
            registry.add(task, make_delta(1))
        yield registry


def test_a_document_replaces_the_one_before_and_stands_beside_others(registry):
    documents = registry.documents
    seq = documents.write("tone", "a", "1", "set-a", Actor("key:ci", "r"))
    assert documents.write("tone", "a", "2", "set-a") == seq + 1
    documents.write("tone", "b", "3", "set-b")
    documents.write("spam", "a", "4", "set-a")
    rows = {key: documents.read(*key) for key in (("tone", "a"), ("tone", "b"), ("spam", "a"), ("spam", "b"))}
    assert [*rows.values()] == ["2", "3", "4", None]
    assert documents.tasks("a") == {"tone", "spam"}
    assert documents.delete("tone", "a", "delete-a") == seq + 4
    assert documents.delete("tone", "a", "delete-a") is None
    assert (documents.tasks("a"), documents.read("tone", "b")) == ({"spam"}, "3")
    trail = [(change.action, change.task, change.principal) for change in registry.feed.audit(seq - 1, 9)]
    assert trail[0] == ("set-a", "tone", "key:ci")
    assert [action for action, _, _ in trail] == ["set-a", "set-a", "set-b", "set-a", "delete-a"]


def test_a_document_needs_its_task(registry):
    for call in (
        lambda: registry.documents.write("gone", "a", "1", "set-a"),
        lambda: registry.documents.delete("gone", "a", "delete-a"),
    ):
        with pytest.raises(TaskNotFound):
            call()


def test_documents_are_deleted_with_their_task(registry):
    documents = registry.documents
    for task in ("tone", "spam"):
        documents.write(task, "a", task, "set-a")
    registry.delete_task("tone")
    registry.add("tone", make_delta(2))
    assert documents.read("tone", "a") is None
    registry.delete_alias("spam", "live", 1)
    registry.delete_version("spam", 1)
    assert documents.tasks("a") == set()
    registry.add("spam", make_delta(1))
    assert documents.read("spam", "a") is None
