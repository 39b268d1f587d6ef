"""Processes that add versions until they are killed; importable, because a new process looks them up by name."""

import os
import signal
from itertools import count

from sqlalchemy import Engine, event

from onebert_store.registry.registry import Registry
from tiny_delta import make_delta


def add_for_ever(place, seed, acknowledged):
    """Adds versions until killed, and says so after each returned."""
    registry = Registry.open(place)
    for number in count():
        record, created = registry.add(f"task-{number % 3}", make_delta(seed * 1000 + number))
        assert created
        acknowledged.send((record.task, record.version, record.digest))


def add_and_die(place, step):
    """Adds one version and kills itself at one step of it."""
    registry = Registry.open(place)
    module, name, nth, when = step
    if module == "row":
        event.listen(Engine, "commit", lambda connection: die())
    else:
        die_at(name, nth, when)
    registry.add("task", make_delta(2))


def die_at(name, nth, when):
    """Makes the nth call of an os function the process's last."""
    calls, original = count(1), getattr(os, name)

    def last_call(*arguments):
        if next(calls) != nth:
            return original(*arguments)
        if when == "after":
            original(*arguments)
        return die()

    setattr(os, name, last_call)


def die():
    os.kill(os.getpid(), signal.SIGKILL)
