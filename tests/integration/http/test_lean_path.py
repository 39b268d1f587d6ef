"""The lean path answers as FastAPI's does: the same requests to an app with the lean path and to one without it."""

import asyncio
import json
import re
from functools import partial
from threading import Event
from urllib.parse import unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bases import tiny_base
from lengths import examples
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.context import own_work
from onebert_server.access.keys import KeyRing
from onebert_server.access.principal import root
from onebert_server.answering.answers import Answerer
from onebert_server.app import create_app
from onebert_server.edge import Edge
from onebert_server.engine.request import Item
from onebert_server.http import web
from onebert_server.http.lean.formats import Formats
from onebert_server.http.middleware import SECONDS
from onebert_server.http.routes import classify
from onebert_server.limits import MAX_FANOUT, MAX_ITEMS, MAX_REQUEST_TIMEOUT, MAX_TEXT
from onebert_server.runtime import open_runtime
from onebert_server.settings import load_settings
from onebert_store.file.format import loads
from onebert_store.registry.registry import Registry
from remote_engine import remote_engine
from servers import Task

ONE, MANY, FANOUT = "/v1/tasks/tone/classify", "/v1/classify", "/v1/fanout"
JSON = (b"content-type", b"application/json")
KEY = "a-key-of-this-test"
TEXT = "please help my order is late"
GIVEN_ID = (b"x-request-id", b"an.id-of_the.caller")


def tasks():
    """One of every type."""
    return {
        "tone": Task(seed=1),
        "several": Task(task_type="multi_label", seed=2),
        "amount": Task(task_type="regression", labels=["amount"], seed=3),
        "tags": Task(labels=["O", "B-x", "I-x"], task_type="token", pooling="none", seed=4),
        "spans": Task(labels=["start", "end"], task_type="span", pooling="none", seed=5),
        "quoted": Task(labels=['"', "é\\", "東"], seed=6),
    }


class TwoApps:
    """One replica behind two apps, and what a client sees of each."""

    def __init__(self, runtime, lean, plain):
        self.runtime, self.apps = runtime, (lean, plain)
        self.behind = []  # what the lean path left to FastAPI
        self._watch(lean)

    def _watch(self, app):
        app.middleware_stack = layer = app.build_middleware_stack()
        while type(layer).__name__ != "LeanMiddleware":
            layer = layer.app
        inner = layer.app

        async def noted(scope, receive, send):
            self.behind.append(scope["path"])
            await inner(scope, receive, send)

        layer.app = noted

    def ask(self, request):
        """The two answers to a request, which must not differ, and whether the lean path gave the first."""
        return asyncio.run(self.asked(request))

    async def asked(self, request):
        before = len(self.behind)
        lean = await request.sent_to(self.apps[0])
        taken = len(self.behind) == before
        assert lean == await request.sent_to(self.apps[1]), request
        return lean, taken


class Request:
    """A request as a server that speaks ASGI passes it on."""

    def __init__(self, path, body, headers=(JSON,), method="POST", parts=1, length=True):
        self.path, self.method, self.parts = path, method, parts
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        declared = [(b"content-length", b"%d" % len(self.body))] if length else []
        self.headers = [(b"host", b"localhost"), *declared, *headers]

    def __repr__(self):
        return f"{self.method} {self.path} {self.headers} {self.body[:200]!r}"

    async def sent_to(self, app):
        """Status, headers and body of the answer; an id that the server has made up is `made`, a duration `…`."""
        size = -(-len(self.body) // self.parts) or 1
        starts = range(0, max(len(self.body), 1), size)
        waiting = [
            {"type": "http.request", "body": self.body[at : at + size], "more_body": at != starts[-1]} for at in starts
        ]
        answer = []

        async def receive():
            return waiting.pop(0) if waiting else await asyncio.get_running_loop().create_future()

        async def send(message):
            answer.append(message)

        path, _, query = self.path.partition("?")
        scope = {"type": "http", "method": self.method, "path": unquote(path), "raw_path": path.encode()}
        scope |= {"query_string": query.encode(), "http_version": "1.1", "scheme": "http", "headers": self.headers}
        scope |= {"client": ("127.0.0.1", 1), "server": ("localhost", 80), "root_path": "", "state": {}}
        async with asyncio.timeout(60):
            await app(scope, receive, send)
        start, *rest = answer
        headers, body = list(start["headers"]), b"".join(one["body"] for one in rest)
        assert all(one["type"] == "http.response.body" for one in rest)
        assert not rest[-1].get("more_body")
        headers = [
            (name, re.sub(rb"dur=[0-9]+\.[0-9]{3}", b"dur=...", value) if name == b"server-timing" else value)
            for name, value in headers
        ]
        made = dict(headers)[b"x-request-id"]
        if (b"x-request-id", made) not in self.headers:
            assert re.fullmatch(rb"[0-9a-f]{32}", made)
            headers = [(name, value.replace(made, b"made")) for name, value in headers]
            body = body.replace(made, b"made")
        return start["status"], headers, body


def opened(folder, **settings):
    """A replica with the tasks."""
    with Registry.open(folder) as registry:
        for name, task in tasks().items():
            registry.add(name, loads(task.file))
    return open_runtime(load_settings(base=str(tiny_base()), data_dir=folder, **settings))


def two_apps(runtime, monkeypatch, create=create_app):
    lean = create(runtime)
    with monkeypatch.context() as without:
        without.setattr(web, "Formats", lambda formats: Formats([]))
        plain = create(runtime)
    return TwoApps(runtime, lean, plain)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    with opened(tmp_path_factory.mktemp("lean")) as runtime, pytest.MonkeyPatch.context() as patch:
        yield two_apps(runtime, patch)


PLAIN = {
    "a text": (ONE, {"inputs": TEXT}),
    "a list": (ONE, {"inputs": [TEXT, {"text": "late", "text_pair": "now"}, "late"]}),
    "a pair": (ONE, {"inputs": {"text": "late", "text_pair": "now"}}),
    "best one": (ONE, {"inputs": TEXT, "top_k": 1}),
    "all": (ONE, {"inputs": TEXT, "top_k": None}),
    "a number": ("/v1/tasks/tone@1/classify", {"inputs": TEXT}),
    "an alias": ("/v1/tasks/tone@live/classify", {"inputs": TEXT}),
    "several labels": ("/v1/tasks/several/classify", {"inputs": TEXT}),
    "a regression": ("/v1/tasks/amount/classify", {"inputs": TEXT}),
    "tags": ("/v1/tasks/tags/classify", {"inputs": f"{TEXT} é 東京"}),
    "spans": ("/v1/tasks/spans/classify", {"inputs": {"text": "what", "text_pair": f'"{TEXT}" \\ é'}, "top_k": 3}),
    "labels to be quoted": ("/v1/tasks/quoted/classify", {"inputs": TEXT}),
    "a long text": (ONE, {"inputs": "late " * 2000}),
    "escapes": (ONE, b'{"inputs": "\\u00e9 \\n \\ud83d\\ude00"}'),
    "spaces": (ONE, b' \n{"inputs"\t: "late"}\r\n '),
    "items": (MANY, {"items": [{"task": "tone", "text": TEXT}, {"task": "tags", "text": TEXT}]}),
    "items of one": (MANY, {"items": [{"task": "spans", "text": "a", "text_pair": "late now"}], "top_k": 2}),
    "most items": (MANY, {"items": [{"task": "tone", "text": f"late {n}"} for n in range(MAX_ITEMS)]}),
    "a fan-out": (FANOUT, {"tasks": ["tone", "several", "tone@1"], "text": TEXT}),
    "to all": (FANOUT, {"tasks": ["*"], "text": TEXT}),
    "a pair to all": (FANOUT, {"tasks": ["*"], "text": "a", "text_pair": TEXT, "top_k": 2}),
    "a large answer": (FANOUT, {"tasks": ["tone"] * MAX_FANOUT, "text": TEXT}),
}

# Refused for what they hold, by the same words.
REFUSED = {
    "no JSON": (ONE, b'{"inputs"', 400),
    "nothing": (ONE, b"", 400),
    "a key twice": (ONE, b'{"inputs": "a", "inputs": "b"}', 400),
    "NaN": (ONE, b'{"inputs": "a", "top_k": NaN}', 400),
    "Infinity": (ONE, b'{"inputs": -Infinity}', 400),
    "a huge integer": (ONE, b'{"inputs": "a", "top_k": 99999999999999999999999999}', 400),
    "a huge number": (ONE, b'{"inputs": "a", "top_k": 1e999}', 400),
    "no UTF-8": (ONE, b'{"inputs": "\xff"}', 400),
    "a byte order mark": (ONE, b'\xef\xbb\xbf{"inputs": "a"}', 400),
    "nested deeply": (ONE, b'{"inputs": ' + b"[" * 2000 + b"]" * 2000 + b"}", 400),
    "too many values": (ONE, {"inputs": ["a"] * 3000}, 413),
    "a list for an object": (ONE, [], 422),
    "null": (ONE, None, 422),
    "half a surrogate pair": (ONE, b'{"inputs": "a \\ud800"}', 422),
    "no inputs": (ONE, {}, 422),
    "no inputs but null": (ONE, {"inputs": None}, 422),
    "an empty list": (ONE, {"inputs": []}, 422),
    "too many": (ONE, {"inputs": ["a"] * (MAX_ITEMS + 1)}, 422),
    "an empty text": (ONE, {"inputs": ""}, 422),
    "a blank text": (ONE, {"inputs": " \t\u3000"}, 422),
    "an unknown field": (ONE, {"inputs": "a", "more": 1, "and\u0000": 2}, 422),
    "a number for a text": (ONE, {"inputs": 1}, 422),
    "many faults": (ONE, {"inputs": [{"text": 1, "x": y} for y in range(12)]}, 422),
    "top_k 0": (ONE, {"inputs": "a", "top_k": 0}, 422),
    "top_k 5000": (ONE, {"inputs": "a", "top_k": 5000}, 422),
    "top_k true": (ONE, {"inputs": "a", "top_k": True}, 422),
    "top_k 1.0": (ONE, {"inputs": "a", "top_k": 1.0}, 422),
    "top_k a text": (ONE, {"inputs": "a", "top_k": "1"}, 422),
    "an unknown task": ("/v1/tasks/nobody/classify", {"inputs": "a"}, 404),
    "an unknown version": ("/v1/tasks/tone@7/classify", {"inputs": "a"}, 404),
    "an unknown alias": ("/v1/tasks/tone@beta/classify", {"inputs": "a"}, 404),
    "no reference": ("/v1/tasks/tone@@/classify", {"inputs": "a"}, 422),
    "a reference that is long": (f"/v1/tasks/{'a' * 300}/classify", {"inputs": "a"}, 422),
    "a reference in another script": ("/v1/tasks/%C3%A9/classify", {"inputs": "a"}, 422),
    "a text for a pair": ("/v1/tasks/spans/classify", {"inputs": "a"}, 422),
    "a pair for a text": ("/v1/tasks/tags/classify", {"inputs": {"text": "a", "text_pair": "b"}}, 422),
    "no items": (MANY, {"items": []}, 422),
    "an item without a task": (MANY, {"items": [{"text": "a"}]}, 422),
    "items of an unknown task": (MANY, {"items": [{"text": "a", "task": "tone"}, {"text": "a", "task": "b"}]}, 404),
    "too many items": (MANY, {"items": [{"text": "a", "task": "tone"}] * (MAX_ITEMS + 1)}, 422),
    "no tasks": (FANOUT, {"tasks": [], "text": "a"}, 422),
    "all and one": (FANOUT, {"tasks": ["*", "tone"], "text": "a"}, 422),
    "too many tasks": (FANOUT, {"tasks": ["tone"] * (MAX_FANOUT + 1), "text": "a"}, 422),
}

# Not plain by their heads: FastAPI's.
UNUSUAL = {
    "no type": {"headers": ()},
    "another type": {"headers": ((b"content-type", b"text/plain"),)},
    "a charset": {"headers": ((b"content-type", b"application/json; charset=utf-8"),)},
    "capitals": {"headers": ((b"content-type", b"Application/JSON"),)},
    "two types": {"headers": (JSON, (b"content-type", b"text/plain"))},
    "an encoding": {"headers": (JSON, (b"content-encoding", b"gzip"))},
    "no encoding": {"headers": (JSON, (b"content-encoding", b"identity"))},
    "a digest": {"headers": (JSON, (b"content-digest", b"sha-256=:AAAA:"))},
    "an older digest": {"headers": (JSON, (b"digest", b"sha-256=AAAA"))},
    "no length": {"length": False},
    "a length that is none": {"headers": (JSON, (b"content-length", b"9" * 5000))},
    "GET": {"method": "GET"},
    "PUT": {"method": "PUT"},
    "a long body": {"body": {"inputs": "a" * (MAX_TEXT // 2 + 1)}},
    "a text that is too long": {"body": {"inputs": "a" * (MAX_TEXT + 1)}},
    "a body over the limit": {"body": b" " * (2**20 + 1)},
    "no such route": {"path": "/v1/tasks/tone/classify/"},
    "a route without a task": {"path": "/v1/tasks//classify"},
    "a task with a slash": {"path": "/v1/tasks/a%2Fb/classify"},
    "another route": {"path": "/v1/base", "method": "GET"},
}


@pytest.mark.parametrize("case", PLAIN)
def test_plain_questions_are_answered_alike(both, case):
    for headers in ((JSON,), (JSON, GIVEN_ID)):
        (status, found, _), taken = both.ask(Request(*PLAIN[case], headers=headers))
        assert (status, taken) == (200, True)
        assert (GIVEN_ID in found) == (GIVEN_ID in headers)


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_refused_alike(both, case):
    path, body, expected = REFUSED[case]
    (status, headers, _), taken = both.ask(Request(path, body))
    assert (status, taken) == (expected, True)
    assert (b"content-type", b"application/problem+json") in headers
    both.ask(Request(path, body, headers=(JSON, GIVEN_ID)))


@pytest.mark.parametrize("case", UNUSUAL)
def test_what_is_unusual_is_left_to_fastapi_with_its_body(both, case):
    _, taken = both.ask(Request(**{"path": ONE, "body": {"inputs": TEXT}} | UNUSUAL[case]))
    assert not taken


@pytest.mark.parametrize("parts", [1, 2, 7])
@pytest.mark.parametrize("case", ["a text", "a list", "items"])
def test_a_body_may_come_in_parts(both, case, parts):
    (status, _, _), taken = both.ask(Request(*PLAIN[case], parts=parts))
    assert (status, taken) == (200, True)


@pytest.mark.parametrize("value", ["30", "2.5e1", "1e-9", "0", "-1", "601", "nan", "", "5 s"])
def test_the_time_that_is_given_holds_alike(both, value):
    both.ask(Request(ONE, {"inputs": TEXT}, headers=(JSON, (b"x-request-timeout", value.encode()))))
    twice = ((b"x-request-timeout", b"1"), (b"x-request-timeout", value.encode()))
    both.ask(Request(ONE, {"inputs": TEXT}, headers=(JSON, *twice)))


@pytest.mark.parametrize("given", ["an id", "", "x" * 64, "x" * 65, "é", "a/b"])
def test_ids_that_are_given_are_taken_alike(both, given):
    for body in ({"inputs": TEXT}, {}):
        both.ask(Request(ONE, body, headers=(JSON, (b"x-request-id", given.encode()))))


def operations(app):
    import schemathesis

    document = schemathesis.openapi.from_dict(app.openapi())
    found = [one.ok() for one in document.get_all_operations()]
    return {one.label: one for one in found if one.label.endswith((ONE[-9:], MANY, FANOUT))}


def _give_time(case):
    """Makes a time that is given the longest: where a short one is over, is up to the machine."""
    given = case.body.get("timeout_ms") if isinstance(case.body, dict) else None
    if type(given) in (int, float) and 1 <= given <= 1000 * MAX_REQUEST_TIMEOUT:
        case.body["timeout_ms"] = 1000 * MAX_REQUEST_TIMEOUT
    for name, value in case.headers.items():
        seconds = float(value) if name.lower() == "x-request-timeout" and SECONDS.fullmatch(str(value)) else 0.0
        if 0 < seconds <= MAX_REQUEST_TIMEOUT:
            case.headers[name] = str(MAX_REQUEST_TIMEOUT)


def _as_request(case):
    body = json.dumps(case.body) if not isinstance(case.body, bytes | str) else case.body
    headers = [(name.lower().encode("latin-1", "replace"), str(value).encode()) for name, value in case.headers.items()]
    path = case.formatted_path
    return Request(path, body.encode() if isinstance(body, str) else body, headers=(JSON, *headers))


@pytest.mark.parametrize("path", ["POST /v1/tasks/{task}/classify", f"POST {MANY}", f"POST {FANOUT}"])
@pytest.mark.parametrize("mode", ["POSITIVE", "NEGATIVE"])
def test_requests_made_up_from_the_document_are_answered_alike(both, path, mode):
    from schemathesis import GenerationMode

    seen = set()
    strategy = operations(both.apps[0])[path].as_strategy(generation_mode=GenerationMode[mode])
    known = st.sampled_from(["tone", "tags", "spans", "nobody", "tone@1"])

    @settings(
        max_examples=examples(60),
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(strategy, known, st.booleans())
    def ask(case, task, named):
        if named and case.path_parameters:
            case.path_parameters["task"] = task
        body = case.body if named and isinstance(case.body, dict) else {}
        items = body.get("items")
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict):
                item["task"] = task
        if "tasks" in body:
            body["tasks"] = [task]
        _give_time(case)
        (status, _, _), _ = both.ask(_as_request(case))
        seen.add(status)

    ask()
    assert len(seen) > 1 or mode == "NEGATIVE"


def test_keys_are_asked_for_alike(tmp_path, monkeypatch):
    with opened(tmp_path, api_keys=KEY) as runtime:
        both = two_apps(runtime, monkeypatch)
        for value, expected in ((f"Bearer {KEY}", 200), (f"bearer  {KEY}", 200), (f"Bearer {KEY}x", 401), (KEY, 401)):
            headers = (JSON, (b"authorization", value.encode()))
            (status, _, _), _ = both.ask(Request(ONE, {"inputs": TEXT}, headers=headers))
            assert status == expected
        two = (JSON, *[(b"authorization", f"Bearer {KEY}".encode())] * 2)
        for headers in ((JSON,), two):
            (status, _, _), _ = both.ask(Request(ONE, b"{", headers=headers))
            assert status == 401


def test_a_front_end_answers_alike(both, tmp_path, monkeypatch):
    """The same requests to a front end's two apps, whose engine is on the other side of a socket."""
    runtime, path = both.runtime, str(tmp_path / "engine")
    create = partial(web.web_app, routers=[classify.router], keys=KeyRing({}), settings=runtime.settings)

    async def live():
        async with remote_engine(runtime.admission, runtime.keys, path) as (backend, counts, _):
            answerer = Answerer(runtime.base.tokenizer, runtime.base.spec.max_length, backend, runtime.workers)
            front = two_apps(Edge(answerer, counts), monkeypatch, create)
            for path_and_body in (*PLAIN.values(), *(case[:2] for case in REFUSED.values())):
                request = Request(*path_and_body)
                found, taken = await front.asked(request)
                assert taken
                assert found == await request.sent_to(both.apps[0])
            for changes in UNUSUAL.values():
                _, taken = await front.asked(Request(**{"path": ONE, "body": {"inputs": TEXT}} | changes))
                assert not taken

    asyncio.run(live())


def test_hosts_are_asked_for_alike(both):
    for host, expected in ((b"localhost:80", 200), (b"[::1]:80", 200), (b"evil.example", 401), (b"127.0.0.1", 200)):
        request = Request(ONE, {"inputs": TEXT})
        request.headers[0] = (b"host", host)
        (status, _, _), _ = both.ask(request)
        assert status == expected


def test_a_server_that_drains_says_so_alike(both):
    both.runtime.draining = True
    try:
        (status, headers, _), taken = both.ask(Request(ONE, {"inputs": TEXT}))
        assert (status, taken, headers[-1]) == (200, True, (b"connection", b"close"))
        both.ask(Request(ONE, {}))
    finally:
        both.runtime.draining = False


def test_requests_are_counted_alike(both):
    def counts():
        found = both.runtime.metrics.exposition().decode()
        lines = (line.rpartition(" ") for line in found.splitlines() if re.match("onebert_(http_requests_|rej)", line))
        return {name: float(value) for name, _, value in lines if "created" not in name}

    async def of(app):
        before = counts()
        for body in ({"inputs": TEXT}, {"inputs": ""}, b"{"):
            await Request(ONE, body).sent_to(app)
        await Request("/v1/tasks/nobody/classify", {"inputs": TEXT}).sent_to(app)
        return {name: value - before.get(name, 0) for name, value in counts().items() if value != before.get(name, 0)}

    lean, plain = (asyncio.run(of(app)) for app in both.apps)
    assert lean == plain
    assert lean['onebert_http_requests_total{method="POST",route="/v1/tasks/{task}/classify",status="200"}'] == 1


def test_what_goes_wrong_behind_the_queue_is_said_alike(tmp_path, monkeypatch):
    """While a batch holds the engine the time is over; then the engine is closed."""
    with opened(tmp_path) as runtime:
        both, entered, goes_on = two_apps(runtime, monkeypatch), Event(), Event()

        def hold(_):
            entered.set()
            goes_on.wait()

        [[version]] = runtime.directory.pin(["tone"], root("test"))
        runtime.engine.submit([Item(Tokens([5], [0]), version.slot)], own_work("test")).add_done_callback(hold)
        try:
            assert entered.wait(180)
            # The first request of an app makes its routes, for which this time is too short.
            both.ask(Request(ONE, {}))
            soon = (JSON, (b"x-request-timeout", b"0.5"))
            (status, _, body), taken = both.ask(Request(ONE, {"inputs": TEXT}, headers=soon))
            assert (status, json.loads(body)["code"], taken) == (504, "deadline-exceeded", True)
        finally:
            goes_on.set()
        runtime.engine.close(60)
        (status, _, body), taken = both.ask(Request(ONE, {"inputs": TEXT}))
        assert (status, json.loads(body)["code"], taken) == (503, "shutting-down", True)
