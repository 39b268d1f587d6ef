"""Signs of life where there is no terminal."""

import threading
from threading import Event

import pytest

from onebert_store.command import console


def test_a_log_is_told_that_work_goes_on(monkeypatch, capsys):
    monkeypatch.setattr(console, "HEARTBEAT_S", 0.001)
    asked = [Event() for _ in range(3)]

    def describe():
        event = next((one for one in asked if not one.is_set()), asked[-1])
        event.set()
        return f"step {asked.index(event)}"

    with console.heartbeat(describe):
        assert asked[-1].wait(180)
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["step 0", "step 1"]


def test_what_is_short_says_nothing(capsys):
    with console.busy("looking"), console.heartbeat(lambda: "still looking"):
        pass
    assert capsys.readouterr().err == ""


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
