"""A real server for each file of integration tests that asks for one, and a client of it."""

from collections.abc import Iterator

import pytest

from onebert_server.client import Client
from servers import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with server.client() as made:
        yield made
