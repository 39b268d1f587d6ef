"""The open loop of the overload benchmark: it sends when requests are due, answered or not, and counts each of them."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from onebert_bench.load import BROKEN, LEFT, Request, Stream, run_open_load

ALL = 10


class Server(ThreadingHTTPServer):
    """Answers nobody before `ALL` requests have come; a closed loop of fewer clients would wait for ever."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.come = threading.Barrier(ALL)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/never":
            self.rfile.read(1)
            return
        if self.path == "/broken":
            self.close_connection = True
            return
        self.server.come.wait(180)
        refused = self.path == "/refused"
        self.send_response(503 if refused else 200)
        if refused:
            self.send_header("Retry-After", "3")
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"more")

    def log_message(self, *args):
        pass


@pytest.fixture
def url():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def stream(url, path, **arguments):
    return Stream([Request(path, "{}").encode(url)], rate=100.0, begin=0.0, end=0.05, **arguments)


def test_requests_go_out_when_they_are_due_whether_others_were_answered_or_not(url):
    found = run_open_load(url, {"good": stream(url, "/good"), "bad": stream(url, "/refused")})
    assert [len(replies) for replies in found.values()] == [5, 5]
    assert {(reply.status, reply.retry_after) for reply in found["good"]} == {(200, False)}
    assert {(reply.status, reply.retry_after) for reply in found["bad"]} == {(503, True)}
    assert sorted(reply.due for reply in found["good"]) == [0.0, 0.01, 0.02, 0.03, 0.04]
    assert all(reply.seconds > 0.04 - reply.due for reply in found["good"]), "counted from when it was due"


def test_who_does_not_wait_and_whose_connection_breaks_are_told_apart(url):
    found = run_open_load(url, {"left": stream(url, "/never", patience=0.01), "broken": stream(url, "/broken")})
    assert [reply.status for reply in found["left"]] == [LEFT] * 5
    assert [reply.status for reply in found["broken"]] == [BROKEN] * 5
