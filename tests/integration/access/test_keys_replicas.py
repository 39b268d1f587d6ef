"""Two servers on one PostgreSQL, one of them with front ends: keys and promotions of one are in force on the other."""

from contextlib import ExitStack

import pytest

from json_client import JsonClient
from onebert_server.client import Client
from onebert_store.errors import TooManyAttempts, Unauthorized
from servers import Server, Task, wait_until
from tenants import ROOT_KEY

pytestmark = pytest.mark.slow
TEXT = "please help my order is late"
# Connections one after the other, each of which any of the front ends may take.
CONNECTIONS = 24


@pytest.fixture(scope="module")
def urls(postgres, tmp_path_factory):
    name = postgres.create()
    folder = tmp_path_factory.mktemp("keys")
    with ExitStack() as stack:
        started = []
        for front_ends in (0, 2):
            (folder / str(front_ends)).mkdir()
            settings = {"registry": postgres.url(name), "data_dir": folder / "data", "api_keys": ROOT_KEY}
            server = Server(folder / str(front_ends), front_ends=front_ends, **settings)
            started.append(stack.enter_context(server).url)
        with Client(started[0], ROOT_KEY) as root:
            for seed in (1, 2):
                root.push("acme-tone", Task(seed=seed).file)
        yield started
    postgres.drop(name)


def answered(url, key):
    """How many of a number of connections the key is taken on."""
    taken = 0
    for _ in range(CONNECTIONS):
        with JsonClient(url, key) as client:
            try:
                client.classify("acme-tone", TEXT)
            except (Unauthorized, TooManyAttempts):
                continue
            taken += 1
    return taken


@pytest.mark.parametrize("by", [0, 1], ids=["by the one process", "by the one with front ends"])
def test_a_revoked_key_is_refused_by_every_process(urls, by):
    """benchmarks/results/scaling.md says how soon."""
    with Client(urls[by], ROOT_KEY) as root:
        made = root.create_key("app", ["classify"], ["acme-*"])
        for url in urls:
            wait_until(lambda url=url: answered(url, made.key) == CONNECTIONS)
        root.revoke_key(made.id)
        for url in urls:
            wait_until(lambda url=url: answered(url, made.key) == 0)
            assert answered(url, made.key) == 0, "it stays so"


def test_a_move_that_waits_for_all_is_shown_everywhere(urls):
    with Client(urls[0], ROOT_KEY) as root, Client(urls[1], ROOT_KEY) as other:
        at = root.task("acme-tone").aliases["live"]
        for before, after in ((at, 3 - at), (3 - at, at)) * 3:
            root.move_alias("acme-tone", "live", after, before, wait="all")
            # A client that knows no number of a change, and asks once.
            assert other.classify("acme-tone", TEXT).version == after
