"""What a request hears of its connection, on a socket."""

import asyncio

import pytest
from uvicorn.server import ServerState

from onebert_server.http.web import uvicorn_config

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_request_hears_that_its_client_has_left_whatever_waits_behind_it(requests):
    """What is pipelined behind it never begins."""
    begun, left = [], asyncio.Event()

    async def app(scope, receive, send):
        begun.append(scope)
        await receive()
        started.set()
        if (await receive())["type"] == "http.disconnect":
            left.set()

    async def run():
        config = uvicorn_config(app, receive_timeout=60, shutdown_timeout=1)
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), "127.0.0.1", 0
        )
        async with server, asyncio.timeout(30):
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(GET * requests)
            await started.wait()
            writer.close()
            await left.wait()

    started = asyncio.Event()
    asyncio.run(run())
    assert len(begun) == 1
