"""A replica in the process of its test, and what its app answers without a socket."""

import asyncio
from contextlib import contextmanager

import httpx

from bases import tiny_base
from onebert_server.access.context import own_work
from onebert_server.run.app import create_app
from onebert_server.run.opening import open_runtime
from onebert_server.settings import load_settings
from servers import Task

WORK = own_work("test")
LIVE = "/v1/tasks/tone/aliases/live"
TASKS = [Task(seed=seed) for seed in (1, 2, 3)]
TEXTS = ["the screen was broken", "it is late", "a very good day", "who was it", "no", "they came back in the rain"]


@contextmanager
def opened(folder, **given):
    settings = {"base": str(tiny_base()), "dtype": "float32", "threads": 1, "data_dir": folder}
    with open_runtime(load_settings(**settings | given)) as runtime:
        yield runtime


@contextmanager
def opened_with_tasks(folder):
    """A replica whose task `tone` has `TASKS` as its versions."""
    with opened(folder) as runtime:
        for task in TASKS:
            upload(runtime, "tone", task)
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
            answer = await web.request(method, path, **arguments)
        await shadows_ended(runtime)
        return answer

    return asyncio.run(asked())


async def shadows_ended(runtime):
    """Waits for the shadows of what this event loop has asked, which begin in its next turn."""
    await asyncio.sleep(0)
    # The extension may be left out.
    parts = (runtime.answerer, *runtime.parts._parts.values())
    for comparing in (vars(part).get("_comparing") for part in parts if hasattr(part, "__dict__")):
        if comparing:
            await asyncio.wait(comparing)


def get(runtime, path):
    return ask(runtime, "GET", path)


def classify(runtime, text=TEXTS[0], **headers):
    """Asks `tone`; returns the answer."""
    answer = ask(runtime, "POST", "/v1/tasks/tone/classify", json={"inputs": text}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def move(runtime, body, tag="1", status=200):
    """Gives `live` of the task `tone` a meaning; returns the answer."""
    moved = ask(runtime, "PUT", LIVE, json=body, headers={"If-Match": f'"{tag}"'})
    assert moved.status_code == status, moved.text
    return moved.json()
