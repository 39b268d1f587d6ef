"""Requests to loopback go through no proxy of the environment; others do, as everywhere."""

import asyncio
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from fake_servers import FakeServer, Handler
from onebert_server.cli.completion import task_names
from onebert_server.client import AsyncClient, Client
from onebert_server.http import oidc
from onebert_server.loopback import direct_mounts
from onebert_server.telemetry.tracing import Tracing
from onebert_store.errors import OneBertError


@contextmanager
def listening():
    """An address, and the paths that it is asked for."""
    paths = []

    class Answers(Handler):
        def answer(self):
            self.body()
            paths.append(self.path)
            self.reply(200, b'{"tasks": [], "next": null}', {"Content-Type": "application/json"})

        do_GET = do_POST = do_CONNECT = answer

    with FakeServer(Answers) as server:
        yield server.url, paths


@pytest.fixture
def proxied(monkeypatch):
    """The paths that the proxy of the environment is asked for."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with listening() as (url, paths):
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, url)
            monkeypatch.setenv(name.lower(), url)
        yield paths


def ask(url):
    with Client(url, timeout=10) as client:
        client.tasks()


async def ask_async(url):
    async with AsyncClient(url, timeout=10) as client:
        await client.tasks()


def export(url, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    tracing = Tracing(url)
    tracing.request([])._span.end()
    tracing.close()


ASKERS = {
    "the client": lambda url, _: ask(url),
    "the asynchronous client": lambda url, _: asyncio.run(ask_async(url)),
    "completion": lambda url, _: task_names(SimpleNamespace(params={"url": url}), ""),
    "keys of an issuer": lambda url, _: asyncio.run(oidc._fetch(f"{url}/jwks")),
    "traces": export,
}


@pytest.mark.parametrize("asker", ASKERS.values(), ids=ASKERS)
def test_what_listens_on_loopback_is_asked_directly(proxied, monkeypatch, asker):
    with listening() as (url, paths):
        asker(url, monkeypatch)
        assert (len(paths), proxied) == (1, [])


@pytest.mark.parametrize("asker", ASKERS.values(), ids=ASKERS)
def test_others_are_asked_through_the_proxy(proxied, monkeypatch, asker):
    with suppress(OneBertError):
        asker("http://server.example", monkeypatch)
    assert len(proxied) == 1
    assert proxied[0].startswith("http://server.example/")


@pytest.mark.parametrize(
    ("url", "direct"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://LOCALHOST", True),
        ("http://[::1]:80/", True),
        ("http://localhost@server.example/", False),
        ("http://127.0.0.1.server.example", False),
        ("http://[::1", False),
        ("jwks.json", False),
    ],
)
def test_urls_of_loopback(url, direct):
    assert bool(direct_mounts(url)) == direct
