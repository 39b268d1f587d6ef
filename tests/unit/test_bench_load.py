"""The load of the HTTP benchmark: what it counts is what a server answered."""

import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from onebert_bench.load import Request, run_load


class Server(ThreadingHTTPServer):
    """Refuses every path but /good, and answers in several writes."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen, self.lock = Counter(), threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with self.server.lock:
            self.server.seen[self.path, body] += 1
        self.send_response(200 if self.path == "/good" else 503)
        self.send_header("Content-Length", "9")
        self.end_headers()
        self.wfile.write(b"half ")
        self.wfile.flush()
        self.wfile.write(b"more")

    def log_message(self, *args):
        pass


@pytest.mark.parametrize("clients", [1, 7])
def test_every_answer_is_counted_once_and_refusals_apart(clients):
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        requests = [Request(path, "é" * 3).encode(url) for path in ("/good", "/bad", "/good")]
        try:
            load = run_load(url, requests, clients, 0.3)
        finally:
            server.shutdown()
            thread.join()
    good, bad = server.seen["/good", "ééé"], server.seen["/bad", "ééé"]
    assert server.seen.total() == good + bad
    # What was under way at the end is in no number.
    assert good - clients <= len(load.latencies_ms) <= good
    assert bad - clients <= load.refused <= bad
    assert load.latencies_ms


def test_no_client_leaves_before_its_last_answer():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            run_load(url, [Request("/good", "x").encode(url)], clients=5, seconds=0.0)
            answered = server.seen.total()
        finally:
            server.shutdown()
            thread.join()
    assert answered == 5
