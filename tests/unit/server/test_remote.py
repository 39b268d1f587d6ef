"""A front end refuses by itself for a moment where the engine's process would have refused whatever came."""

import asyncio
import math
import socket
import time

import pytest

from onebert_server.answering.backend import Wanted
from onebert_server.context import Context
from onebert_server.front_ends import remote, wire
from onebert_server.front_ends.remote import RemoteBackend
from onebert_store.errors import OneBertError


def asker(principal):
    return Context(principal, math.inf, 0.0, "request")


async def refuse(backend, principal, whatever):
    """One question that the other side of the channel refuses."""
    asking = asyncio.create_task(backend.compute(asker(principal), Wanted(["task"]), []))
    await asyncio.sleep(0)
    backend.received(wire.Refused(0, 503, "queue-full", "Full", "try again soon", 7, whatever))
    with pytest.raises(OneBertError) as caught:
        await asking
    return caught.value


@pytest.fixture
def refused(monkeypatch):
    """Makes a backend whose first question, of `flood`, was refused."""
    monkeypatch.setattr(remote, "FULL_SECONDS", 60.0)

    def make(whatever):
        async def run():
            backend = RemoteBackend()
            here, there = socket.socketpair()
            loop = asyncio.get_running_loop()
            _, backend.channel = await loop.create_connection(
                lambda: wire.Channel(wire.FromEngine, backend.received, lambda: None), sock=here
            )
            error = await refuse(backend, "flood", whatever)
            there.close()
            await asyncio.sleep(0.01)
            return backend, error

        return asyncio.run(run())

    return make


def test_the_engines_word_counts_for_a_moment_and_for_its_principal(refused, monkeypatch):
    backend, error = refused(whatever=True)
    with pytest.raises(OneBertError) as again:
        backend.check(asker("flood"))
    assert vars(again.value) == vars(error)
    assert (error.status, error.code, error.retry_after) == (503, "queue-full", 7)
    backend.check(asker("other"))
    now = time.monotonic()
    monkeypatch.setattr(remote.time, "monotonic", lambda: now + 61)
    backend.check(asker("flood"))


def test_what_was_refused_for_its_own_size_says_nothing_of_others(refused):
    backend, _ = refused(whatever=False)
    backend.check(asker("flood"))
