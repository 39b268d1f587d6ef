"""Counts what a request costs the server, which no clock disturbs: own calls, files and lock acquisitions.

`python edge_calls.py` prints JSON: medians over requests of one short text, and what each further text of 64 adds,
from bytes in to bytes out, on all threads. It runs in a process of its own: calls are counted by Python's profiler, and
every lock that is made later than the first lines is counted.
"""

import threading
from collections import deque

_acquired = deque[None]()


def _counted(make):
    """Locks as `make` makes them, that note each acquisition."""

    class Counted:
        def __init__(self):
            self._lock = lock = make()
            # Whatever else a lock has, such as what `Condition` uses of one.
            for name in set(dir(lock)) - set(dir(object)) - {"acquire", "__enter__", "__exit__"}:
                setattr(self, name, getattr(lock, name))

        def acquire(self, *given, **named):
            _acquired.append(None)
            return self._lock.acquire(*given, **named)

        def __enter__(self):
            return self.acquire()

        def __exit__(self, *_):
            self.release()

    return Counted


threading.Lock, threading.RLock = _counted(threading.Lock), _counted(threading.RLock)

import asyncio  # noqa: E402 - locks of its modules are counted, too
import json  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from statistics import median  # noqa: E402
from types import CodeType  # noqa: E402

import uvicorn  # noqa: E402

WARM_UP, REQUESTS = 40, 41
_called = deque[CodeType]()


def _profile(frame, event, _):
    if event == "call" and "/onebert_" in frame.f_code.co_filename:
        _called.append(frame.f_code)


threading.setprofile(_profile)


async def _serve(runtime, task):
    from onebert_server.http.web import uvicorn_config
    from onebert_server.run.app import create_app
    from runtimes import upload

    upload(runtime, "tone", task)
    config = uvicorn_config(create_app(runtime), 5.0)
    config.port = 0
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    [listener] = server.servers[0].sockets
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    one, many = [await _counts(reader, writer, runtime.settings.host, texts) for texts in (1, 64)]
    print(
        json.dumps({**one, **{f"{name} a further text": (many[name] - one[name]) / 63 for name in ("calls", "locks")}})
    )
    writer.close()
    server.should_exit = True
    await serving


async def _counts(reader, writer, host, texts):
    """The medians over requests of so many texts."""
    body = json.dumps({"inputs": ["It broke after a week." + " so" * (number % 9) for number in range(texts)]})
    head = f"POST /v1/tasks/tone/classify HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
    found = []
    for number in range(WARM_UP + REQUESTS):
        # What a request leaves to be done behind its answer counts for the next one.
        _called.clear()
        _acquired.clear()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 200"), head
        await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        if number >= WARM_UP:
            # A copy, since the engine's thread may still call.
            called = _called.copy()
            found.append((len(called), len({code.co_filename for code in called}), len(_acquired)))
    return dict(zip(("calls", "files", "locks"), map(median, zip(*found, strict=True)), strict=True))


def main():
    from pathlib import Path

    from runtimes import opened
    from servers import Task

    sys.setprofile(_profile)
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder)) as runtime:
        asyncio.run(_serve(runtime, Task(seed=1)))


if __name__ == "__main__":
    main()
