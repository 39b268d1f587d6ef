"""The guard of what a text costs the server: own calls and garbage, which no clock disturbs."""

import asyncio
import gc
import gzip
import json
import re
import sys
import threading
from contextlib import contextmanager

import pytest
import uvicorn

from onebert_server.http.web import uvicorn_config
from onebert_server.run.app import create_app
from runtimes import opened, upload
from servers import Task

WARM_UP = REQUESTS = 30
TEXTS = 64


@contextmanager
def counted_calls():
    """Counts the own calls, since it was called last, of all threads that begin within the block."""
    calls = [0]

    def profile(frame, event, _):
        if event == "call" and "/onebert_" in frame.f_code.co_filename:
            calls[0] += 1

    def count():
        counted, calls[0] = calls[0], 0
        return counted

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield count
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def plain(body):
    return body


async def cost_of(runtime, count, words, *numbers, encode=plain):
    """What is counted for a request of so many texts, from bytes in to bytes out: the mean behind the first ones."""
    config = uvicorn_config(create_app(runtime), 5.0)
    config.port = 0
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    [listener] = server.servers[0].sockets
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    costs = []
    for texts in numbers:
        body = encode(json.dumps({"inputs": [f"{number} weeks" + " late" * words for number in range(texts)]}).encode())
        head = f"POST /v1/tasks/tone/classify HTTP/1.1\r\nHost: {runtime.settings.host}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        head += "\r\n" if encode is plain else "Content-Encoding: gzip\r\n\r\n"
        for request in range(WARM_UP + REQUESTS):
            if request == WARM_UP:
                count()
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert answer.startswith(b"http/1.1 200"), answer
            await reader.readexactly(int(answer.split(b"content-length: ")[1].split(b"\r\n")[0]))
        costs.append(count() / REQUESTS)
    writer.close()
    server.should_exit = True
    await serving
    return costs


@pytest.mark.parametrize(
    # The smallest budget of a batch makes many of long texts, however fast the machine is.
    ("words", "max_batch_tokens", "batches", "further"),
    [(1, 4096, 1, 4.4), (48, 512, 7, 10.6)],
    ids=["one batch", "many batches"],
)
def test_a_text_costs_few_own_calls_alone_and_beside_others(words, max_batch_tokens, batches, further, tmp_path):
    """The bounds are a tenth above what was counted when they were set: who makes the road shorter lowers them."""
    with counted_calls() as count, opened(tmp_path, max_batch_tokens=max_batch_tokens) as runtime:
        upload(runtime, "tone", Task(seed=1))
        single, many = asyncio.run(cost_of(runtime, count, words, 1, TEXTS))
        launched = re.search(r"sequences_count (\d+)", runtime.metrics.exposition().decode())[1]
    assert single <= 202
    assert (many - single) / (TEXTS - 1) <= further
    requests = WARM_UP + REQUESTS
    assert (int(launched) - requests) // requests >= batches


@pytest.mark.parametrize("encode", [plain, gzip.compress])
def test_requests_leave_nothing_to_the_garbage_collector(tmp_path, encode):
    gc.disable()
    try:
        with opened(tmp_path) as runtime:
            upload(runtime, "tone", Task(seed=1))
            # The event loop may leave a few objects in all; a request that refers to itself leaves four or more.
            assert max(asyncio.run(cost_of(runtime, gc.collect, 1, 1, TEXTS, encode=encode))) < 2
    finally:
        gc.enable()
