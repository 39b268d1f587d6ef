"""The loads of the HTTP benchmarks: a closed loop counts what a server answered, an open one sends when it is due."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from fake_servers import FakeServer, Handler
from onebert_bench.load import BROKEN, LEFT, Request, Stream, run_load, run_open_load

ALL = 10


class Server(FakeServer):
    """Counts what is posted."""

    def __init__(self) -> None:
        super().__init__(Posts)
        self.seen, self.lock = Counter[tuple[str, str]](), threading.Lock()
        self.come = threading.Barrier(ALL)


class Posts(Handler):
    """Answers in several writes; refuses what is posted to /bad and /refused.

    Nobody is answered at /together and /refused before `ALL` have come: a closed loop of fewer would wait for ever.
    """

    protocol_version = "HTTP/1.1"
    server: Server

    def answer(self) -> None:
        body = self.body().decode()
        with self.server.lock:
            self.server.seen[self.path, body] += 1
        if self.path == "/never":
            self.rfile.read(1)
            return
        if self.path == "/broken":
            self.close_connection = True
            return
        if self.path in ("/together", "/refused"):
            self.server.come.wait(180)
        self.send_response(503 if self.path in ("/bad", "/refused") else 200)
        if self.path == "/refused":
            self.send_header("Retry-After", "3")
        self.send_header("Content-Length", "9")
        self.end_headers()
        self.wfile.write(b"half ")
        self.wfile.flush()
        self.wfile.write(b"more")

    do_POST = answer


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.mark.parametrize("clients", [1, 7])
def test_every_answer_is_counted_once_and_refusals_apart(server: Server, clients: int) -> None:
    requests = [Request(path, "é" * 3).encode(server.url) for path in ("/good", "/bad", "/good")]
    load = run_load(server.url, requests, clients, 0.3)
    good, bad = server.seen["/good", "ééé"], server.seen["/bad", "ééé"]
    assert server.seen.total() == good + bad
    # What was under way at the end is in no number.
    assert good - clients <= len(load.latencies_ms) <= good
    assert bad - clients <= load.refused <= bad
    assert load.latencies_ms


def test_no_client_leaves_before_its_last_answer(server: Server) -> None:
    run_load(server.url, [Request("/good", "x").encode(server.url)], clients=5, seconds=0.0)
    assert server.seen.total() == 5


def stream(server: Server, path: str, patience: float | None = None) -> Stream:
    return Stream([Request(path, "{}").encode(server.url)], rate=100.0, begin=0.0, end=0.05, patience=patience)


def test_requests_go_out_when_they_are_due_whether_others_were_answered_or_not(server: Server) -> None:
    found = run_open_load(server.url, {"good": stream(server, "/together"), "bad": stream(server, "/refused")})
    assert [len(replies) for replies in found.values()] == [5, 5]
    assert {(reply.status, reply.retry_after) for reply in found["good"]} == {(200, False)}
    assert {(reply.status, reply.retry_after) for reply in found["bad"]} == {(503, True)}
    assert sorted(reply.due for reply in found["good"]) == [0.0, 0.01, 0.02, 0.03, 0.04]
    assert all(reply.seconds > 0.04 - reply.due for reply in found["good"]), "counted from when it was due"


def test_who_does_not_wait_and_whose_connection_breaks_are_told_apart(server: Server) -> None:
    found = run_open_load(
        server.url, {"left": stream(server, "/never", patience=0.01), "broken": stream(server, "/broken")}
    )
    assert [reply.status for reply in found["left"]] == [LEFT] * 5
    assert [reply.status for reply in found["broken"]] == [BROKEN] * 5
