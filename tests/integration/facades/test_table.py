"""Every way to ask about texts is asked for the same, and compared with the native route: answers, refusals, counts."""

import asyncio
import json
import re
import threading
from contextlib import suppress
from typing import Any, get_args

import httpx
import msgspec
import pytest
from msgspec.structs import fields

from onebert_server.facades.table import facades
from onebert_server.http.problems import Fault
from onebert_server.http.routes import classify
from runtimes import client, opened, upload
from sentences import saved_by_sentence_transformers
from servers import LAYOUTS, Server, Task, wait_until
from ways import FACADES, MCP, OWN, VECTORS, WAYS

KEY = "key-of-the-table"
BASE = "My_Base-v2.0-" + "x" * 83
LABELS, HARMS = ["fine", "risky"], ["hate", "spam", "violence/graphic", "harmless"]
TEXT = "please help my order is late"
LONG = " ".join(f"{TEXT} {number}" for number in range(12))
# As long as a name may be, with all that it may hold.
LONGEST = "a.b-c_0." + "z" * 55
DISTINCT = [f"{TEXT} {number}" for number in range(130)]
RULES = ("head", "ends", "abstain")
ALL = WAYS | VECTORS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A base that makes vectors, with a name that the Hub allows and a task's name may not have."""
    folder = tmp_path_factory.mktemp("bases") / BASE
    saved_by_sentence_transformers(folder, "bert", "mean", normalize=True)
    return folder


def deciding(folder, labels=LABELS, seed=2, decision=None, **manifest):
    """A task that says which of its labels are positive."""
    decision = {"positives": ["risky"]} | (decision or {})
    return Task(labels=labels, seed=seed, folder=folder, format=2, decision=decision, **manifest)


def named(seed, folder):
    """Entities."""
    return Task(labels=["O", "B-PER", "I-PER"], seed=seed, folder=folder, task_type="token", pooling="none")


@pytest.fixture(scope="module")
def tasks(folder):
    """Name -> task, or its versions."""
    harms = {"positives": HARMS[:3], "thresholds": {"hate": 0.45, "spam": 0.55, "violence/graphic": 1.0}}
    return {
        **{rule: deciding(folder, decision={} if rule == "head" else {"cut": rule}) for rule in RULES},
        LONGEST: deciding(folder, seed=3),
        "unsure": deciding(folder, decision={"abstain": {"below": 1.0}}),
        "harms": deciding(folder, HARMS, decision=harms, task_type="multi_label"),
        "amount": Task(labels=["amount"], task_type="regression", seed=3, folder=folder),
        "names": named(4, folder),
        "spans": Task(labels=["start", "end"], seed=5, folder=folder, task_type="span", pooling="none"),
        "split": [deciding(folder, seed=seed) for seed in (6, 7)],
    }


class Place:
    """A server with the tasks, a client of it with its key, and the lines of its access log."""

    def __init__(self, server, http, tasks, folder):
        self.server, self.http, self.tasks, self.folder, self.lines = server, http, tasks, folder, []
        threading.Thread(target=self._read, daemon=True).start()
        for name, versions in tasks.items():
            for task in versions if isinstance(versions, list) else [versions]:
                self.push(name, task)

    def _read(self):
        for line in self.server.process.stdout:
            self.lines.append(line)

    def push(self, name, task):
        headers = {"Content-Type": "application/octet-stream"}
        self.http.put(f"/v1/tasks/{name}/versions", content=task.file, headers=headers).raise_for_status()

    def move(self, name, body, tag=1):
        path, condition = f"/v1/tasks/{name}/aliases/live", {"If-Match": f'"{tag}"'}
        self.http.put(path, json=body, headers=condition).raise_for_status()

    def post(self, way, ref, texts, body=None, **headers):
        body = way.body(texts, ref) | (way.every if body is None else body)
        return self.http.post(way.url(ref), json=body, headers={"X-Request-Id": "given", **way.headers, **headers})

    def core(self, ref, texts, as_input=lambda text: text, headers=None, **options):
        """What the native route answers, in requests as large as it takes."""
        results = []
        for start in range(0, len(texts), 64):
            body = {"inputs": [*map(as_input, texts[start : start + 64])]} | options
            answer = self.http.post(f"/v1/tasks/{ref}/classify", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            results += answer.json()["results"]
        return results

    def line_of(self, answer):
        """What the access log says of an answer."""
        id = answer.headers["x-request-id"]
        field = f'"id":"{id}"'
        wait_until(lambda: any(field in line.replace(" ", "") for line in list(self.lines)))
        [line] = [json.loads(line) for line in list(self.lines) if field in line.replace(" ", "")]
        return line

    def metric(self, name, **labels):
        total = 0.0
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(name) and all(f'{label}="{value}"' in line for label, value in labels.items()):
                total += float(line.rpartition(" ")[2])
        return total


@pytest.fixture(scope="module", params=LAYOUTS["argvalues"], ids=LAYOUTS["ids"])
def place(request, tmp_path_factory, folder, tasks):
    settings = {"base": folder, "api_keys": KEY, "access_log": "json", "front_ends": request.param}
    headers = {"Authorization": f"Bearer {KEY}"}
    with (
        Server(tmp_path_factory.mktemp("table"), **settings) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=180) as http,
    ):
        yield Place(server, http, tasks, folder)
    assert "Traceback" not in server.log.read_text()


each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
CLASSIFIERS = {name: way for name, way in WAYS.items() if "single_label" in way.takes}
# A reason for a block and a chat's detections have no places.
PLACELESS = {"LiteLLM", "FMS's chat"}
TAGGERS = {name: way for name, way in FACADES.items() if "token" in way.takes and name not in PLACELESS}
each_classifier = pytest.mark.parametrize("way", CLASSIFIERS.values(), ids=CLASSIFIERS)
each = pytest.mark.parametrize("way", ALL.values(), ids=ALL)


def template(way):
    """The path as the tables of routes have it."""
    return way.path if way in OWN.values() else way.template


def question_of(way):
    """The façade and the question of a way; None of the server's own."""
    for facade in facades():
        for question in facade.questions:
            if question.path == template(way) and question.claims(way.body([TEXT], "head")):
                return facade, question
    return None


def test_every_route_that_is_asked_about_texts_is_in_the_table():
    asked = [template(way) for way in ALL.values()]
    assert {*asked} == {question.path for facade in facades() for question in facade.questions} | {
        route.path for route in classify.ROUTES
    }
    assert sum(len(facade.questions) for facade in facades()) == len(FACADES | VECTORS)


def texts_for(way, texts):
    return texts[: way.most]


def assert_says(way, answer, results, labels=LABELS, positives=("risky",)):
    assert answer.status_code == 200, answer.text
    shown = way.scores(answer.json(), labels)
    picked = {
        "all": lambda result: result["scores"],
        "best": lambda result: {result["label"]: result["score"]},
        "positive": lambda result: {name: result["scores"][name] for name in positives},
    }
    expected = [picked[way.shows](result) for result in results]
    if way is WAYS["LiteLLM"]:
        # Reasons for a block: without texts, rounded, and the best of them alone.
        told = {(label, float(f"{score:.2f}")) for each in expected for label, score in each.items()}
        pairs = {pair for each in shown for pair in each.items()}
        assert pairs <= told
        assert len(pairs) >= min(len(told), 32)
        return
    assert len(shown) == len(expected)
    for pairs, scores in zip(shown, expected, strict=True):
        assert pairs == pytest.approx(scores, abs=1e-6)


def assert_refused(way, answer, status=range(400, 500)):
    """In the form of the way's client."""
    document = answer.json()
    if way is WAYS["MCP"] and answer.status_code == 200:
        assert "error" in document or document["result"]["isError"], document
        return
    if way is WAYS["router's bundle"] and answer.status_code == 200:
        assert {result["status"] in status for result in document["results"]} == {True}
        return
    assert answer.status_code in status, answer.text
    facade = question_of(way)
    form = facade and facade[0].form(Fault(422, "a-code", "Title", "a detail", [], "an-id"))[1]
    names = {"type", "title", "status", "detail", "code", "instance"}
    assert document.keys() == form.keys() if form else names <= document.keys(), document


def marks(answer):
    return [int(answer.headers.get(f"onebert-{name}", 0)) for name in ("truncated", "abstained")]


@each_way
@pytest.mark.parametrize("task", ["head", "harms", "amount", "names", "spans"])
def test_a_task_of_each_type_is_answered_as_by_the_core_or_refused(place, way, task):
    manifest = place.tasks[task].manifest
    kind, texts = manifest.get("task_type", "single_label"), texts_for(way, DISTINCT[:3])
    answer = place.post(way, task, texts, None if kind in way.takes else {})
    if kind not in way.takes:
        assert_refused(way, answer)
    elif kind in ("token", "span"):
        assert answer.status_code == 200, answer.text
    else:
        results = place.core(task, texts, way.as_input)
        assert_says(way, answer, results, manifest["labels"], manifest.get("decision", {}).get("positives", ()))


@each_classifier
@pytest.mark.parametrize("rule", RULES)
def test_the_file_decides_what_is_read_of_a_text_that_is_cut(place, way, rule):
    """Those whose clients expect it read the end of a text in windows, if the file does not say what it cuts."""
    texts = texts_for(way, [LONG, TEXT, LONG])
    windows = {"window": {"overlap": 12}} if way.whole and rule == "head" else {}
    # The first text of a pair is in each window, and the router wants probabilities that sum to one.
    if rule == "head" and way in (WAYS["FMS's generation"], WAYS["router over HTTP"]):
        assert_refused(way, place.post(way, rule, texts))
        return
    results = place.core(rule, texts, way.as_input, **windows)
    answer = place.post(way, rule, texts)
    assert_says(way, answer, results)
    cut = 0 if windows else sum(text == LONG for text in texts)
    assert [result["truncated"] for result in results].count(True) == cut
    if way not in OWN.values():
        assert marks(answer) == [cut, cut if rule == "abstain" else 0]


def places_in(value):
    """Where the entities of an answer are, whatever its form."""
    if isinstance(value, str):
        # Such as in a tensor.
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        for first, last in (("start", "end"), ("start_position", "end_position")):
            if {first, last} <= value.keys():
                yield value[first], value[last]
        value = [*value.values()]
    for inner in value if isinstance(value, list) else ():
        yield from places_in(inner)


@pytest.mark.parametrize("name", TAGGERS)
@pytest.mark.parametrize("text", [TEXT, LONG], ids=["whole", "cut"])
def test_entities_are_where_the_core_finds_them_also_in_a_text_that_is_cut(place, name, text):
    way = TAGGERS[name]
    [result] = place.core("names", [text], **({"window": {"overlap": 12}} if way.whole else {}))
    answer = place.post(way, "names", [text])
    assert {*places_in(answer.json())} == {*places_in(result["entities"])}
    cut = int(text == LONG and not way.whole)
    assert (marks(answer), result.get("truncated", False)) == ([cut, 0], bool(cut))


@each_classifier
def test_an_answer_that_abstains_says_so(place, way):
    texts = texts_for(way, DISTINCT[:2])
    results = place.core("unsure", texts, way.as_input)
    assert [result["abstained"] for result in results] == [True] * len(texts)
    answer = place.post(way, "unsure", texts)
    assert_says(way, answer, results)
    if way not in OWN.values():
        assert marks(answer) == [0, len(texts)]


FOUND = {
    "native": lambda reply: [result["labels"] for result in reply["results"]],
    "native items": lambda reply: [result["labels"] for result in reply["results"]],
    "native fan-out": lambda reply: [result["labels"] for result in reply["results"]],
    "FMS": lambda reply: [[label["detection_type"] for label in each] for each in reply],
    "FMS's generation": lambda reply: [[label["detection_type"] for label in reply]],
    "FMS's chat": lambda reply: [[label["detection_type"] for label in reply]],
    "OpenAI": lambda reply: [
        [name for name, is_over in result["categories"].items() if is_over] for result in reply["results"]
    ],
    "router": lambda reply: [result["selected"] for result in reply["results"]],
    "router's bundle": lambda reply: [each["classify"]["results"][0]["selected"] for each in reply["results"]],
    "MCP": lambda reply: [result["labels"] for result in reply["result"]["structuredContent"]["results"]],
    "LiteLLM": lambda reply: [re.findall(r"@1: (\S+) ", reply.get("blocked_reason", ""))],
}


@pytest.mark.parametrize("name", FOUND)
def test_the_thresholds_of_the_file_decide(place, name):
    way = WAYS[name]
    for text in DISTINCT[:8]:
        [result] = place.core("harms", [text], way.as_input)
        [labels] = FOUND[name](place.post(way, "harms", [text], {}).json())
        over = {label for label in result["labels"] if way.shows != "positive" or label != "harmless"}
        assert {*labels} == over


@each_classifier
def test_one_version_of_a_split_answers_all_texts_of_a_request(place, way):
    if way is WAYS["Open Inference of a version"]:
        return
    if place.http.get("/v1/tasks/split/aliases/live").headers["etag"] == '"1"':
        place.move("split", {"split": {"1": 50, "2": 50}, "sticky": "header:X-User"})
    texts, chosen = texts_for(way, DISTINCT), set()
    versions = {number: place.core(f"split@{number}", texts, way.as_input) for number in (1, 2)}
    for user in range(8):
        headers = {"X-User": f"user {user}"}
        number = place.http.post("/v1/tasks/split/classify", json={"inputs": TEXT}, headers=headers).json()["version"]
        assert_says(way, place.post(way, "split", texts, **headers), versions[number])
        chosen.add(number)
    assert chosen == {1, 2}


@each
@pytest.mark.parametrize("texts", [["\u200b"], [TEXT, " ", TEXT]], ids=["alone", "among others"])
def test_a_blank_text_is_refused_or_finds_nothing(place, way, texts):
    if len(texts) > way.most:
        return
    ref = BASE if way in VECTORS.values() else "names" if "single_label" not in way.takes else "head"
    answer = place.post(way, ref, texts)
    if way is WAYS["router's bundle"]:
        results = answer.json()["results"]
        assert [result["status"] for result in results] == [200 if text == TEXT else 400 for text in texts]
    elif not way.blanks:
        assert_refused(way, answer)
        assert "blank" in answer.text or way is WAYS["FMS's chat"]
    elif ref == "head":
        rows = [row for row in way.scores(answer.json(), LABELS) if row]
        assert len(rows) == (texts.count(TEXT) if way is WAYS["FMS"] else TEXT in texts)
    else:
        assert answer.json()["entities"] == []


@each
def test_a_task_may_have_any_name_that_there_may_be(place, way):
    if way in VECTORS.values():
        for name in (BASE, BASE.lower()):
            answer = place.post(way, name, [TEXT])
            assert answer.status_code == (200 if name == BASE else 404), answer.text
        assert_refused(way, answer)
        return
    ref, texts = "names" if "single_label" not in way.takes else LONGEST, texts_for(way, DISTINCT[:2])
    versioned = way is WAYS["Open Inference of a version"]
    for name in (ref,) if versioned else (ref, f"{ref}@1", f"{ref}@live"):
        answer = place.post(way, name, texts)
        if ref == LONGEST:
            assert_says(way, answer, place.core(ref, texts, way.as_input))
        assert answer.status_code == 200, answer.text
    for name in ("Head", "no.such-task_1", "z" * 64, "z" * 200):
        assert_refused(way, place.post(way, name, texts))


def kinds_in(annotation):
    """The models of objects that a value may be."""
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return [annotation]
    return [kind for inner in get_args(annotation) for kind in kinds_in(inner)]


def optional_fields(kind, body):
    """Where a body of this kind may leave something out, as keys and places, and a wrong value; None if none is."""
    for field in fields(kind):
        name, inner = field.encode_name, kinds_in(field.type)
        if not field.required:
            yield (name,), None if field.type is Any else "odd" if inner else {"odd": [1]}
        value = body.get(name, {})
        if inner and isinstance(value, list):
            value, at = value[0], (name, 0)
        else:
            at = (name,)
        for each in inner if isinstance(value, dict) else ():
            required = {field.encode_name for field in fields(each) if field.required}
            if required <= value.keys():
                for path, wrong in optional_fields(each, value):
                    yield (*at, *path), wrong


def with_value(body, path, value):
    """A copy of a body with a value at a path; objects on the way that are not there are empty."""
    name, *rest = path
    if isinstance(body, list):
        return [with_value(body[0], rest, value), *body[1:]]
    return body | {name: with_value(body.get(name, {}), rest, value) if rest else value}


def without(body, path):
    copy = with_value(body, path, None)
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return copy


# An id that is null is no request, by the rules of JSON-RPC.
NOT_OPTIONAL = {("MCP", ("id",))}


@pytest.mark.parametrize("name", ALL)
def test_null_is_as_if_it_were_left_out(place, name, subtests):
    way = ALL[name]
    ref = BASE if way in VECTORS.values() else "names" if "single_label" not in way.takes else "head"
    facade = question_of(way)
    kind = facade[1].body if facade else next(r.bodies[0] for r in classify.ROUTES if r.path == way.path)
    body = way.body([TEXT], ref)

    def ask(body):
        answer = place.http.post(way.url(ref), json=body, headers={"X-Request-Id": "given"} | way.headers)
        document = answer.json()
        if isinstance(document, dict):
            document.pop("created", None)
        return answer, document

    for path, wrong in optional_fields(kind, body):
        if (name, path) in NOT_OPTIONAL:
            continue
        with subtests.test(".".join(map(str, path))):
            left_out, expected = ask(without(body, path))
            answer, document = ask(with_value(body, path, None))
            assert (answer.status_code, document) == (left_out.status_code, expected)
            if wrong is not None:
                assert_refused(way, ask(with_value(body, path, wrong))[0])


@each
def test_many_texts_are_one_request_wherever_one_counts(place, way, request):
    """Watching, shadows, metrics, log and quotas count each answer once, and nothing of a request that is too large."""
    name = re.sub("[^a-z0-9]", "-", f"counted-{request.node.callspec.id}".lower())
    vectors, words = way in VECTORS.values(), way is WAYS["GLiNER"]
    texts, ref = texts_for(way, DISTINCT), BASE if vectors else name
    route = way.path if way in OWN.values() or way.path.startswith("/t/") else template(way)

    def shadowed():
        [counts] = place.http.get(f"/v1/tasks/{name}/aliases/live/shadows").json()["shadows"]
        return counts["answers"] + counts["left_out"]

    def watched():
        return place.http.get(f"/v1/tasks/{name}/watch").json()["versions"][0]["answers"]

    def asked():
        return place.metric("onebert_http_requests_total", status="200", route=route)

    if not vectors:
        for seed in (2, 8):
            place.push(name, named(seed, place.folder) if words else deciding(place.folder, seed=seed))
        place.move(name, {"version": 1, "shadow": [{"version": 2}]})
        # Answers are watched once the manifest has been read.
        wait_until(lambda: place.core(f"{name}@1", [TEXT]) and (words or watched()))
    quotas = {"requests": 1e-6, "tokens": 1e-6}
    body = {"name": name, "scopes": ["classify"], "tasks": ["*"], "quotas": quotas}
    key = place.http.post("/v1/keys", json=body).raise_for_status().json()["key"]
    headers = {"Authorization": f"Bearer {key}"}
    if 1 < way.most < len(DISTINCT):
        assert_refused(way, place.post(way, ref, DISTINCT, **headers))
    before = asked()
    answer = place.post(way, ref, texts, **headers | {"X-Request-Id": name})
    assert answer.status_code == 200, answer.text
    line = place.line_of(answer)
    assert (line["status"], line["answers"], line["route"]) == (200, len(texts), route)
    assert line["tokens"] >= 8 * len(texts)
    assert line["task"] == (f"base:{BASE}" if vectors else name)
    wait_until(lambda: asked() == before + 1)
    assert_refused(way, place.post(way, ref, texts, **headers), (429, 503))
    if vectors:
        return
    # A version that is named has no shadows.
    wait_until(lambda: shadowed() == (0 if "versions/1" in way.path else len(texts)))
    if not words:
        wait_until(lambda: watched() == 1 + len(texts))
        assert_says(way, answer, place.core(f"{ref}@1", texts, way.as_input))


def test_listings_know_each_task_and_base_by_its_name(place):
    """A client asks first how much one request takes, in which a base stands where a task does."""
    for ref, way, most in (("head", WAYS["TEI"], 64), (LONGEST, WAYS["TEI"], 64), (BASE, VECTORS["TEI's embed"], 1024)):
        info = place.http.get(f"/t/{ref}/info").json()
        assert (info["served_model_name"], info["max_client_batch_size"], way.most) == (
            ref if ref == BASE else f"{ref}@1", most, most
        )  # fmt: skip
        assert place.http.get("/info", headers={"detector-id": ref}).json() == info
        assert [card["id"] for card in place.http.get(f"/t/{ref}/v1/models").json()["data"]] == [ref]
        card = place.http.get(f"/v1/models/{ref}").json()
        assert (card["id"], card["ready"]) == (ref, True)
        assert place.http.get(f"/t/{ref}/health").json()["model"] == ref
        assert place.http.get(f"/t/{ref}/health/live").status_code == 200
    # Nothing names a task, and there is one base.
    assert place.http.get("/info").json()["served_model_name"] == BASE
    assert place.http.get("/info", headers={"detector-id": "there-is-none"}).status_code == 404
    listed = {card["id"] for card in place.http.get("/v1/models").json()["data"]}
    assert {*place.tasks, BASE} <= listed
    for path in ("/info", "/v1/models", "/health", "/health/live"):
        for name in ("There-is-none", "there-is-none", BASE.lower()):
            assert 400 <= place.http.get(f"/t/{name}{path}").status_code < 500
    assert 400 <= place.http.get("/v1/models/owner/There-is-none").status_code < 500


def test_the_list_of_an_agent_counts_as_a_request(place):
    def called(key):
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "status", "arguments": {}}}
        return place.http.post("/mcp", json=body, headers=MCP | {"Authorization": f"Bearer {key}"})

    body = {"name": "lists", "scopes": ["classify"], "tasks": ["*"], "quotas": {"requests": 1e-6}}
    key = place.http.post("/v1/keys", json=body).raise_for_status().json()["key"]
    # Something is left after the first one: what has come since.
    first, _, third = called(key), called(key), called(key)
    tasks = {task["task"]: task for task in first.json()["result"]["structuredContent"]["tasks"]}
    assert place.tasks.keys() - {"spans"} <= tasks.keys()
    assert tasks["head"] == {"task": "head", "task_type": "single_label", "version": "head@1", "labels": LABELS}
    assert third.status_code == 429
    assert "requests a second" in third.json()["error"]["message"]


# What gives less time than its request has, beside the header that all take.
SOON = {
    "native": {"timeout_ms": 50},
    "native items": {"timeout_ms": 50},
    "native fan-out": {"timeout_ms": 50},
    "Open Inference": {"parameters": {"timeout": 50_000}},
    "Open Inference of a version": {"parameters": {"timeout": 50_000}},
    "router": {"options": {"deadline_ms": 50}},
    "router's bundle": {"options": {"deadline_ms": 50}},
}


def test_a_deadline_comes_in_time_while_another_batch_runs(tmp_path, folder, tasks, monkeypatch, subtests):
    begun, goes_on = threading.Event(), threading.Event()

    async def ask_all(runtime):
        async with client(runtime) as web:

            async def ask(way, ref, body, **headers):
                body = way.body([TEXT], ref) | body
                return await web.post(way.url(ref), json=body, headers=way.headers | headers)

            holding = asyncio.create_task(ask(WAYS["native"], "head", {}))
            await asyncio.to_thread(begun.wait, 180)
            refs = [(name, BASE) for name in VECTORS]
            refs += [(name, "head") for name, way in WAYS.items() if "single_label" in way.takes]
            refs += [(name, "names") for name, way in WAYS.items() if "token" in way.takes]
            for name, ref in refs:
                way = ALL[name]
                with subtests.test(f"{name}, {ref}"):
                    assert_late(way, await ask(way, ref, {}, **{"X-Request-Timeout": "0.05"}))
                    if name in SOON:
                        assert_late(way, await ask(way, ref, SOON[name]))
            goes_on.set()
            assert (await holding).status_code == 200

    def assert_late(way, answer):
        if way is WAYS["MCP"]:
            assert answer.status_code == 504 or "time was over" in answer.json()["result"]["content"][0]["text"]
        elif way is WAYS["router's bundle"] and answer.status_code == 200:
            assert [result["status"] for result in answer.json()["results"]] == [504]
        else:
            assert_refused(way, answer, (504,))

    with opened(tmp_path, base=str(folder)) as runtime:
        for name in ("head", "names"):
            upload(runtime, name, tasks[name])
        observe = runtime.metrics.observe_batch

        def held(*batch):
            observe(*batch)
            begun.set()
            goes_on.wait(180)

        monkeypatch.setattr(runtime.metrics, "observe_batch", held)
        asyncio.run(ask_all(runtime))
