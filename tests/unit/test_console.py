"""Signs of life where there is no terminal."""

import threading
from threading import Event

import pytest

from onebert_store.command import console


def test_a_log_is_told_that_work_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(console, "HEARTBEAT_S", 0.001)
    asked = [Event() for _ in range(3)]

    def describe():
        event = next((waiting for waiting in asked if not waiting.is_set()), asked[-1])
        event.set()
        return f"step {asked.index(event)}"

    with console.heartbeat(describe):
        assert asked[-1].wait(180)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["step 0", "step 1"]


def test_a_heart_stops_when_the_work_fails(monkeypatch):
    monkeypatch.setattr(console, "HEARTBEAT_S", 0.001)
    beaten, before = Event(), threading.enumerate()

    def fail():
        with console.heartbeat(lambda: beaten.set() or "beat"):
            assert beaten.wait(180)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not [thread for thread in threading.enumerate() if thread not in before]


def test_a_bar_without_a_terminal_says_how_far_it_is(monkeypatch, capsys):
    """Every command with a bar: a line of its own making, none for a task that is not shown."""
    monkeypatch.setattr(console, "HEARTBEAT_S", 0.001)
    beats, looked = threading.Semaphore(0), console._line

    def line(bar):
        beats.release()
        return looked(bar)

    monkeypatch.setattr(console, "_line", line)
    with console.progress() as bar:
        first = bar.add_task("reading files", total=1200)
        bar.add_task("hidden", visible=False)
        bar.advance(first, 1000)
        while beats.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have begun before the bar advanced
            assert beats.acquire(timeout=180)
    assert capsys.readouterr().err.splitlines()[-1] == "reading files: 1,000 of 1,200"
