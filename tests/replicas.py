"""Replicas of a server in this process on one registry; the fixture `replicas` has two of them."""

import asyncio
from contextlib import ExitStack, contextmanager, nullcontext

import httpx

from bases import tiny_base
from onebert_server import runtime as composition
from onebert_server.run.app import create_app
from onebert_server.run.opening import open_runtime
from onebert_server.settings import load_settings
from onebert_server.versions import follower
from onebert_store.registry import replicas as reports
from onebert_store.registry.feed import Feed
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import join_store
from servers import Task

OCTETS = {"Content-Type": "application/octet-stream"}
TEXT = "the screen was broken"


@contextmanager
def joined(where):
    """A SQLite registry that no process owns, as a test may have it."""
    with join_store(where) as store:
        registry = Registry(store)
        registry.shared = True
        yield registry


class Replicas:
    """Runtimes in this process on one store, which none of them owns; requests go to one of them by number."""

    def __init__(self, stack, folder, url, count):
        settings = load_settings(base=str(tiny_base()), dtype="float32", threads=1, data_dir=folder, registry=url)
        self.runtimes = [stack.enter_context(open_runtime(settings)) for _ in range(count)]
        self.apps = [create_app(runtime) for runtime in self.runtimes]

    def ask(self, number, method, path, min_seq=None, **arguments):
        async def asked():
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self.apps[number])) as web:
                headers = arguments.pop("headers", {}) | ({} if min_seq is None else {"OneBERT-Min-Seq": str(min_seq)})
                return await web.request(method, f"http://localhost{path}", headers=headers, **arguments)

        return asyncio.run(asked())

    def change(self, number, method, path, **arguments):
        """A change that is taken; gives its number."""
        answer = self.ask(number, method, path, **arguments)
        assert answer.is_success, answer.text
        return int(answer.headers["OneBERT-Seq"])

    def upload(self, number, task, seed, **arguments):
        return self.change(
            number, "PUT", f"/v1/tasks/{task}/versions", content=Task(seed=seed).file, headers=OCTETS, **arguments
        )

    def promote(self, number, task, version, expected, query=""):
        path, at = f"/v1/tasks/{task}/aliases/live{query}", {"If-Match": f'"{expected}"'}
        return self.change(number, "PUT", path, json={"version": version}, headers=at)

    def classify(self, number, task, min_seq=None, headers=None):
        body = {"inputs": TEXT}
        return self.ask(number, "POST", f"/v1/tasks/{task}/classify", min_seq, json=body, headers=headers or {})


@contextmanager
def deaf_replicas(folder, url, monkeypatch):
    """Two replicas that look at the feed by themselves once an hour, and hear of no change."""
    if url is None:
        with Registry.open(folder):
            pass
        monkeypatch.setattr(composition.Registry, "open", joined)
    monkeypatch.setattr(follower, "POLL_EVERY", 3600.0)
    # Each says that it lives when it looks.
    monkeypatch.setattr(reports, "LIVE_SECONDS", 7200.0)
    monkeypatch.setattr(Feed, "listening", lambda _: nullcontext())
    with ExitStack() as stack:
        yield Replicas(stack, folder, url, 2)
