"""Tenants: each sees its own tasks, and cannot tell another's from one that nobody has made; every route × scope."""

import asyncio
import hashlib
from itertools import product

import pytest

from onebert_server.access.principal import Scope
from onebert_server.answering.answers import Answerer
from onebert_server.answering.edge import Edge
from onebert_server.facades.address import HEADER
from onebert_server.facades.clients import vllm
from onebert_server.facades.routes import answering, form_of, paths_of
from onebert_server.fairness import receiving
from onebert_server.http import web
from onebert_server.http.auth import OPEN_PATHS, ApiKeys
from onebert_server.run.app import create_app
from remote_engine import remote_engine
from servers import Task
from tenants import ROOT_KEY, TENANTS, Asker, seen, tenants_runtime
from ways import questions

TEXT = "please help my order is late"
FILE = {"content": Task(seed=5).file, "headers": {"Content-Type": "application/octet-stream"}}
AT = {"If-Match": '"1"'}
RULES = {"must": [{"text": TEXT, "label": "a"}]}
EXAMPLES = {"examples": [{"text": TEXT, "label": label} for label in "ab"]}
# Three names of one length: another tenant's task, none that this tenant could have, and a free one of its own.
FOREIGN, NOBODYS, FREE = "blue-tone", "blue-lost", "acme-lost"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with tenants_runtime(tmp_path_factory.mktemp("tenants")) as opened:
        yield opened


@pytest.fixture(scope="module")
def asker(runtime):
    return Asker(runtime)


def ask(asker, key, method, path, **arguments):
    return asyncio.run(asker.ask(key, method, path, **arguments))


def classify_requests(name):
    inputs = {"json": {"inputs": TEXT}}
    for ref in (name, f"{name}@1", f"{name}@live", f"{name}@7", f"{name}@next"):
        yield "POST", f"/v1/tasks/{ref}/classify", inputs
        yield "POST", "/v1/fanout", {"json": {"tasks": [ref], "text": TEXT}}
        for others in (["acme-tone"], ["acme-tone@7"], []):
            refs = [*others, ref, *others]
            yield "POST", "/v1/classify", {"json": {"items": [{"task": ref, "text": TEXT} for ref in refs]}}
            yield "POST", "/v1/fanout", {"json": {"tasks": refs, "text": TEXT}}
    yield "POST", f"/v1/tasks/{name}/classify", {"json": {"inputs": {"text": "a", "text_pair": "b"}}}


def facade_requests(name):
    """Every façade, which is told the task by the path, by the header, and by both."""
    for path, body in (*QUESTIONS.items(), *SHARED.items()):
        for ref in (name, f"{name}@1", f"{name}@live", f"{name}@7", f"{name}@next"):
            for address in paths_of(path):
                headers = {} if "{" in address else {"detector-id": ref}
                yield "POST", address.format(task=ref, model=ref), {"json": body, "headers": headers}


def facade_looks(name):
    for path in LISTINGS:
        yield "GET", f"/t/{name}{path.format(model=name)}", {}


def other_requests(name):
    yield "GET", f"/v1/tasks/{name}", {}
    for number in (1, 7):
        yield "GET", f"/v1/tasks/{name}/versions/{number}", {}
        yield "GET", f"/v1/tasks/{name}/versions/{number}/delta", {}
        yield "DELETE", f"/v1/tasks/{name}/versions/{number}", {}
    for alias in ("live", "next", "Not-A-Name", "12"):
        path = f"/v1/tasks/{name}/aliases/{alias}"
        yield "GET", path, {}
        yield "DELETE", path, {"headers": AT}
        yield "DELETE", path, {}
        for condition, version in product((AT, {"If-Match": '"7"'}, {"If-None-Match": "*"}, {}), (1, 7)):
            yield "PUT", path, {"headers": condition, "json": {"version": version}}
    for rules in (RULES, {}):
        yield "PUT", f"/v1/tasks/{name}/gate", {"json": {"rules": rules}}
    for method in ("GET", "DELETE"):
        yield method, f"/v1/tasks/{name}/gate", {}
    yield "PUT", f"/v1/tasks/{name}/samples", {"json": {"share": 1.0}}
    for method, path in (("GET", ""), ("GET", "/rows"), ("DELETE", ""), ("DELETE", "/an-id/0")):
        yield method, f"/v1/tasks/{name}/samples{path}", {}
    for path in ("review", "feedback"):
        yield "GET", f"/v1/tasks/{name}/{path}", {}
    yield (
        "POST",
        "/v1/feedback",
        {"json": {"data": [{"task": name, "text": TEXT, "label": "label 0", "identifier": "a"}]}},
    )
    yield "DELETE", f"/v1/tasks/{name}", {}


def uploads(name):
    yield "PUT", f"/v1/tasks/{name}/versions", FILE
    yield "PUT", f"/v1/tasks/{name}/versions", FILE | {"content": b"no delta"}
    yield "PUT", f"/v1/tasks/{name}/versions", {"content": FILE["content"]}
    yield "POST", f"/v1/tasks/{name}/examples", {"json": EXAMPLES}


def assert_alike(asker, requests, names, key="key-of-acme"):
    for of_each in zip(*(requests(name) for name in names), strict=True):
        answers = [
            seen(ask(asker, key, *request[:2], **request[2]), name)
            for request, name in zip(of_each, names, strict=True)
        ]
        assert answers.count(answers[0]) == len(names), of_each[0]
        assert answers[0][0] >= 400


def test_a_foreign_task_answers_like_one_that_is_not_there(asker):
    assert_alike(asker, classify_requests, (FOREIGN, NOBODYS, FREE))
    assert_alike(asker, other_requests, (FOREIGN, NOBODYS, FREE))
    assert_alike(asker, facade_requests, (FOREIGN, NOBODYS, FREE))
    assert_alike(asker, facade_looks, (FOREIGN, NOBODYS, FREE))
    # Nobody could upload to a free name of its own and have the same answer.
    assert_alike(asker, uploads, (FOREIGN, NOBODYS))


def test_what_a_bundle_says_of_a_foreign_task_it_says_of_none(asker):
    names = (FOREIGN, NOBODYS, FREE)
    answers = [seen(ask(asker, "key-of-acme", "POST", f"/t/{name}/v1/bundle", json=BUNDLE), name) for name in names]
    assert answers.count(answers[0]) == len(names)
    assert b'"status":404' in answers[0][2]


def test_what_was_refused_was_not_done(runtime, asker):
    assert_alike(asker, other_requests, (FOREIGN, NOBODYS, FREE))
    entry = runtime.directory.task(FOREIGN)
    assert (list(entry.versions), {name: at.version for name, at in entry.aliases.items()}) == ([1], {"live": 1})
    assert ask(asker, "key-of-blue", "POST", f"/v1/tasks/{FOREIGN}/classify", json={"inputs": TEXT}).status_code == 200


async def test_an_upload_that_is_refused_takes_nobodys_place(runtime, asker, monkeypatch):
    monkeypatch.setattr(receiving, "MAX_UPLOADS", 1)
    monkeypatch.setattr(receiving, "SLOW_SECONDS", 0.0)

    async def nothing():
        for part in ():
            yield part

    with runtime.receiving.admitted("key:acme") as incoming:
        path = "/v1/tasks/acme-none/versions"
        status_codes = [
            (await asker.ask(key, "PUT", path, **FILE)).status_code for key in ("key-to-classify", "key-of-blue")
        ]
        # Raises where the upload had to make room.
        async for _ in incoming.parts(nothing()):
            pass
    assert status_codes == [403, 404]


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("key-of-acme", ["acme-tone", "acme-two1"]),
        ("key-of-blue", ["blue-tone"]),
        ("key-of-nobody", []),
        ("key-of-all", ["acme-tone", "acme-two1", "blue-tone"]),
        (ROOT_KEY, ["acme-tone", "acme-two1", "blue-tone"]),
    ],
)
def test_lists_and_fan_outs_hold_a_tenants_own_alone(asker, key, names):
    listed = ask(asker, key, "GET", "/v1/tasks").json()
    assert ([task["name"] for task in listed["tasks"]], listed["next"]) == (names, None)
    results = ask(asker, key, "POST", "/v1/fanout", json={"tasks": ["*"], "text": TEXT}).json()["results"]
    assert [result["task"] for result in results] == names


@pytest.mark.slow
async def test_a_front_end_holds_tenants_apart_alike(runtime, asker, tmp_path, monkeypatch):
    """What the engine's process told a front end for one tenant is of no use to another."""
    # Which vLLM's answers say.
    monkeypatch.setattr(vllm, "time", lambda: 1.0)
    path = str(tmp_path / "engine")

    async with remote_engine(runtime.admission, runtime.keys, path) as (gateway, counts, *_):
        answerer = Answerer(runtime.admission.splitters, gateway, runtime.workers)
        app = web.web_app(
            Edge(answerer, counts),
            [answering()],
            keys=ApiKeys(runtime.keys),
            settings=runtime.settings,
            form_of=form_of,
        )
        front = Asker(runtime, app)
        for key in ("key-of-blue", "key-of-acme", "key-to-upload", ROOT_KEY):
            for name in ("acme-tone", FOREIGN, NOBODYS):
                # What is shown and not answered is forwarded, here to nobody.
                asked = [case for case in facade_requests(name) if case[0] == "POST"]
                for case in (*classify_requests(name), *asked):
                    expected = await asker.ask(key, *case[:2], **case[2])
                    assert seen(await front.ask(key, *case[:2], **case[2]), name) == seen(expected, name)
            everything = "POST", "/v1/fanout"
            body = {"tasks": ["*"], "text": TEXT}
            answers = [await case.ask(key, *everything, json=body) for case in (asker, front)]
            assert seen(answers[0], "*") == seen(answers[1], "*")


# Route -> the scopes of which one is enough, and how the route is asked; a route that changes something is asked about
# what is not there, since what matters is whether it was refused for its scope.
CLASSIFY, WRITE, ANY = {"classify", "admin"}, {"upload", "admin"}, set(Scope)
PROMOTE, READ = {"promote", "admin"}, {"upload", "promote", "admin"}
BODY = {"json": {"inputs": TEXT}}
ROUTES = {
    "POST /v1/tasks/{task}/classify": (CLASSIFY, BODY),
    "POST /v1/classify": (CLASSIFY, {"json": {"items": [{"task": "acme-tone", "text": TEXT}]}}),
    "POST /v1/fanout": (CLASSIFY, {"json": {"tasks": ["*"], "text": TEXT}}),
    "PUT /v1/tasks/{task}/versions": (WRITE, FILE | {"content": b"no delta"}),
    "GET /v1/tasks": (ANY, {}),
    "GET /v1/tasks/{task}": (ANY, {}),
    "GET /v1/status": (ANY, {}),
    "GET /v1/tasks/{task}/status": (ANY, {}),
    "GET /v1/tasks/{task}/watch": (ANY, {}),
    "DELETE /v1/tasks/{task}": ({"admin"}, {"task": FREE}),
    "GET /v1/tasks/{task}/versions/{version}": (ANY, {}),
    "GET /v1/tasks/{task}/versions/{version}/delta": (READ, {}),
    "DELETE /v1/tasks/{task}/versions/{version}": ({"admin"}, {"version": 7}),
    "GET /v1/tasks/{task}/aliases/{alias}": (ANY, {}),
    "GET /v1/tasks/{task}/aliases/{alias}/shadows": (ANY, {}),
    "GET /v1/tasks/{task}/aliases/{alias}/verdicts": (ANY, {}),
    "PUT /v1/tasks/{task}/aliases/{alias}": (PROMOTE, {"json": {"version": 7}, "headers": AT}),
    "DELETE /v1/tasks/{task}/aliases/{alias}": (PROMOTE, {"alias": "next", "headers": AT}),
    "GET /v1/tasks/{task}/gate": (PROMOTE, {}),
    "PUT /v1/tasks/{task}/gate": (PROMOTE, {"task": FREE, "json": {"rules": RULES}}),
    "DELETE /v1/tasks/{task}/gate": (PROMOTE, {}),
    "GET /v1/tasks/{task}/samples": ({"admin"}, {}),
    "PUT /v1/tasks/{task}/samples": ({"admin"}, {"json": {"share": 1.0}}),
    "DELETE /v1/tasks/{task}/samples": ({"admin"}, {}),
    "DELETE /v1/tasks/{task}/samples/{id:path}": ({"admin"}, {}),
    "GET /v1/tasks/{task}/sample-rows": ({"review", "admin"}, {}),
    "GET /v1/tasks/{task}/feedback": ({"review", "admin"}, {}),
    "GET /v1/tasks/{task}/review": ({"review", "admin"}, {}),
    "POST /v1/feedback": ({"feedback", "review", "admin"}, {"json": {"data": [{"id": "none/0", "label": "label 0"}]}}),
    "POST /v1/tasks/{task}/examples": (WRITE, {"json": EXAMPLES}),
    "GET /v1/base": (ANY, {}),
    "GET /v1/whoami": (ANY, {}),
}
# Paths of façades, without a task in front of them: what is asked there, by whoever may classify.
QUESTIONS = questions(TEXT)
# Answered whatever becomes of what is in them; and one that has a version in its path.
BUNDLE, CALL = QUESTIONS.pop("/v1/bundle"), QUESTIONS.pop("/mcp")
OF_VERSION = QUESTIONS.pop("/v2/models/{model}/versions/{version}/infer")
# What another façade is asked at the path of one above.
SHARED = {"/classify": {"input": TEXT}}
# What façades show of a task to whoever sees it.
CARDS = ("/v1/models", "/v1/models/{model}", "/v2/models/{model}", "/v2/models/{model}/ready")
LISTINGS = ("/info", "/health", "/health/live", *CARDS)
VERSIONS = ("/v2/models/{model}/versions/{version}", "/v2/models/{model}/versions/{version}/ready")
ROUTES = {
    f"POST {part}": (CLASSIFY, {"json": body, "headers": {HEADER: "acme-tone"}})
    for path, body in (QUESTIONS | {"/v1/bundle": BUNDLE, "/mcp": CALL}).items()
    for part in paths_of(path)
} | ROUTES
ROUTES |= {f"GET /t/{{task}}{path}": (ANY, {}) for path in ("", "/", *LISTINGS)}
ROUTES |= {"GET /info": (ANY, {"headers": {HEADER: "acme-tone"}})}
ROUTES |= {f"GET {path}": (ANY, {}) for path in CARDS}
# A base may have an owner in its name.
ROUTES |= {
    f"GET {path}": (ANY, {}) for part in (*VERSIONS, "/v1/models/{owner}/{model}", "/v2") for path in paths_of(part)
}
ROUTES |= {f"GET /t/{{task}}/v2/health/{part}": (ANY, {}) for part in ("live", "ready")}
ROUTES |= {
    f"POST {path}": (
        CLASSIFY,
        {"json": OF_VERSION, "model": "acme-tone", "task": "acme-tone@1"},
    )
    for path in paths_of("/v2/models/{model}/versions/{version}/infer")
}
# Those about the whole server, for keys of all tasks alone.
OF_THE_SERVER = {
    "GET /metrics": (ANY, {}),
    "GET /t/{task}/metrics": (ANY, {}),
    "GET /v1/keys": ({"admin"}, {}),
    "POST /v1/keys": ({"admin"}, {"json": {"name": "No name", "scopes": ["upload"], "tasks": ["ci-*"]}}),
    "DELETE /v1/keys/{key}": ({"admin"}, {"key": "0" * 12}),
    "GET /v1/audit": ({"admin"}, {}),
}


def filled(route, arguments):
    given = {"task": "acme-tone", "model": "acme-tone", "owner": "acme", "version": 1, "alias": "live", "key": None}
    arguments = dict(arguments)
    given |= {name: arguments.pop(name) for name in given.keys() & arguments}
    method, _, path = route.partition(" ")
    return (method, path.replace("{id:path}", "an-id/0").format(**given)), arguments


def test_every_route_is_in_the_tables(runtime):
    app = create_app(runtime).control
    routes = {f"{method} {route.path}" for route in app.routes for method in route.methods - {"HEAD"}}
    known = ROUTES.keys() | OF_THE_SERVER.keys()
    assert known <= routes
    # Of the page's files only those are open that there are.
    assert all(route.removeprefix("GET ") in OPEN_PATHS for route in routes - known - {"GET /page/{path:path}"})


@pytest.mark.parametrize("key", [*TENANTS, ROOT_KEY])
def test_everybody_is_told_who_it_is(runtime, asker, key):
    told = ask(asker, key, "GET", "/v1/whoami").json()
    who = TENANTS.get(key) or runtime.keys.find(hashlib.sha256(key.encode()).digest())
    assert told == {
        "principal": who.name,
        "scopes": sorted(who.scopes),
        "tasks": list(who.tasks),
        "default_task": who.default_task,
    }
    assert key not in str(told)


@pytest.mark.parametrize("key", [*TENANTS, ROOT_KEY, "no-such-key-0000"])
@pytest.mark.parametrize("route", ROUTES | OF_THE_SERVER)
def test_every_route_asks_for_its_scope(asker, route, key):
    scopes, arguments = (ROUTES | OF_THE_SERVER)[route]
    where, arguments = filled(route, arguments)
    answer = ask(asker, key, *where, **arguments)
    if key == "no-such-key-0000":
        assert answer.status_code == 401
        return
    who = TENANTS.get(key)
    in_scope = who is None or not scopes.isdisjoint(who.scopes)
    of_all = who is None or "*" in who.tasks
    allowed = in_scope and (of_all or route not in OF_THE_SERVER)
    assert (answer.status_code == 403) == (not allowed), answer.text
    assert answer.status_code < 500
    if not allowed and form_of(where[1]) is None:
        assert answer.json()["code"] == "forbidden"
