"""What a client can do to a server with bare sockets: heads without an end, silence, noise, bodies that are refused."""

import http.client
import json
import resource
import socket
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import httpx
import pytest

from framing import UPGRADE
from servers import Server, Task, layouts, wait_until

MIB = 2**20
UPLOAD_CAP = 2 * MIB
SETTINGS = {"max_upload_bytes": UPLOAD_CAP}
STORED = {"task": Task(seed=1)}


def connect(server):
    connection = server.connect()
    # So that what is left unread shows as a reset, if the server resets.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def answers(connection, received=b""):
    """Every answer on the connection up to its end: status, headers, body; what was received of them may be given."""
    while part := connection.recv(65536):
        received += part
    replies = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        length = int(headers["content-length"])
        replies.append((int(status.split()[1]), headers, rest[:length]))
        received = rest[length:]
    return replies


def assert_problem(answer, status, code):
    answered, headers, body = answer
    problem = json.loads(body)
    assert (answered, problem["status"], problem["code"]) == (status, status, code)
    assert headers["content-type"] == "application/problem+json"
    assert problem["instance"] == f"urn:onebert:request:{headers['x-request-id']}"
    assert headers["connection"] == "close"


BAD_REQUESTS = 'onebert_rejected_total{code="bad-request"}'
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
UPLOAD = (
    b"PUT /v1/tasks/broken/versions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
BROKEN = {
    "no-http": b"\0\0\0\0\r\n\r\n",
    "no-target": b"GET\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "version": b"GET / HTTP/9.9\r\n\r\n",
    "header": b"GET / HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
    "chunk": CHUNKED + b"zz\r\n",
    "chunk-of-an-upload": UPLOAD + b"1\r\nx\r\nzz\r\n",
}


@layouts
@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN.keys())
def test_what_is_not_http_gets_a_problem(server, sent):
    before = server.metric(BAD_REQUESTS)
    with connect(server) as connection:
        connection.sendall(sent)
        (answer,) = answers(connection)
    assert_problem(answer, 400, "bad-request")
    # A front end reports what it refused after it has answered, and another process may be asked for the counts.
    wait_until(lambda: server.metric(BAD_REQUESTS) == before + 1)


def test_noise_behind_a_request_is_answered_after_it(server):
    with connect(server) as connection:
        connection.sendall(GET + b"\r\n" + b"noise\r\n\r\n")
        first, second = answers(connection)
    assert (first[0], json.loads(first[2])) == (200, {"status": "alive"})
    assert_problem(second, 400, "bad-request")


HEADS = {
    "field-without-end": (GET + b"X: ", b"a" * 2**16),
    "target-without-end": (b"GET /", b"a" * 2**16),
    "lines-without-end": (GET, b"X: a\r\n" * 2**13),
    "trailers-without-end": (CHUNKED + b"0\r\n", b"X: a\r\n" * 2**13),
    "trailer-without-end": (CHUNKED + b"0\r\nX: ", b"a" * 2**16),
    "trailers-of-an-upload": (UPLOAD + b"0\r\n", b"X: a\r\n" * 2**13),
    "extension-without-end": (CHUNKED + b"1;x=", b"a" * 2**16),
}


@layouts
@pytest.mark.parametrize(("begin", "more"), HEADS.values(), ids=HEADS.keys())
def test_heads_without_an_end_are_refused(server, begin, more):
    """No key is needed to be refused."""
    sent = 0
    with connect(server) as connection:
        connection.sendall(begin)
        connection.settimeout(0)
        # What the server does not read fills the buffers of the sockets; it ends what it does not want long before.
        while not (answer := _read_now(connection)) and sent < 64 * MIB:
            sent += _send_now(connection, more)
        connection.settimeout(30)
        assert answer.startswith(b"HTTP/1.1 431 "), answer
    assert sent < 64 * MIB


def _read_now(connection):
    try:
        return connection.recv(65536)
    except BlockingIOError:
        return b""


def _send_now(connection, data):
    try:
        return connection.send(data)
    except BlockingIOError:
        return 0


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"X: " + b"a" * 30_000, 200),
        (b"X: " + b"a" * 2**15, 431),
        (b"\r\n".join([b"X: a"] * 99), 200),
        (b"\r\n".join([b"X: a"] * 100), 431),
    ],
    ids=lambda value: str(value)[-12:],
)
def test_heads_have_a_size(server, fields, status):
    with connect(server) as connection:
        connection.sendall(GET + fields + b"\r\n\r\n")
        assert int(connection.recv(65536).split()[1]) == status


QUESTION = b'{"inputs": "GET / HTTP/1.1"}'
CHUNKS = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (QUESTION[:5], len(QUESTION) - 5, QUESTION[5:])


@pytest.mark.parametrize("at_once", [1, 1000])
@pytest.mark.parametrize(
    "framed",
    [b"Content-Length: %d\r\n\r\n%b" % (len(QUESTION), QUESTION), b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKS],
    ids=["length", "chunks"],
)
def test_who_asks_for_another_protocol_is_answered_in_this_one(server, framed, at_once):
    """Its body is a body, and what follows it the next request."""
    head = b"POST /v1/tasks/task/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    sent = 2 * (head + UPGRADE + framed) + last
    with connect(server) as connection:
        for start in range(0, len(sent), at_once):
            connection.sendall(sent[start : start + at_once])
        *classified, healthy = answers(connection)
    assert [status for status, _, _ in classified] == [200, 200]
    assert all(json.loads(body)["task"] == "task" for _, _, body in classified)
    assert healthy[0] == 200


@layouts
def test_bodies_that_come_slowly_behind_requests_sent_ahead_are_read_and_others_are_answered_meanwhile(server):
    head = b"POST /v1/tasks/task/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    length, ahead = b"Content-Length: %d\r\n\r\n" % len(QUESTION), 20 * (GET + b"\r\n")
    with ExitStack() as opened:
        connections = [opened.enter_context(connect(server)) for _ in range(20)]
        for connection in connections:
            connection.sendall(ahead + head + length)
        for byte in QUESTION:
            for connection in connections:
                connection.sendall(b"%c" % byte)
            assert httpx.get(f"{server.url}/healthz").status_code == 200
        for connection in connections:
            connection.sendall(ahead + GET + b"Connection: close\r\n\r\n")
        for connection in connections:
            replies = answers(connection)
            assert [status for status, _, _ in replies] == [200] * 42
            assert json.loads(replies[20][2])["task"] == "task"


def test_tiny_chunks_are_a_body_like_any_other(server):
    body = json.dumps({"items": [{"task": "task", "text": "x" * 20_000}]}).encode()
    with connect(server) as connection:
        connection.sendall(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"


@layouts
def test_a_refused_body_does_not_keep_its_sender_from_the_answer(server):
    """A plain client sends its whole body before it reads; it must not meet a reset instead of the answer."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=180)
    headers = {"Content-Type": "application/octet-stream"}
    connection.request("PUT", "/v1/tasks/big/versions", b"\1" * (16 * MIB), headers)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["code"]) == (413, "too-large")
    connection.close()


@layouts
def test_a_body_without_an_end_is_not_read_for_ever(server):
    with server.begin("PUT", "/v1/tasks/big/versions", b"", 99999999999, "application/octet-stream") as connection:
        sent, part = 0, b"\1" * MIB
        with suppress(ConnectionError):
            while sent < 1024 * MIB:
                connection.sendall(part)
                sent += MIB
    assert sent < 1024 * MIB


def test_an_unread_body_leaves_the_connection_open(server):
    """An answer may come before the body, of which nothing is read; the connection goes on behind it."""
    with connect(server) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12")
        begun = connection.recv(12)
        connection.sendall(b"345" + GET + b"Connection: close\r\n\r\n")
        first, second = answers(connection, begun)
    assert (first[0], second[0]) == (404, 200)


def test_noise_is_no_flood_of_the_log(server):
    before = len(server.log.read_text().splitlines())
    for _ in range(50):
        with connect(server) as connection:
            connection.sendall(BROKEN["no-http"])
            answers(connection)
    assert len(server.log.read_text().splitlines()) - before <= 2


@pytest.mark.parametrize("sent", [b"", POST + b"Content-Length: 9\r\n\r\n"], ids=["silent", "body that does not come"])
def test_more_connections_than_descriptors_shut_out_nobody(tmp_path, sent, monkeypatch):
    """The one that has been silent longest makes room, be it in the middle of a request; the log says so once."""
    with monkeypatch.context() as fewer:
        # The process that the server is made of takes this one's limits.
        fewer.setattr(resource, "getrlimit", lambda _: (256, 256))
        server = Server(tmp_path)
    with server, ExitStack() as silent:
        for _ in range(400):
            silent.enter_context(connect(server)).sendall(sent)
        for _ in range(3):
            assert httpx.get(f"{server.url}/healthz").status_code == 200
        assert server.log.read_text().count("connections are open") == 1


def test_the_soft_limit_of_descriptors_is_no_bound_on_connections(tmp_path, monkeypatch):
    with monkeypatch.context() as fewer:
        fewer.setattr(resource, "getrlimit", lambda _: (256, 4096))
        server = Server(tmp_path)
    with server, ExitStack() as silent:
        for _ in range(400):
            silent.enter_context(connect(server))
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        assert "connections are open" not in server.log.read_text()
