"""A replica in the process of its test, and what its app answers without a socket."""

import asyncio
from contextlib import contextmanager

import httpx

from bases import tiny_base
from onebert_server.access.context import own_work
from onebert_server.run.app import create_app
from onebert_server.run.opening import open_runtime
from onebert_server.settings import load_settings

WORK = own_work("test")


@contextmanager
def opened(folder, **given):
    settings = {"base": str(tiny_base()), "dtype": "float32", "threads": 1, "data_dir": folder}
    with open_runtime(load_settings(**settings | given)) as runtime:
        yield runtime


def upload(runtime, name, task):
    with runtime.registry.writer() as body:
        body.write(task.file)
        return runtime.catalog.upload(name, body, WORK)


def client(runtime, **given):
    """Asks the app of a replica without a socket."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(create_app(runtime)), base_url="http://localhost", **given)


def ask(runtime, method, path, **arguments):
    async def asked():
        async with client(runtime) as web:
            return await web.request(method, path, **arguments)

    return asyncio.run(asked())


def get(runtime, path):
    return ask(runtime, "GET", path)


def move(runtime, body, tag="1", status=200):
    """Gives `live` of the task `tone` a meaning; returns the answer."""
    moved = ask(runtime, "PUT", "/v1/tasks/tone/aliases/live", json=body, headers={"If-Match": f'"{tag}"'})
    assert moved.status_code == status, moved.text
    return moved.json()
