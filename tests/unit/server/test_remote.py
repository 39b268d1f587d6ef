"""A front end refuses by itself where the engine's process has just refused whatever came, or reads nothing."""

import asyncio
import socket
import tempfile
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
import pytest

from onebert_server.access.keys import KeyRing
from onebert_server.access.principal import root
from onebert_server.engine.block import ENDED, REQUEST, SEQUENCE, Block, Ended
from onebert_server.remote import gateway as gateway_module
from onebert_server.remote import wire
from onebert_server.remote.gateway import RemoteGateway
from onebert_server.remote.unix.channel import MAX_UNREAD_BYTES, framed
from onebert_server.remote.unix.transport import UnixTransport
from onebert_server.remote.wire import EndedMessage
from onebert_store.errors import OneBertError, QueueFull
from onebert_store.registry.grants import Quotas
from parts import context


def block(principal, tokens=3, sequences=1):
    """One request with sequences of so many tokens."""
    requests, rows = np.zeros(1, REQUEST), np.zeros(sequences, SEQUENCE)
    requests["sequences"], rows["tokens"] = sequences, tokens
    return Block([context(principal).principal], requests, rows, np.zeros(sequences * tokens, np.int32))


async def refuse(gateway, engine, principal, whatever):
    """One request that the other side of the channel refuses; returns the error that the edge gets."""
    ended = asyncio.get_running_loop().create_future()
    gateway.answered = ended.set_result
    sent = block(principal)
    gateway.submit(sent)
    refused, error = np.zeros(1, ENDED), QueueFull("try again soon", 7)
    full = [(sent.principals[0], error)] if whatever else []
    engine.sendall(framed(EndedMessage.of(Ended(refused, sent.ids[:0], np.empty(0, np.float32), [error]), None, full)))
    [error] = (await ended).errors
    return error


@asynccontextmanager
async def connected():
    """A gateway with its transport, and the other end of its channel, which nobody reads unless the test does."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        transport = UnixTransport(f"{folder}/engine", f"{folder}/control")
        transport.lost = lambda: None
        listener.bind(f"{folder}/engine")
        listener.listen()
        listener.setblocking(False)
        listening = asyncio.create_task(transport.listen(KeyRing({})))
        engine, _ = await asyncio.get_running_loop().sock_accept(listener)
        with engine:
            engine.sendall(framed(wire.RegistryKeys({}, is_open=True)))
            await listening
            yield RemoteGateway(transport), engine, transport._channel
            transport.close()


@pytest.fixture
def refused(monkeypatch):
    """Makes a gateway whose first request, of `flood`, was refused."""
    monkeypatch.setattr(gateway_module, "FULL_SECONDS", 60.0)

    def make(whatever):
        async def run():
            async with connected() as (gateway, engine, _):
                return gateway, await refuse(gateway, engine, "flood", whatever)

        return asyncio.run(run())

    return make


def test_a_refusal_counts_for_a_moment_and_its_principal(refused, monkeypatch):
    gateway, error = refused(whatever=True)
    with pytest.raises(OneBertError) as again:
        gateway.refuse_early(context("flood"))
    assert vars(again.value) == vars(error)
    assert (error.status, error.code, error.retry_after) == (503, "queue-full", 7)
    gateway.refuse_early(context("other"))
    now = time.monotonic()
    monkeypatch.setattr(gateway_module.time, "monotonic", lambda: now + 61)
    gateway.refuse_early(context("flood"))


def test_a_quota_is_of_one_key(refused):
    """As where a key is changed for one with a larger quota."""
    gateway, _ = refused(whatever=True)
    limited = replace(root("flood"), quotas=Quotas(requests=7.0))
    gateway.refuse_early(replace(context("flood"), principal=limited))
    with pytest.raises(OneBertError):
        gateway.refuse_early(context("flood"))


async def test_unread_questions_are_bounded():
    async def ask_and_leave(gateway):
        gateway.refuse_early(context("someone"))
        gateway.submit(block("someone", tokens=512, sequences=64))
        await asyncio.sleep(0)
        gateway.withdraw([0])

    async def flood(gateway):
        for _ in range(1000):
            await ask_and_leave(gateway)

    async with connected() as (gateway, engine, channel):
        with pytest.raises(QueueFull) as refused:
            await flood(gateway)
        assert refused.value.retry_after
        assert channel._transport.get_write_buffer_size() < 1.1 * MAX_UNREAD_BYTES
        async with asyncio.timeout(60):
            while channel.full:
                await asyncio.get_running_loop().sock_recv(engine, 2**20)
        await ask_and_leave(gateway)
