"""Tasks on a Ray cluster as a command runs them: so many at once, and again where the caller gives one back."""

from collections import deque
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")
from onebert_store.command import cluster


@pytest.fixture
def running(monkeypatch):
    """The tasks under way. Instead of Ray, a stream is a list whose head is ready; an error in it ends the task."""
    counts = []

    def wait(streams):
        counts.append(len(streams))
        return [streams[-1]], []

    def get(result):
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(cluster, "ray", SimpleNamespace(wait=wait, get=get))
    return counts


def test_results_come_as_they_are_and_no_more_tasks_run_than_asked(running):
    waiting = iter("abcd")
    received = list(cluster.run(lambda task: iter([task, task * 2]), lambda: next(waiting, None), 2))
    results = [(task, result) for task, result in received if isinstance(result, str)]
    assert sorted(results) == [(task, task * times) for task in "abcd" for times in (1, 2)]
    assert [task for task, result in received if isinstance(result, StopIteration)] == ["b", "c", "d", "a"]
    assert set(running) == {1, 2}


def test_a_task_that_is_given_back_is_started_again(running):
    streams, waiting = {"a": [[1, cluster.RayError("a worker died"), 3], [2]]}, deque(["a"])
    received = []
    for task, result in cluster.run(
        lambda task: iter(streams[task].pop(0)), lambda: waiting.popleft() if waiting else None, 9
    ):
        received.append(result)
        if isinstance(result, cluster.RayError):
            waiting.append(task)
    assert [received[0], received[2]] == [1, 2]
    assert [type(result) for result in received[1::2]] == [cluster.RayError, StopIteration]
