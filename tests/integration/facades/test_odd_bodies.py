"""Whatever JSON comes to a façade: no failure of the server, and no error that repeats a text of the request."""

import asyncio
import json
import re
from functools import cache

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lengths import examples
from onebert_server.facades.table import facades
from onebert_server.http.decoding import BrokenRules, converted
from onebert_server.http.problems import fault_of
from onebert_server.http.schemas.questions import ClassifyItemsRequest, ClassifyRequest, FanoutRequest
from onebert_server.limits import MAX_TEXT
from onebert_server.run.app import create_app
from tenants import ROOT_KEY, tenants_runtime

# No word of any error, and nothing that a name of a field or a task could be.
SECRET = "Quetzalcoatlus 0451"
TASK = "acme-tone"
LONGEST = "a" * MAX_TEXT
QUESTIONS = sorted({question.path for facade in facades() for question in facade.questions})


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with tenants_runtime(tmp_path_factory.mktemp("odd")) as runtime:
        yield create_app(runtime)


BODIES = sorted({question.body for facade in facades() for question in facade.questions}, key=str)
BODIES += [ClassifyRequest, ClassifyItemsRequest, FanoutRequest]


@cache
def names(*kinds):
    """The fields of bodies, those of every façade's where none is given, with those of what lies inside of them."""
    fields = set()

    def walk(schema):
        if isinstance(schema, dict):
            fields.update(schema.get("properties", ()))
            for part in schema.values():
                walk(part)
        elif isinstance(schema, list):
            for part in schema:
                walk(part)

    for kind in kinds or BODIES:
        walk(msgspec.json.schema(kind))
    return sorted(fields)


texts = st.sampled_from([SECRET, f"{SECRET} {SECRET}", SECRET + "\x00", SECRET + "\u202e", "{" + SECRET + "}", ""])
scalars = st.one_of(
    texts,
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([TASK, "classify", "none", "softmax", "{}", "request", "BYTES"]),
)


def values(*kinds):
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(names(*kinds)), inner, max_size=4)
        ),
        max_leaves=12,
    )


def bodies(*kinds):
    """Any JSON, and objects of the fields that bodies have, with values that they may not take."""
    objects = st.dictionaries(st.sampled_from(names(*kinds)), values(*kinds), min_size=1, max_size=6)
    return st.one_of(values(*kinds), objects)


unhurried = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


async def post(app, path, body, **headers):
    headers |= {"Authorization": f"Bearer {ROOT_KEY}", "Content-Type": "application/json"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
        return await web.post(path, content=json.dumps(body), headers=headers)


@pytest.mark.parametrize(
    "path", [*(f"/t/{TASK}{path}" for path in QUESTIONS), "/v1/classify", "/v1/fanout", "/v1/tasks/{model}/classify"]
)
def test_errors_repeat_no_word_of_odd_bodies(app, path):
    @settings(unhurried, max_examples=examples(80))
    @given(bodies())
    def ask(body):
        answer = asyncio.run(post(app, path.format(model=TASK, version=1).removesuffix("/"), body))
        assert answer.status_code < 500, (body, answer.text)
        if answer.status_code >= 400:
            assert SECRET not in answer.text, body
            assert isinstance(answer.json(), dict | list)

    ask()


@pytest.mark.parametrize("path", QUESTIONS)
def test_a_name_of_a_task_in_any_letters_is_refused_like_any_other(app, path):
    name = "課題"
    for prefix, headers in ((f"/t/{name}", {}), ("", {"detector-id": name.encode()})):
        asked = prefix + path.format(model=TASK, version=1)
        answer = asyncio.run(post(app, asked, {"model": "x", "input": "a"}, **headers))
        assert 400 <= answer.status_code < 500, answer.text
        assert isinstance(answer.json(), dict | list)


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
def test_what_breaks_a_rule_is_named_as_the_client_wrote_it(kind):
    """By the names of fields and the places in lists alone, with a rule in words."""

    @settings(unhurried, max_examples=examples(100))
    @given(bodies(kind))
    def check(body):
        try:
            converted(kind, body)
        except BrokenRules as error:
            for reason in fault_of(error, "an-id").reasons:
                _, *path = reason["path"].split(".")
                assert all(part in names(kind) or part.isdigit() for part in path), reason
                assert "`" not in reason["reason"], reason

    check()


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/classify", {"input": 1}, "input: must be a text or a list"),
        ("/classify", {"input": "a", "mm_processor_kwargs": {}}, "mm_processor_kwargs: must be null"),
        ("/v1/moderations", {"input": ["a", 1]}, "input.1: must be a text or an object"),
        ("/v1/classify", {"input": "a", "options": {"deadline_ms": 0}}, "options.deadline_ms: must be more than 0.0"),
        (f"/models/{TASK}", {"inputs": [["a"]]}, "inputs.0: must be a text or an object"),
        ("/v1/bundle", {"tasks": [{"id": "a", "classify": 1}]}, "tasks.0.classify: must be an object"),
        ("/beta/litellm_basic_guardrail_api", {"texts": ["a", 1]}, "texts.1: must be a text"),
        *(
            ("/api/v1/text/chat", {"messages": [{"role": "user", "content": content}]}, f"messages.0{says}")
            for content, says in [
                (1, ".content: must be a text or a list"),
                (LONGEST + "a", f".content: must have at most {MAX_TEXT} characters"),
                (
                    [{"type": "text", "text": LONGEST}, {"type": "text", "text": ""}],
                    f": the texts of a message must have at most {MAX_TEXT} characters together",
                ),
            ]
        ),
        (
            "/classify",
            {"inputs": "a", "parameters": {"context": "a", "question": LONGEST}},
            f"parameters: question and context must have at most {MAX_TEXT} characters together",
        ),
    ],
)
def test_each_client_is_told_which_field_breaks_which_rule(app, path, body, says):
    answer = asyncio.run(post(app, f"/t/{TASK}{path}", body))
    assert answer.status_code in (400, 422)
    error = answer.json().get("error", answer.json())
    assert (error if isinstance(error, str) else error["message"]) == says


def tensor_of(text):
    return {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}]}


BLANK, HALF = "must not be blank", "must be Unicode, without half of a surrogate pair"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (f"/v1/tasks/{TASK}/classify", lambda text: {"inputs": text}, "body.inputs"),
        (f"/v1/tasks/{TASK}/classify", lambda text: {"inputs": ["late", text], "explain": True}, "body.inputs.1"),
        ("/v1/classify", lambda text: {"items": [{"task": TASK, "text": text}], "partial": True}, "body.items.0.text"),
        ("/v1/fanout", lambda text: {"tasks": [TASK], "text": text}, "body.text"),
        (f"/models/{TASK}", lambda text: {"inputs": text}, "inputs"),
        (f"/t/{TASK}/predict", lambda text: {"inputs": [["late"], [text]]}, "inputs.1.0"),
        (f"/t/{TASK}/classify", lambda text: {"input": text}, "input"),
        ("/embed", lambda text: {"inputs": ["late", text]}, "inputs.1"),
        ("/v1/embeddings", lambda text: {"input": text}, "input"),
        (f"/t/{TASK}/v1/moderations", lambda text: {"input": text}, "input"),
        (f"/t/{TASK}/v1/classify", lambda text: {"input": text}, "input"),
        ("/v1/bundle", lambda text: {"tasks": [{"id": "a", "classify": {"model": TASK, "input": text}}]}, "input"),
        (f"/v1/models/{TASK}:predict", lambda text: {"instances": [text]}, "instances.0"),
        (f"/v2/models/{TASK}/infer", tensor_of, "inputs.0.data.0"),
        (f"/t/{TASK}/api/v1/text/contents", lambda text: {"contents": [text]}, "contents.0"),
        (f"/t/{TASK}/api/v1/text/generation", lambda text: {"prompt": "a", "generated_text": text}, "generated_text"),
        (f"/t/{TASK}/beta/litellm_basic_guardrail_api", lambda text: {"texts": [text]}, "texts.0"),
    ],
)
@pytest.mark.parametrize(
    ("text", "rule"), [("\u00ad\u200d \u3000", BLANK), ("half \ud83d", HALF)], ids=["blank", "half"]
)
def test_a_bad_text_is_named_by_the_clients_field(app, path, body, field, text, rule):
    answer = asyncio.run(post(app, path, body(text)))
    if rule is BLANK and ("contents" in path or "litellm" in path):
        assert answer.json() in ([[]], {"action": "NONE"})
    elif path == "/v1/bundle":
        [result] = answer.json()["results"]
        assert (result["status"], result["error"]["message"]) == (400, f"{field}: {rule}")
    else:
        assert answer.status_code in (400, 422)
        assert re.search(rf'"{re.escape(field)}(?:: |","reason":"){rule}"', answer.text), answer.text
