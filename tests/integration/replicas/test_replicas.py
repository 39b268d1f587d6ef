"""Several replicas on one registry: each shows what any of them changed, and at once where a request asks for it."""

from contextlib import ExitStack

import pytest

from onebert_server.versions import follower, presence
from onebert_server.versions.version import State
from onebert_store.errors import StorageUnavailable
from onebert_store.registry.feed import Feed
from replicas import Replicas
from servers import wait_until


def test_replicas_on_postgresql_hear_of_changes(tmp_path, postgres_url, monkeypatch):
    """They would look by themselves once an hour."""
    monkeypatch.setattr(follower, "POLL_EVERY", 3600.0)
    with ExitStack() as stack:
        replicas = Replicas(stack, tmp_path, postgres_url, 2)
        replicas.upload(0, "task", 1)
        there = replicas.runtimes[1].directory
        wait_until(lambda: there.counts()["resident"] == 1)
        replicas.change(0, "DELETE", "/v1/tasks/task")
        wait_until(lambda: there.counts()["tasks"] == 0)


def test_a_change_is_read_on_every_replica_by_its_number(replicas):
    first = replicas.upload(0, "task", 1)
    assert replicas.classify(1, "task", first).json()["version"] == 1
    second = replicas.upload(0, "task", 2)
    assert replicas.ask(1, "GET", "/v1/tasks/task/versions/2", second).status_code == 200
    third = replicas.promote(1, "task", 2, 1)
    assert replicas.classify(0, "task", third).json()["version"] == 2
    # Not plain: FastAPI answers it.
    fourth = replicas.promote(0, "task", 1, 2)
    answer = replicas.classify(1, "task", fourth, headers={"Content-Type": "application/json; charset=utf-8"})
    assert answer.json()["version"] == 1
    fifth = replicas.change(1, "DELETE", "/v1/tasks/task/versions/2")
    assert replicas.ask(0, "GET", "/v1/tasks/task/versions/2", fifth).json()["code"] == "version-not-found"
    sixth = replicas.change(0, "DELETE", "/v1/tasks/task/aliases/live", headers={"If-Match": '"1"'})
    assert replicas.classify(1, "task", sixth).json()["code"] == "alias-not-found"
    seventh = replicas.change(1, "DELETE", "/v1/tasks/task")
    assert replicas.ask(0, "GET", "/v1/tasks", seventh).json()["tasks"] == []
    assert [first, second, third, fourth, fifth, sixth, seventh] == list(range(1, 8))


def test_a_change_knows_what_another_replica_changed_a_moment_ago(replicas):
    first = replicas.upload(0, "task", 1)
    # Known content, although this replica has not looked since: no version is made of it.
    assert replicas.upload(1, "task", 1) == first
    replicas.upload(0, "task", 2)
    # A version that this replica has not heard of is found, loaded and promoted.
    replicas.promote(1, "task", 2, 1)
    assert replicas.runtimes[1].directory.version("task", 2).state is State.RESIDENT
    assert replicas.classify(1, "task").json()["version"] == 2
    # Content that another replica has deleted is a new version.
    replicas.promote(0, "task", 1, 2)
    replicas.change(0, "DELETE", "/v1/tasks/task/versions/2")
    assert replicas.upload(1, "task", 2) == 6
    assert set(replicas.runtimes[1].directory.task("task").versions) == {1, 3}


def test_a_change_that_nobody_has_made_is_refused_at_once(replicas):
    seq = replicas.upload(0, "task", 1)
    for answer in (replicas.classify(0, "task", seq + 1), replicas.ask(0, "GET", "/v1/tasks", seq + 1)):
        assert (answer.status_code, answer.json()["code"]) == (412, "change-unknown")


def test_a_change_is_waited_for_until_the_deadline(replicas, monkeypatch):
    seq = replicas.upload(0, "task", 1)
    monkeypatch.setattr(Feed, "last", lambda _: _raise(StorageUnavailable("the disk does not answer")))
    for answer in (
        replicas.classify(1, "task", seq, headers={"X-Request-Timeout": "0.1"}),
        replicas.ask(1, "GET", "/v1/tasks", seq, headers={"X-Request-Timeout": "0.1"}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline-exceeded")


@pytest.mark.parametrize("given", ["", "-1", "1.0", "one", "9" * 19])
def test_what_is_no_number_of_a_change_is_refused(replicas, given):
    assert replicas.classify(0, "task", given).json()["code"] == "invalid-input"


def test_a_promotion_may_wait_until_all_show_it(replicas, monkeypatch):
    monkeypatch.setattr(follower, "POLL_EVERY", 0.01)
    for runtime in replicas.runtimes:
        runtime.directory.position.wanted.set()  # they look at what is said of the pause
    replicas.upload(0, "task", 1)
    replicas.upload(0, "task", 2)
    replicas.promote(0, "task", 2, 1, "?wait=all")
    assert replicas.classify(1, "task").json()["version"] == 2


def test_a_promotion_that_waits_too_long_is_done(replicas, monkeypatch):
    # The promotion has a minute, and the first look at the others is the last within it.
    monkeypatch.setattr(presence, "POLL_EVERY", 60.0)
    replicas.upload(0, "task", 1)
    replicas.upload(0, "task", 2)
    path, headers = "/v1/tasks/task/aliases/live?wait=all", {"If-Match": '"1"', "X-Request-Timeout": "60"}
    answer = replicas.ask(0, "PUT", path, json={"version": 2}, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline-exceeded")
    assert answer.json()["detail"] == "it is done, as change 3; 1 of 2 replicas do not show it yet"
    assert replicas.classify(0, "task").json()["version"] == 2


def _raise(error):
    raise error
