"""A real server for each file of integration tests that asks for one, and a client of it."""

from collections.abc import Iterator

import pytest

from json_client import JsonClient
from servers import Server


@pytest.fixture(scope="module", params=[0], ids=["one process"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """In one process, unless a test or its file is marked with `layouts` of servers.py."""
    with Server(tmp_path_factory.mktemp("server"), front_ends=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[JsonClient]:
    with server.client() as made:
        yield made
