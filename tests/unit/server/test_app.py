"""A whole app in this process, where its threads can be held up: what must not wait for them, and how it ends."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import httpx
import pytest
import torch

from bases import tiny_base
from onebert_encoder.fold import fold
from onebert_encoder.tokens import Tokens
from onebert_server import app as composition
from onebert_server.engine import Engine, EngineLimits, Item
from onebert_server.routing import MAX_RECEIVING
from onebert_server.settings import load_settings
from servers import Task


class Stuck:
    """Holds the engine's thread after its first batch."""

    def __init__(self):
        self.entered, self.opened = Event(), Event()

    def observe_batch(self, sequences, tokens, seconds):
        self.entered.set()
        self.opened.wait()


@pytest.fixture
def app(tmp_path):
    return composition.create_app(load_settings(base=str(tiny_base()), data_dir=tmp_path, shutdown_timeout=10_000.0))


def test_uploads_that_wait_to_be_taken_do_not_hold_up_those_that_come(app, tmp_path):
    """More uploads than are read at a time are whole on the disk while the uploader does nothing."""
    files = [Task(seed=seed).file for seed in range(MAX_RECEIVING + 4)]
    headers, opened = {"Content-Type": "application/octet-stream"}, Event()

    def whole():
        return sum(path.stat().st_size > 0 for path in (tmp_path / "blobs").iterdir())

    async def live():
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as web:
            app.state.parts.uploader.submit(opened.wait)
            path = "http://localhost/v1/tasks/task/versions"
            puts = asyncio.gather(*(web.put(path, content=file, headers=headers) for file in files))
            try:
                async with asyncio.timeout(30):
                    while whole() < len(files):
                        await asyncio.sleep(0)
            finally:
                opened.set()
            assert {answer.status_code for answer in await puts} == {201}

    asyncio.run(live())


def test_a_batch_that_hangs_does_not_hold_the_end(app, monkeypatch):
    monkeypatch.setattr(composition, "CLOSE_TIMEOUT", 0.1)
    stuck, parts = Stuck(), app.state.parts
    bank = composition.Bank(parts.base)
    slot = bank.install(fold(parts.base, {name: torch.from_numpy(value) for name, value in Task().tensors.items()}))
    parts.engine = Engine(parts.base, bank, EngineLimits(512, 1024, 2**19), stuck)

    async def live():
        async with app.router.lifespan_context(app):
            parts.engine.submit([Item(Tokens([5], [0]), slot)])
            assert await asyncio.to_thread(stuck.entered.wait, 60)

    with ThreadPoolExecutor(1) as thread:
        lived = thread.submit(asyncio.run, live())
        try:
            lived.result(30)
        finally:
            stuck.opened.set()
