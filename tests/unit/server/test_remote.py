"""A front end refuses by itself where the engine's process has just refused whatever came, or reads nothing."""

import asyncio
import socket
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from onebert_encoder.text.tokens import Pieces
from onebert_server.access.principal import root
from onebert_server.answering.backend import Wanted
from onebert_server.front_ends import asking, wire
from onebert_server.front_ends.channel import MAX_UNREAD_BYTES, Channel
from onebert_server.front_ends.remote import RemoteBackend
from onebert_store.errors import OneBertError, QueueFull
from onebert_store.registry.grants import Quotas
from parts import context


async def refuse(backend, principal, whatever):
    """One question that the other side of the channel refuses."""
    asking = asyncio.create_task(backend.compute(context(principal), Wanted(["task"]), []))
    await asyncio.sleep(0)
    backend.received(wire.Refused(0, wire.Why(503, "queue-full", "Full", "try again soon", 7), whatever))
    with pytest.raises(OneBertError) as caught:
        await asking
    return caught.value


@asynccontextmanager
async def connected():
    """A backend, and the other end of its channel, which nobody reads unless the test does."""
    backend = RemoteBackend()
    here, there = socket.socketpair()
    there.setblocking(False)
    with there:
        transport, backend.channel = await asyncio.get_running_loop().create_connection(
            lambda: Channel(wire.FromEngine, backend.received, lambda: None), sock=here
        )
        yield backend, there, transport
        transport.close()


@pytest.fixture
def refused(monkeypatch):
    """Makes a backend whose first question, of `flood`, was refused."""
    monkeypatch.setattr(asking, "FULL_SECONDS", 60.0)

    def make(whatever):
        async def run():
            async with connected() as (backend, _, _):
                return backend, await refuse(backend, "flood", whatever)

        return asyncio.run(run())

    return make


def test_the_engines_word_counts_for_a_moment_and_for_its_principal(refused, monkeypatch):
    backend, error = refused(whatever=True)
    with pytest.raises(OneBertError) as again:
        backend.check(context("flood"))
    assert vars(again.value) == vars(error)
    assert (error.status, error.code, error.retry_after) == (503, "queue-full", 7)
    backend.check(context("other"))
    now = time.monotonic()
    monkeypatch.setattr(asking.time, "monotonic", lambda: now + 61)
    backend.check(context("flood"))


def test_a_key_that_is_over_its_quota_says_nothing_of_another_of_the_same_name(refused):
    """As where a key is changed for one with a larger quota."""
    backend, _ = refused(whatever=True)
    limited = replace(root("flood"), quotas=Quotas(requests=7.0))
    backend.check(replace(context("flood"), principal=limited))
    with pytest.raises(OneBertError):
        backend.check(context("flood"))


def test_what_was_refused_for_its_own_size_says_nothing_of_others(refused):
    backend, _ = refused(whatever=False)
    backend.check(context("flood"))


async def test_questions_that_an_engine_which_hangs_does_not_read_are_bounded():
    wanted = Wanted(["task"] * 64)
    inputs = [Pieces((tuple(range(1000, 1512)),), (512,)) for _ in range(64)]

    async def ask_and_leave(backend):
        backend.check(context("someone"))
        asking = asyncio.create_task(backend.compute(context("someone"), wanted, inputs))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    async def flood(backend):
        for _ in range(1000):
            await ask_and_leave(backend)

    async with connected() as (backend, engine, transport):
        with pytest.raises(QueueFull) as refused:
            await flood(backend)
        assert refused.value.retry_after
        assert transport.get_write_buffer_size() < 1.1 * MAX_UNREAD_BYTES
        async with asyncio.timeout(60):
            while backend.channel.full:
                await asyncio.get_running_loop().sock_recv(engine, 2**20)
        await ask_and_leave(backend)
