"""A real server for each file of integration tests that asks for one, and clients of it."""

from collections.abc import Iterator

import httpx
import pytest

from json_client import JsonClient
from servers import Server


@pytest.fixture(scope="module", params=[0], ids=["one process"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the file's `SETTINGS`; in one process, unless a test or its file is marked with `layouts` of servers.py."""
    settings = getattr(request.module, "SETTINGS", {})
    with Server(tmp_path_factory.mktemp("server"), front_ends=request.param, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[JsonClient]:
    with server.client() as made:
        yield made


@pytest.fixture(scope="module")
def web(server: Server) -> Iterator[httpx.Client]:
    """Sends what a test says and nothing else, no key either."""
    with httpx.Client(base_url=server.url, timeout=180) as made:
        yield made
