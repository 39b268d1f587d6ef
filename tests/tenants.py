"""A replica in this process with tasks of two tenants, and clients of it that each have a key of their own."""

import hashlib
from contextlib import contextmanager

import httpx

from onebert_server.access.keys import Holder
from onebert_server.access.principal import Principal, Scope
from onebert_server.run.app import create_app
from runtimes import opened
from servers import Task, store

ROOT_KEY = "the-key-of-the-environment"
GIVEN_ID = "an.id-of_the.caller"
# Fields of an answer that came to be; a refusal has none of them.
TIMES = {b"server-timing", *(b"x-%b-time" % phase for phase in b"compute total tokenization queue inference".split())}
TASKS = {"acme-tone": 1, "acme-two1": 2, "blue-tone": 3}
EVERY_SCOPE = tuple(Scope)


def principal(name, scopes=EVERY_SCOPE, tasks=("acme-*",)):
    return Principal(f"key:{name}", frozenset(scopes), tuple(tasks))


# Key -> whose it is.
TENANTS = {
    "key-of-acme": principal("acme"),
    "key-of-blue": principal("blue", tasks=("blue-*",)),
    "key-of-nobody": principal("nobody", tasks=()),
    "key-of-all": principal("all", tasks=("*",)),
} | {f"key-to-{scope}": principal(scope, (scope,)) for scope in Scope}


@contextmanager
def tenants_runtime(folder, **settings):
    """An open runtime that has the tasks and takes the keys; a second version of `acme-tone` has no alias."""
    store(folder, **{name: Task(seed=seed) for name, seed in TASKS.items()})
    store(folder, **{"acme-tone": Task(seed=9)})
    with opened(folder, api_keys=ROOT_KEY, max_queue_seconds=600, **settings) as runtime:
        runtime.keys.replace({hashlib.sha256(key.encode()).digest(): Holder(who) for key, who in TENANTS.items()})
        yield runtime


class Asker:
    """Asks an app with one key; all requests have the same id, so that equal answers are equal bytes."""

    def __init__(self, runtime, app=None) -> None:
        self._app = app or create_app(runtime)

    async def ask(self, key, method, path, **arguments):
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": GIVEN_ID} | arguments.pop("headers", {})
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app), base_url="http://localhost") as web:
            return await web.request(method, path, headers=headers, **arguments)


def seen(answer, name):
    """Everything that a client sees of an answer but the time it took; the name that it asked for is `…`."""
    fields = [(field, value) for field, value in answer.headers.raw if field not in TIMES]
    headers = [(field, value.replace(name.encode(), b"...")) for field, value in fields]
    return answer.status_code, headers, answer.content.replace(name.encode(), b"...")
