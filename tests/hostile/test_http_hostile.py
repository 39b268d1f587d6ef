"""Requests that no honest client sends: each gets a typed answer and leaves nothing behind."""

import base64
import hashlib
import http.client
import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from onebert_server.facades.routes import form_of
from onebert_server.http.auth import DOCS_PATHS
from servers import Server, Task, assert_answers, layouts, wait_until

KEY, OTHER_KEY = "first-key-0123456789", "second-key-0123456789"
CANARY = "canary7f3a"
TEXT = "where is my parcel"
UPLOAD_CAP = 256 * 1024
JSON = {"Content-Type": "application/json"}
OCTETS = {"Content-Type": "application/octet-stream"}
SETTINGS = {"max_body_bytes": 2**18, "max_upload_bytes": UPLOAD_CAP}
STORED = {"task": Task(seed=1)}


@pytest.fixture(scope="module")
def task():
    return STORED["task"]


@pytest.fixture(scope="module")
def locked(tmp_path_factory):
    keys = f"{KEY}, sha256:{hashlib.sha256(OTHER_KEY.encode()).hexdigest()}"
    with Server(tmp_path_factory.mktemp("locked"), api_keys=keys) as running:
        yield running


def assert_problem(answer, *statuses):
    assert answer.status_code in statuses, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["type"] == f"urn:onebert:error:{problem['code']}"
    assert problem["instance"].endswith(answer.headers["x-request-id"])
    assert CANARY not in answer.text
    assert "Traceback" not in answer.text
    assert "/home" not in answer.text
    return problem


# Keys


def test_every_route_needs_a_key_but_the_open_ones(locked):
    answered = set()
    with httpx.Client(base_url=locked.url) as web:
        paths = web.get("/openapi.json").json()["paths"]
        routes = [(method, path) for path, methods in paths.items() for method in methods]
        for method, path in [*routes, *(("get", path) for path in DOCS_PATHS)]:
            answer = web.request(method, path.replace("{version}", "1"), content=b"{")
            if answer.status_code != 401:
                answered.add(path)
                continue
            if form_of(path) is None:
                assert assert_problem(answer, 401)["code"] == "unauthorized"
            assert answer.headers["www-authenticate"] == "Bearer"
    assert len(routes) > 12
    theirs = {"/health", "/health/live", "/v2/health/live", "/v2/health/ready"}
    assert answered == {"/healthz", "/readyz", "/startupz", *theirs, *DOCS_PATHS}
    assert not any("task" in path or "metrics" in path for path in answered)


@pytest.mark.parametrize("path", ["/nowhere", "/healthz/", "//healthz", "/docs/oauth2-redirect", "/healthz/../metrics"])
def test_unknown_paths_need_a_key_too(locked, path):
    assert _raw(locked.url, "GET", path).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("Authorization", "Bearer")],
        [("Authorization", f"Basic {KEY}")],
        [("Authorization", KEY)],
        [("Authorization", f"Bearer {KEY[:-1]}")],
        [("Authorization", f"Bearer {KEY}x")],
        [("Authorization", f"Bearer {KEY}, Bearer {KEY}")],
        [("Authorization", f"Bearer {KEY}"), ("Authorization", "Bearer other")],
        [("Authorization", f"Bearer sha256:{hashlib.sha256(KEY.encode()).hexdigest()}")],
        [("Authorization", b"Bearer \xff\xfe")],
        [("X-Api-Key", KEY)],
    ],
    ids=str,
)
def test_wrong_keys_are_refused_alike(locked, headers):
    problem = assert_problem(httpx.get(f"{locked.url}/v1/tasks?api_key={KEY}", headers=headers), 401)
    assert problem["detail"] == "send one valid key as 'Authorization: Bearer …'"


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
def test_plain_and_hashed_keys_open(locked, key):
    with locked.client(api_key=key) as client:
        assert client.tasks() == []
    assert httpx.get(f"{locked.url}/v1/tasks", headers={"Authorization": f"bearer {key}"}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "", "[::2]"])
def test_without_keys_only_loopback_names_are_answered(server, host):
    """A page that rebinds its own name to 127.0.0.1 reaches the socket but not the server."""
    assert_problem(httpx.get(f"{server.url}/v1/tasks", headers={"Host": host}), 401)


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1", "[::1]:80", "127.9.9.9"])
def test_loopback_names_are_answered(server, host):
    assert httpx.get(f"{server.url}/v1/tasks", headers={"Host": host}).status_code == 200


# Bodies

MANY = {
    "unknown-fields": {"inputs": "x"} | dict.fromkeys(map(str, range(20_000)), 1),
    "unknown-fields-in-pairs": {"inputs": [{"text": "x"} | dict.fromkeys(map(str, range(300)), 1)] * 64},
    "empty-lists": {"inputs": [[]] * 50_000},
    "numbers": {"inputs": [1] * 50_000},
}


@layouts
@pytest.mark.parametrize("body", MANY.values(), ids=MANY.keys())
def test_more_values_than_any_request_needs_are_refused(web, body):
    """Before, each was made, named in an error and forgotten on the event loop, which took seconds."""
    problem = assert_problem(web.post("/v1/tasks/task/classify", content=json.dumps(body), headers=JSON), 413)
    assert "2048 values" in problem["detail"]


@layouts
def test_more_values_than_any_change_needs_are_refused_alike(web):
    body = {"split": {str(number): 1 for number in range(3000)}}
    problem = assert_problem(web.put("/v1/tasks/task/aliases/live", json=body), 413)
    assert "2048 values" in problem["detail"]


STRANGE = ["nul \0 inside", "\u202e rtl", "e" + "\u0301" * 5000, "\u200b" * 100 + "x", "𐍈" * 300]
# Punctuation of JSON is no value of it; the last text is the longest that there may be.
STRANGE += ['[{",\\": "}],' * 400, ("late " * 13108)[:65536]]


@pytest.mark.parametrize("text", STRANGE, ids=lambda text: repr(text[:10]))
def test_strange_texts_are_answered(web, task, text):
    (result,) = web.post("/v1/tasks/task/classify", json={"inputs": [text]}).json()["results"]
    assert result["truncated"] == (result["tokens"] == task.manifest["max_length"])
    assert text != STRANGE[-1] or (result["tokens"], result["truncated"]) == (48, True)
    assert_answers(result, task.scores(text))


@pytest.mark.parametrize("version", [0, 2**31, "1", True, 1.0])
def test_alias_takes_only_a_version(web, version):
    headers = {"If-Match": '"1"'}
    assert_problem(web.put("/v1/tasks/task/aliases/live", json={"version": version}, headers=headers), 422)


@layouts
def test_a_body_over_the_cap_is_refused(web):
    for content in (b" " * (2**18 + 1), (b" " * 2**16 for _ in range(5))):
        problem = assert_problem(web.post("/v1/classify", content=content, headers=JSON), 413)
        assert problem["code"] == "too-large"


# Names


@pytest.mark.parametrize(
    "name",
    [
        "..", ".", "%2e%2e", "%2e%2e%2fx", "..%2f..%2fx", "..%252f", "%2fetc", "C:%5C", "a%00b", "%00", "x" * 64,
        "%D0%B0bc", "%EF%BC%8E%EF%BC%8E", "a%20b", "a@1", "%ff", "-a", "Upper", "a%0d%0aX:1",
    ],
)  # fmt: skip
def test_bad_names_make_no_task_and_no_file(server, task, name):
    before = _tree(server)
    answer = _raw(server.url, "PUT", f"/v1/tasks/{name}/versions", task.file, OCTETS)
    assert answer.status in {404, 405, 422}
    assert answer.headers["content-type"] == "application/problem+json"
    assert _tree(server) == before


# Uploads


def _changed(change):
    task = Task(seed=2)
    change(task)
    return task.file


def _with(name, value):
    def change(task):
        task.tensors[name] = np.full_like(task.tensors[name], value)

    return lambda: _changed(change)


# Of each kind one; every way in which a file may be bad is in test_delta_file.py.
UPLOADS = {
    "empty": lambda: b"",
    "json": lambda: json.dumps({CANARY: 1}).encode(),
    "last-byte-missing": lambda: Task(seed=2).file[:-1],
    "other-labels": lambda: _changed(lambda task: task.manifest["labels"].pop()),
    "missing-head": lambda: _changed(lambda task: task.tensors.pop("head.bias")),
    "unknown-tensor": lambda: _changed(lambda task: task.tensors.update({f"delta.{CANARY}": np.zeros(3, np.float32)})),
    "overflow-in-the-forward-pass": _with("head.weight", 3e38),
}


@pytest.mark.parametrize("make", UPLOADS.values(), ids=UPLOADS.keys())
def test_bad_files_are_refused_and_leave_nothing(server, web, make):
    before = _tree(server), server.metric("onebert_bank_rows ")
    answer = web.put("/v1/tasks/refused/versions", content=make(), headers=OCTETS)
    problem = answer.json()
    assert answer.status_code == 422
    assert problem["type"] == f"urn:onebert:error:{problem['code']}"
    assert (_tree(server), server.metric("onebert_bank_rows ")) == before
    assert_problem(web.get("/v1/tasks/refused"), 404)


@layouts
def test_an_upload_over_the_cap_is_refused(server, web):
    before, chunks = _tree(server), (b"\1" * 2**16 for _ in range(5))
    answer = _raw(server.url, "PUT", "/v1/tasks/big/versions", b"x", OCTETS | {"Content-Length": str(UPLOAD_CAP + 1)})
    assert answer.status == 413
    assert_problem(web.get("/v1/tasks/big"), 404)
    assert_problem(web.put("/v1/tasks/big/versions", content=chunks, headers=OCTETS), 413)
    assert _tree(server) == before


@layouts
def test_upload_broken_off_leaves_nothing_and_can_be_repeated(server, web):
    file = Task(seed=3).file
    before = _tree(server)
    for tenth in range(1, 10):
        _reset(_begin_upload(server, "broken", file, len(file) * tenth // 10))
    wait_until(lambda: _tree(server) == before and server.in_progress() == 1)
    assert_problem(web.get("/v1/tasks/broken"), 404)
    assert web.put("/v1/tasks/broken/versions", content=file, headers=OCTETS).status_code == 201


@layouts
def test_stalled_uploads_do_not_stop_others(server):
    """They hold no place that an honest one needs: it is taken while all of them still wait for an answer."""
    with ExitStack() as stalled:
        waiting = [stalled.enter_context(_begin_upload(server, "slow", Task().file, 100)) for _ in range(24)]
        assert httpx.put(f"{server.url}/v1/tasks/a/versions", content=Task().file, headers=OCTETS).status_code == 201
        answer = httpx.post(f"{server.url}/v1/tasks/a/classify", json={"inputs": TEXT})
        assert_answers(answer.json()["results"][0], Task().scores(TEXT))
        for connection in waiting:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)


def test_the_slowest_upload_makes_room_when_all_places_are_taken(server):
    with ExitStack() as stalled:
        waiting = [stalled.enter_context(_begin_upload(server, "slow", Task().file, 100 + i)) for i in range(64)]

        def taken():
            answer = httpx.put(f"{server.url}/v1/tasks/b/versions", content=Task().file, headers=OCTETS)
            if answer.status_code != 201:
                assert assert_problem(answer, 503)["code"] == "queue-full"
                assert answer.headers["retry-after"] == "1"
            return answer.status_code == 201

        wait_until(taken)
        assert waiting[0].recv(12) == b"HTTP/1.1 408"


# Bodies on their way


# What gzip may become is in tests/integration/http/test_questions.py.
@pytest.mark.parametrize("encoding", ["gzip, gzip", "br"])
@pytest.mark.parametrize("path", ["/v1/classify", "/v1/tasks/task/aliases/live", "/v1/tasks/task/versions"])
def test_encoded_bodies_are_refused(web, path, encoding):
    method = "POST" if path == "/v1/classify" else "PUT"
    headers = (OCTETS if path.endswith("versions") else JSON) | {"Content-Encoding": encoding, "If-Match": '"1"'}
    problem = assert_problem(web.request(method, path, content=b"{}", headers=headers), 415)
    assert problem["code"] == "unsupported-media-type"
    assert "Content-Encoding" in problem["detail"]


@pytest.mark.parametrize("field", ["Content-Digest", "Digest"])
def test_a_body_that_is_not_its_digest_is_refused(web, field):
    file, path = Task(seed=8).file, "/v1/tasks/digested/versions"
    sha256 = base64.b64encode(hashlib.sha256(file).digest()).decode()
    headers = OCTETS | {field: f"sha-256=:{sha256}:" if field == "Content-Digest" else f"SHA-256={sha256}"}
    changed = web.put(path, content=file[:-1] + b"x", headers=headers)
    assert assert_problem(changed, 422)["code"] == "digest-mismatch"
    assert web.put(path, content=file, headers=headers).status_code in {200, 201}


# Clients that leave


@layouts
def test_clients_that_leave_do_not_disturb_the_others(server, web, task):
    body = json.dumps({"inputs": [f"{TEXT} {i}" for i in range(64)]}).encode()
    expected = task.scores(TEXT)

    def leave(_):
        _reset(server.begin("POST", "/v1/tasks/task/classify", body, len(body)))

    def stay(_):
        answer = web.post("/v1/tasks/task/classify", json={"inputs": TEXT})
        assert_answers(answer.json()["results"][0], expected)

    with ThreadPoolExecutor(8) as pool:
        left = pool.map(leave, range(60))
        stayed = pool.map(stay, range(60))
        assert len([*left, *stayed]) == 120
    wait_until(lambda: server.in_progress() == 1)


@layouts
def test_nothing_of_the_users_is_in_logs_or_metrics(server, web):
    """Neither of what is answered nor of what is refused, which no refusal repeats either."""
    refused = [
        (b"\xff\xfe" + CANARY.encode(), 400, "bad-request"),
        (b'{"inputs": "x", "inputs": "%b"}' % CANARY.encode(), 400, "bad-request"),
        (b'{"inputs": {"text": "x", "txt_pair": "%b"}}' % CANARY.encode(), 422, "invalid-input"),
        (b'{"inputs": "x", "parameters": {"%b": 1}}' % CANARY.encode(), 422, "invalid-input"),
        (b'{"inputs": ["fine", "%b \\ud800"]}' % CANARY.encode(), 422, "invalid-input"),
    ]
    for body, status, code in refused:
        problem = assert_problem(web.post("/v1/tasks/task/classify", content=body, headers=JSON), status)
        assert problem["code"] == code
    assert web.post("/v1/tasks/task/classify", json={"inputs": CANARY}).status_code == 200
    assert CANARY not in server.log.read_text()
    assert CANARY not in web.get("/metrics").text


def _raw(url, method, path, body=b"", headers=None):
    """A request whose path is sent as it is."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=180)
    try:
        connection.putrequest(method, path)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        answer.read()
        return answer
    finally:
        connection.close()


def _reset(connection):
    """Closes so that the other side sees a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _begin_upload(server, task, file, length):
    return server.begin("PUT", f"/v1/tasks/{task}/versions", file[:length], len(file), OCTETS["Content-Type"])


def _tree(server):
    """Every file around the server and its size, but for its log and the database, which grow at their own pace."""
    files = (path for path in server.folder.rglob("*") if path.is_file() and path != server.log)
    return {str(path): path.stat().st_size for path in files if "sqlite3" not in path.name}
