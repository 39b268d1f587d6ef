"""Three servers on one PostgreSQL behind a TCP balancer: restarted one after the other, and killed, under load."""

import itertools
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import httpx
import pytest

from onebert_server.client import Client
from servers import Server, Task, wait_until
from tcp_proxy import TcpProxy

CLIENTS = 4
TEXT = "the screen was broken"


class Balancer:
    """Connects to one ready server after the other, as far as /readyz said so a moment ago."""

    def __init__(self, servers):
        self.servers = servers
        self.ready = dict.fromkeys(range(len(servers)), True)
        self.turns = itertools.count()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.look)

    def look(self):
        with httpx.Client(timeout=2) as web:
            while not self.ended.wait(0.05):
                for number, server in enumerate(self.servers):
                    ready = False
                    with suppress(httpx.HTTPError):
                        ready = web.get(f"{server.url}/readyz", headers={"Connection": "close"}).status_code == 200
                    self.ready[number] = ready

    def connect(self):
        for _ in range(1000):
            number = next(self.turns) % len(self.servers)
            if self.ready[number]:
                address = urlsplit(self.servers[number].url)
                with suppress(OSError):
                    return socket.create_connection((address.hostname, address.port))
            time.sleep(0.01)
        raise AssertionError("no server was ready")

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.ended.set()
        self.thread.join()


class Load:
    """Clients that classify one text after the other until they are told to end; what they were answered."""

    def __init__(self, url):
        self.url, self.ended = url, threading.Event()
        self.answered, self.failed = [], []

    def run(self, _):
        with Client(self.url) as client:
            while not self.ended.is_set():
                try:
                    self.answered.append(client.classify("task", TEXT).version)
                except Exception as error:
                    self.failed.append(error)


@pytest.fixture
def servers(tmp_path, postgres_url):
    with ExitStack() as stack:
        started = []
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            settings = {"registry": postgres_url, "data_dir": tmp_path / "data", "drain_delay": 0.5}
            started.append(stack.enter_context(Server(tmp_path / str(number), **settings)))
        yield started


@pytest.fixture
def load(servers):
    with ExitStack() as stack:
        balancer = stack.enter_context(Balancer(servers))
        proxy = stack.enter_context(TcpProxy(balancer.connect))
        url = f"http://127.0.0.1:{proxy.port}"
        with Client(url) as client:
            for seed in (1, 2):
                client.push("task", Task(seed=seed).file)
        load = Load(url)
        clients = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        stack.callback(load.ended.set)
        for number in range(CLIENTS):
            clients.submit(load.run, number)
        wait_until(lambda: len(load.answered) > 20)
        yield load


@pytest.mark.slow
def test_servers_restarted_one_after_the_other_fail_no_request(servers, load):
    for number, server in enumerate(servers):
        assert server.stop() == 0
        with Client(load.url) as client:
            # Meanwhile the others are told of a change.
            client.move_alias("task", "live", 2 - number % 2, expected=1 + number % 2)
            assert client.classify("task", TEXT).version == 2 - number % 2
        server.start()
        before = len(load.answered)
        wait_until(lambda before=before: len(load.answered) > before + 20)
    load.ended.set()
    assert load.failed == []
    assert set(load.answered) == {1, 2}


@pytest.mark.slow
def test_a_server_that_is_killed_fails_no_request_of_our_client(servers, load):
    servers[1].kill()
    before = len(load.answered)
    wait_until(lambda: len(load.answered) > before + 50)
    load.ended.set()
    assert load.failed == []
    servers[1].start()
