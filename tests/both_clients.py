"""Either client of the client library, called in the same way."""

import asyncio

from onebert_server.client import AsyncClient, Client


class Awaited:
    """AsyncClient, each of its methods awaited on one event loop."""

    def __init__(self, *arguments, **options):
        self._client, self._loop = AsyncClient(*arguments, **options), asyncio.Runner()

    def __getattr__(self, name):
        async def awaited(arguments, options):
            return await getattr(self._client, name)(*arguments, **options)

        return lambda *arguments, **options: self._loop.run(awaited(arguments, options))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self._loop.close()


BOTH = {"params": [Client, Awaited], "ids": ["Client", "AsyncClient"]}
"""For a fixture: a class with the constructor and the methods of `Client`."""
