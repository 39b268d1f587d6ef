"""Questions in every form that a request may have, to the engine's own process and to a front end."""

import asyncio
import base64
import gzip
import hashlib
import json
import re

import httpx
import pytest

from onebert_server.access.keys import KeyRing
from onebert_server.answering.answers import Answerer
from onebert_server.answering.edge import Edge
from onebert_server.http.body import MAX_BYTES_ON_LOOP
from onebert_server.http.head import HEAD, Head
from onebert_server.limits import MAX_FANOUT, MAX_ITEMS, MAX_TEXT
from onebert_server.run.app import create_app
from onebert_server.run.front_end import config_of
from remote_engine import remote_engine
from runtimes import opened
from servers import Task, store

ONE, MANY, FANOUT = "/v1/tasks/tone/classify", "/v1/classify", "/v1/fanout"
JSON, OCTETS = ((b"content-type", kind) for kind in (b"application/json", b"application/octet-stream"))
TEXT = "please help my order is late"
GIVEN_ID = (b"x-request-id", b"an.id-of_the.caller")


# One of every type.
TASKS = {
    "tone": Task(seed=1),
    "several": Task(task_type="multi_label", seed=2),
    "amount": Task(task_type="regression", labels=["amount"], seed=3),
    "tags": Task(labels=["O", "B-x", "I-x"], task_type="token", pooling="none", seed=4),
    "spans": Task(labels=["start", "end"], task_type="span", pooling="none", seed=5),
    "quoted": Task(labels=['"', "é\\", "東"], seed=6),
    "kinds": Task(labels=["O", *(f"B-{n}" for n in range(99))], task_type="token", pooling="none", seed=7),
}


class Request:
    """A request with just these fields, beside those that httpx adds; with `parts` its body comes in chunks."""

    def __init__(self, path, body, headers=(JSON,), method="POST", parts=0):
        self.path, self.headers, self.method, self.parts = path, headers, method, parts
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()

    def __repr__(self):
        return f"{self.method} {self.path} {self.headers} {self.body[:200]!r}"

    async def _chunks(self):
        size = -(-len(self.body) // self.parts)
        for start in range(0, len(self.body), size):
            yield self.body[start : start + size]

    async def sent_to(self, app):
        """Status, headers and body of the answer; an id that the server has made up is `made`, a duration `…`."""
        content = self._chunks() if self.parts else self.body
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as web:
            answer = await web.request(self.method, self.path, headers=list(self.headers), content=content)
        headers, body = [(name.lower(), value) for name, value in answer.headers.raw], answer.content
        headers = [
            (name, re.sub(rb"dur=[0-9]+\.[0-9]{3}", b"dur=...", value) if name == b"server-timing" else value)
            for name, value in headers
        ]
        made = dict(headers)[b"x-request-id"]
        if (b"x-request-id", made) not in self.headers:
            assert re.fullmatch(rb"[0-9a-f]{32}", made)
            headers = [(name, value.replace(made, b"made")) for name, value in headers]
            body = body.replace(made, b"made")
        return answer.status_code, headers, body


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    """A replica with the tasks."""
    folder = tmp_path_factory.mktemp("questions")
    store(folder, **TASKS)
    with opened(folder) as made:
        yield made


@pytest.fixture(scope="module")
def ask(runtime):
    """Asks one app; every answer is what a client sees of it."""
    app = create_app(runtime)
    return lambda request: asyncio.run(request.sent_to(app))


TEXT_QUESTION = (ONE, {"inputs": TEXT})
PLAIN = {
    "a text": TEXT_QUESTION,
    "a list": (ONE, {"inputs": [TEXT, {"text": "late", "text_pair": "now"}, "late"]}),
    "a pair": (ONE, {"inputs": {"text": "late", "text_pair": "now"}}),
    "best one": (ONE, {"inputs": TEXT, "top_k": 1}),
    "all": (ONE, {"inputs": TEXT, "top_k": None}),
    "a number": ("/v1/tasks/tone@1/classify", {"inputs": TEXT}),
    "several labels": ("/v1/tasks/several/classify", {"inputs": TEXT}),
    "a regression": ("/v1/tasks/amount/classify", {"inputs": TEXT}),
    "tags": ("/v1/tasks/tags/classify", {"inputs": f"{TEXT} é 東京"}),
    "spans": ("/v1/tasks/spans/classify", {"inputs": {"text": "what", "text_pair": f'"{TEXT}" \\ é'}, "top_k": 3}),
    "labels to be quoted": ("/v1/tasks/quoted/classify", {"inputs": TEXT}),
    "a long text": (ONE, {"inputs": "late " * 2000}),
    "escapes": (ONE, b'{"inputs": "\\u00e9 \\n \\ud83d\\ude00"}'),
    "items": (MANY, {"items": [{"task": "tone", "text": TEXT}, {"task": "tags", "text": TEXT}]}),
    "most items": (MANY, {"items": [{"task": "tone", "text": f"late {n}"} for n in range(MAX_ITEMS)]}),
    "a fan-out": (FANOUT, {"tasks": ["tone", "several", "tone@1"], "text": TEXT}),
    "to all": (FANOUT, {"tasks": ["*"], "text": TEXT}),
    "a pair to all": (FANOUT, {"tasks": ["*"], "text": "a", "text_pair": TEXT, "top_k": 2}),
    "a large answer": (FANOUT, {"tasks": ["tone"] * MAX_FANOUT, "text": TEXT}),
}

NO_TEXT, NO_NUMBER = "must be a text, an object or a list", "must be a whole number"
HALF = "must be Unicode, without half of a surrogate pair"
# Refused for what they hold, by the same words: path, body, status, and where a rule is broken its field and words.
REFUSED = {
    "no JSON": (ONE, b'{"inputs"', 400),
    "a key twice": (ONE, b'{"inputs": "a", "inputs": "b"}', 400),
    "a key twice inside": (ONE, b'{"inputs": [{"text": "x", "text": "y"}]}', 400),
    "NaN": (ONE, b'{"inputs": "a", "top_k": NaN}', 400),
    "a huge integer": (ONE, b'{"inputs": "a", "top_k": 99999999999999999999999999}', 400),
    "no UTF-8": (ONE, b'{"inputs": "\xff"}', 400),
    "UTF-16": (ONE, '{"inputs": "x"}'.encode("utf-16"), 400),
    "a byte order mark": (ONE, b'\xef\xbb\xbf{"inputs": "a"}', 400),
    "nested deeply": (ONE, b'{"inputs": ' + b"[" * 2000 + b"]" * 2000 + b"}", 400),
    "too many values": (ONE, {"inputs": ["a"] * 3000}, 413),
    "a list for an object": (ONE, [], 422, "body", "must be an object"),
    "half a surrogate pair": (ONE, b'{"inputs": ["fine", "a \\ud800"]}', 422, "body.inputs.1", HALF),
    "no inputs": (ONE, {}, 422, "body.inputs", "is required"),
    "an empty list": (ONE, {"inputs": []}, 422, "body.inputs", "must not be empty"),
    "too many": (ONE, {"inputs": ["a"] * (MAX_ITEMS + 1)}, 422, "body.inputs", "must have at most 64 items"),
    "an empty text": (ONE, {"inputs": ""}, 422, "body.inputs", "must not be empty"),
    "a blank text": (ONE, {"inputs": " \t\u3000"}, 422, "body.inputs", "must not be blank"),
    "a long text": (ONE, {"inputs": "x" * 65537}, 422, "body.inputs", "must have at most 65536 characters"),
    "an unknown field": (ONE, {"inputs": "a", "more": 1, "and\u0000": 2}, 422, "body.more", "unknown field"),
    "a long field": (ONE, {"inputs": "x", "\n" + "x" * 100: 1}, 422, "body.?" + "x" * 62 + "…", "unknown field"),
    "a number for a text": (ONE, {"inputs": 1}, 422, "body.inputs", NO_TEXT),
    "null for a text": (ONE, {"inputs": ["x", None]}, 422, "body.inputs.1", "must be a text or an object"),
    "a number in an object": (ONE, {"inputs": {"text": 1}}, 422, "body.inputs.text", "must be a text"),
    "many faults": (ONE, {"inputs": [{"text": 1, "x": y} for y in range(12)]}, 422),
    "top_k 0": (ONE, {"inputs": "a", "top_k": 0}, 422, "body.top_k", "must be at least 1"),
    "top_k 5000": (ONE, {"inputs": "a", "top_k": 5000}, 422, "body.top_k", "must be at most 4096"),
    "top_k 1.0": (ONE, {"inputs": "a", "top_k": 1.0}, 422, "body.top_k", NO_NUMBER),
    "an unknown task": ("/v1/tasks/nobody/classify", {"inputs": "a"}, 404),
    "an unknown version": ("/v1/tasks/tone@7/classify", {"inputs": "a"}, 404),
    "an unknown alias": ("/v1/tasks/tone@beta/classify", {"inputs": "a"}, 404),
    "no reference": ("/v1/tasks/tone@@/classify", {"inputs": "a"}, 422),
    "a reference in another script": ("/v1/tasks/%C3%A9/classify", {"inputs": "a"}, 422),
    "a text for a pair": ("/v1/tasks/spans/classify", {"inputs": "a"}, 422),
    "a pair for a text": ("/v1/tasks/tags/classify", {"inputs": {"text": "a", "text_pair": "b"}}, 422),
    "an item without a task": (MANY, {"items": [{"text": "a"}]}, 422),
    "an item of no name": (MANY, {"items": [{"text": "a", "task": "tone"}, {"text": "a", "task": ""}]}, 422),
    "items of an unknown task": (MANY, {"items": [{"text": "a", "task": "tone"}, {"text": "a", "task": "b"}]}, 404),
    "too many items": (MANY, {"items": [{"text": "a", "task": "tone"}] * (MAX_ITEMS + 1)}, 422),
    "a task for tasks": (FANOUT, {"tasks": "tone", "text": "a"}, 422),
    "all and one": (FANOUT, {"tasks": ["*", "tone"], "text": "a"}, 422),
    "too many tasks": (FANOUT, {"tasks": ["tone"] * (MAX_FANOUT + 1), "text": "a"}, 422),
}

SENT = json.dumps(TEXT_QUESTION[1]).encode()
ZIPPED, GZIPPED = gzip.compress(SENT), (JSON, (b"content-encoding", b"gzip"))


def digest(body):
    return b"sha-256=:" + base64.b64encode(hashlib.sha256(body).digest()) + b":"


# The same question in other forms.
SAME = {
    "a charset": {"headers": ((b"content-type", b"application/json; charset=utf-8"),)},
    "two types": {"headers": (JSON, (b"content-type", b"text/plain"))},
    "no encoding": {"headers": (JSON, (b"content-encoding", b"identity"))},
    "gzip": {"body": ZIPPED, "headers": GZIPPED},
    "gzip of much": {"body": gzip.compress(b" " * 500_000 + SENT), "headers": GZIPPED},
    "gzip in parts": {"body": ZIPPED, "headers": (JSON, (b"content-encoding", b" GZip ")), "parts": 5},
    "a digest": {"headers": (JSON, (b"content-digest", digest(SENT)))},
    "an older digest": {"headers": (JSON, (b"digest", digest(SENT).replace(b":", b"")))},
    "a digest of another kind": {"headers": (JSON, (b"digest", b"md5=AAAA"))},
    "no length": {"parts": 1},
    "spaces": {"body": SENT + b" " * MAX_BYTES_ON_LOOP},
    "spaces with a digest": {
        "body": SENT + b" " * MAX_BYTES_ON_LOOP,
        "headers": (JSON, (b"content-digest", digest(SENT + b" " * MAX_BYTES_ON_LOOP))),
    },
}
# Refused, or answered by another route, for the form.
OTHERWISE = {
    "no type": ({"headers": ()}, 415),
    **{
        f"the type {value}": ({"headers": ((b"content-type", value.encode()),)}, 415)
        for value in ("text/plain", "application/json5")
    },
    **{
        f"no gzip: {kind}": ({"body": body, "headers": GZIPPED}, status)
        for kind, body, status in (
            ("plain", SENT, 400),
            ("nothing", b"", 400),
            ("cut", ZIPPED[:-3], 400),
            ("more behind it", ZIPPED + b"more", 400),
            ("twice", ZIPPED + ZIPPED, 400),
            ("of no JSON", gzip.compress(b"{"), 400),
            ("a bomb", gzip.compress(b" " * 100_000_000), 413),
        )
    },
    "another encoding": ({"headers": (JSON, (b"content-encoding", b"br"))}, 415),
    "two encodings": ({"body": ZIPPED, "headers": (JSON, *[(b"content-encoding", b"gzip")] * 2)}, 415),
    "gzip with a digest": (
        {"body": ZIPPED, "headers": (JSON, (b"content-encoding", b"gzip"), (b"digest", b"sha-256=AAAA"))},
        415,
    ),
    "another digest": ({"headers": (JSON, (b"content-digest", b"sha-256=:AAAA:"))}, 422),
    **{
        f"no digest: {value}": ({"headers": (JSON, (b"content-digest", value.encode()))}, 422)
        for value in ("sha-256=:x:", "sha-256=x", "sha-256=:eA==", "sha-256")
    },
    "GET": ({"method": "GET"}, 405),
    "a text that is too long": ({"body": {"inputs": "a" * (MAX_TEXT + 1)}}, 422),
    "a body over the limit": ({"body": b" " * (2**20 + 1)}, 413),
    "no such route": ({"path": "/v1/tasks/tone/classify/"}, 404),
    "a route without a task": ({"path": "/v1/tasks//classify"}, 404),
    "another host": ({"headers": (JSON, (b"host", b"evil.example"))}, 401),
}
# The code of a refusal, by its status, and of the cases that have another.
CODES = {
    400: "bad-request",
    401: "unauthorized",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-large",
    415: "unsupported-media-type",
    422: "invalid-input",
    504: "deadline-exceeded",
}
OTHER_CODES = {
    "an unknown task": "task-not-found",
    "an unknown version": "version-not-found",
    "an unknown alias": "alias-not-found",
    "items of an unknown task": "task-not-found",
    "another digest": "digest-mismatch",
}


def changed(changes):
    return Request(**{"path": ONE, "body": SENT} | changes)


def problem_of(answer, expected, case=None):
    """The problem of this status, with the code of the status or of the case."""
    status, headers, body = answer
    assert status == expected
    assert (b"content-type", b"application/problem+json") in headers
    problem = json.loads(body)
    code = OTHER_CODES.get(case, CODES[status])
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, f"urn:onebert:error:{code}")
    assert problem["instance"] == f"urn:onebert:request:{dict(headers)[b'x-request-id'].decode()}"
    return problem


@pytest.mark.parametrize("case", PLAIN)
def test_questions_are_answered_with_the_id_that_they_bring(ask, case):
    for headers in ((JSON,), (JSON, GIVEN_ID)):
        status, answer_id, body = ask(Request(*PLAIN[case], headers=headers))
        assert (status, (GIVEN_ID in answer_id)) == (200, GIVEN_ID in headers)
        assert (b"content-length", b"%d" % len(body)) in answer_id
        json.loads(body)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_a_problem(ask, case):
    path, body, expected, *rule = REFUSED[case]
    problem = problem_of(ask(Request(path, body)), expected, case)
    assert len(problem.get("errors", ())) <= 10
    assert not rule or list(problem["errors"][0].values()) == rule


VERSION = {"task", "version", "digest"}
# Short and long texts, of few and of many logits: the sizes at which a worker tokenizes, reads and writes.
SIZES = {
    "small": ("kinds", TEXT),
    "many numbers": ("kinds", "late " * 40),
    "many characters": ("tone", "late " * 900),
    "many bytes": ("tone", "late " * (MAX_BYTES_ON_LOOP // 5)),
    "all": ("kinds", "late " * (MAX_BYTES_ON_LOOP // 5)),
}


@pytest.mark.parametrize("partial", [False, True], ids=["", "partial"])
@pytest.mark.parametrize("beside", [("tone", TEXT), ("nobody", TEXT)], ids=["beside", "beside an error"])
@pytest.mark.parametrize("size", SIZES)
def test_questions_of_every_size_are_answered_as_if_alone(ask, size, beside, partial):
    """Wherever a request's parts are read; an error beside them ends it unless it is `partial`."""

    def results(path, **body):
        status, _, answer = ask(Request(path, body))
        return status, json.loads(answer).get("results")

    def alone(task, text):
        status, answers = results(f"/v1/tasks/{task}/classify", inputs=text)
        return answers[0] if status == 200 else None

    def fields(result):
        return None if "error" in result else {name: result[name] for name in result.keys() - VERSION}

    for (task, text), (other, short) in ((SIZES[size], beside), (beside, SIZES[size])):
        expected = [alone(task, text), alone(other, short), alone(task, text)]
        items = [{"task": task, "text": text}, {"task": other, "text": short}, {"task": task, "text": text}]
        status, answers = results(MANY, items=items, partial=partial)
        assert (status == 200) == (partial or None not in expected)
        assert status != 200 or [*map(fields, answers)] == expected
        status, answers = results(FANOUT, tasks=[task, other, "several"], text=text, partial=partial)
        expected = [alone(task, text), alone(other, text), alone("several", text)]
        assert (status == 200) == (partial or None not in expected)
        assert status != 200 or [*map(fields, answers)] == expected


@pytest.mark.parametrize("case", SAME)
def test_the_same_question_in_another_form_has_the_same_answer(ask, case):
    assert ask(changed(SAME[case])) == ask(changed({}))


@pytest.mark.parametrize("case", OTHERWISE)
def test_a_form_that_is_not_taken_is_a_problem(ask, case):
    changes, expected = OTHERWISE[case]
    problem_of(ask(changed(changes)), expected, case)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((good, 200) for good in ("30", "0600.0", str(30 - 0.1 - 0.2), "6E+2")),
        *((short, 504) for short in ("1e-9", "5e-324")),
        *((bad, 422) for bad in ("", "0", "601", "nan", "١", "5 s", "1" * 400)),
    ],
)
def test_the_time_that_is_given_holds_as_languages_write_numbers(ask, value, expected):
    given = (b"x-request-timeout", value.encode())
    answer = ask(Request(*TEXT_QUESTION, headers=(JSON, given)))
    assert answer[0] == expected
    if expected != 200:
        detail = problem_of(answer, expected)["detail"]
        assert expected == 504 or "X-Request-Timeout" in detail
    problem_of(ask(Request(*TEXT_QUESTION, headers=(JSON, (given[0], b"1"), given))), 422)


@pytest.mark.parametrize(
    ("given", "taken"), [("an id", 0), ("an-id", 1), ("", 0), ("x" * 64, 1), ("x" * 65, 0), ("é", 0), ("a/b", 0)]
)
def test_an_id_is_taken_if_it_is_safe_to_log(ask, given, taken):
    field = (b"x-request-id", given.encode())
    for body in (TEXT_QUESTION[1], {}):
        _, headers, _ = ask(Request(ONE, body, headers=(JSON, field)))
        assert (field in headers) == bool(taken)


# For the control plane.
NEXT = "/v1/tasks/tone/aliases/next"
CONTROL = [
    *(Request(path, b"", (), "GET") for path in ("/v1/tasks?limit=2", "/v1/tasks/tone", "/v1/whoami", "/openapi.json")),
    Request("/v1/tasks/tone/versions/1/file", b"", (), "GET"),
    Request("/v1/tasks/tone", b"", (), "HEAD"),
    Request("/v1/tasks/nobody", b"", (GIVEN_ID,), "GET"),
    Request("/v1/tasks?limit=many", b"", (), "GET"),
    Request("/v1/classify", b"", (), "GET"),
    Request("/nowhere", b"", (), "GET"),
    Request("/v1/tasks", b"", (), "OPTIONS"),
    Request(NEXT, {"version": 9}, method="PUT"),
    Request(NEXT, {"version": 9}, method="PUT", parts=3),
    Request(NEXT, gzip.compress(b'{"version": 9}'), (JSON, (b"content-encoding", b"gzip")), "PUT"),
    Request(NEXT, b"no gzip", (JSON, (b"content-encoding", b"gzip")), "PUT"),
    Request(NEXT, b"{", method="PUT"),
    Request("/v1/tasks/tone/versions", b"no delta", (OCTETS,), "PUT"),
    Request("/v1/tasks/tone/versions", Task(seed=1).file, (OCTETS,), "PUT"),
    Request("/v1/tasks/tone/versions", b"{}", (JSON,), "PUT"),
]


def with_head(app):
    """Asks an app as a connection does, which has read the head."""

    async def asked(scope, receive, send):
        await app({**scope, "state": {HEAD: Head(scope["headers"])}}, receive, send)

    return asked


async def test_a_front_end_answers_and_counts_alike(runtime, tmp_path, monkeypatch):
    """The same requests to a front end, whose engine is on the other side of a socket."""
    path, here, ended = str(tmp_path / "engine"), create_app(runtime), []
    monkeypatch.setattr(runtime.metrics, "requests_ended", ended.extend)

    async with remote_engine(runtime.admission, runtime.keys, path, here) as (gateway, counts, transport, _):
        answerer = Answerer(runtime.admission.splitters, gateway, runtime.workers)
        monkeypatch.setattr(counts, "requests_ended", ended.extend)
        front = with_head(config_of(Edge(answerer, counts), transport, KeyRing({}), runtime.settings).app)
        asked = [Request(*case[:2]) for case in (*PLAIN.values(), *REFUSED.values())]
        asked += [changed(case) for case in (*SAME.values(), *(changes for changes, _ in OTHERWISE.values()))]
        for request in (*asked, *CONTROL):
            assert await request.sent_to(front) == await request.sent_to(here), request
            await asyncio.sleep(0)  # ends the turn, after which what it has finished is counted
            there, entry = (case._replace(seconds=0, answers=()) for case in ended[-2:])
            assert there == entry, request


def test_a_server_that_drains_closes_its_connections(runtime, ask):
    runtime.draining = True
    try:
        for body, expected in ((TEXT_QUESTION[1], 200), ({}, 422)):
            status, headers, _ = ask(Request(ONE, body))
            assert (status, headers[-1]) == (expected, (b"connection", b"close"))
    finally:
        runtime.draining = False
