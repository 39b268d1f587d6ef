"""A receiver of webhooks on loopback, which checks each signature by the specification."""

import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = secrets.token_bytes(32)
KEY = f"whsec_{base64.b64encode(SECRET).decode()}"


class Receiver:
    """Listens while `with` runs; `taken` has the id and the body of each message that it answered with success.

    Attributes:
        status: its answer; with 3xx the answer leads to the path `/elsewhere`.
        status_of: its answer to a body, if that is another one.
        drips: while set, it begins an answer whose header lines never end.
        paths: of all requests.
    """

    def __init__(self, status=204):
        self.status, self.taken, self.refused, self.paths = status, [], [], []
        self.status_of = lambda body: self.status
        self.drips, self.ended = threading.Event(), threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                number, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
                wanted = hmac.new(SECRET, f"{number}.{at}.".encode() + body, hashlib.sha256).digest()
                genuine = self.headers["webhook-signature"] == f"v1,{base64.b64encode(wanted).decode()}"
                assert abs(int(at) - time.time()) < 300
                receiver.paths.append(self.path)
                status = receiver.status_of(json.loads(body)) if genuine else 400
                if receiver.drips.is_set():
                    self.send_response(status)
                    with suppress(OSError):  # until the sender has left
                        while not receiver.ended.wait(0.02):
                            self.wfile.write(b"X-Drip: 1\r\n")
                    return
                (receiver.taken if status < 300 else receiver.refused).append((number, json.loads(body)))
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks"

    @property
    def moves(self):
        """Task, alias, version and number of the moves taken."""
        data = [body["data"] for _, body in self.taken if body["type"] == "alias.moved"]
        return [(event["task"], event["alias"], event["version"], event["change"]) for event in data]

    @property
    def settings(self):
        return {"webhook_url": self.url, "webhook_key": KEY}

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()
