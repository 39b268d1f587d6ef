"""A front end refuses by itself where the engine's process has just refused whatever came, or reads nothing."""

import asyncio
import socket
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from onebert_encoder.text.tokens import Pieces
from onebert_server.access.keys import KeyRing
from onebert_server.access.principal import root
from onebert_server.answering.backend import Wanted
from onebert_server.remote import backend as backend_module
from onebert_server.remote import wire
from onebert_server.remote.backend import RemoteBackend
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.channel import MAX_UNREAD_BYTES, framed
from onebert_server.remote.unix.transport import UnixTransport
from onebert_store.errors import OneBertError, QueueFull
from onebert_store.registry.grants import Quotas
from parts import context


async def refuse(backend, engine, principal, whatever):
    """One question that the other side of the channel refuses."""
    asking = asyncio.create_task(backend.compute(context(principal), Wanted(["task"]), {"base": []}))
    why = wire.Why(503, "queue-full", "Full", "try again soon", 7)
    engine.sendall(framed(frames.Reply(0, wire.Refused(why, whatever))))
    with pytest.raises(OneBertError) as caught:
        await asking
    return caught.value


@asynccontextmanager
async def connected():
    """A backend with its transport, and the other end of its channel, which nobody reads unless the test does."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        transport = UnixTransport(f"{folder}/engine", f"{folder}/relay")
        transport.lost = lambda: None
        listener.bind(f"{folder}/engine")
        listener.listen()
        listener.setblocking(False)
        listening = asyncio.create_task(transport.listen(KeyRing({})))
        engine, _ = await asyncio.get_running_loop().sock_accept(listener)
        with engine:
            engine.sendall(framed(wire.Keys({}, is_open=True)))
            await listening
            yield RemoteBackend(transport), engine, transport._channel
            transport.close()


@pytest.fixture
def refused(monkeypatch):
    """Makes a backend whose first question, of `flood`, was refused."""
    monkeypatch.setattr(backend_module, "FULL_SECONDS", 60.0)

    def make(whatever):
        async def run():
            async with connected() as (backend, engine, _):
                return backend, await refuse(backend, engine, "flood", whatever)

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
    monkeypatch.setattr(backend_module.time, "monotonic", lambda: now + 61)
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


@pytest.mark.promise("front-end-queue")
async def test_questions_that_an_engine_which_hangs_does_not_read_are_bounded():
    wanted = Wanted(["task"] * 64)
    inputs = {"base": [Pieces((tuple(range(1000, 1512)),), (512,)) for _ in range(64)]}

    async def ask_and_leave(backend):
        backend.check(context("someone"))
        asking = asyncio.create_task(backend.compute(context("someone"), wanted, inputs))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])

    async def flood(backend):
        for _ in range(1000):
            await ask_and_leave(backend)

    async with connected() as (backend, engine, channel):
        with pytest.raises(QueueFull) as refused:
            await flood(backend)
        assert refused.value.retry_after
        assert channel._transport.get_write_buffer_size() < 1.1 * MAX_UNREAD_BYTES
        async with asyncio.timeout(60):
            while channel.full:
                await asyncio.get_running_loop().sock_recv(engine, 2**20)
        await ask_and_leave(backend)
