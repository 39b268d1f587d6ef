"""Whatever JSON comes to a façade: no failure of the server, and no error that repeats a text of the request."""

import asyncio
import json
from functools import cache

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onebert_server.app import create_app
from onebert_server.facades.table import FACADES
from tenants import ROOT_KEY, tenants_runtime

# No word of any error, and nothing that a name of a field or a task could be.
SECRET = "Quetzalcoatlus 0451"
TASK = "acme-tone"
QUESTIONS = sorted({question.path for facade in FACADES for question in facade.questions})


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with tenants_runtime(tmp_path_factory.mktemp("odd")) as runtime:
        yield create_app(runtime)


@cache
def names():
    """The fields of every façade's body, with those of what lies inside of it."""
    found = set()

    def walk(schema):
        if isinstance(schema, dict):
            found.update(schema.get("properties", ()))
            for one in schema.values():
                walk(one)
        elif isinstance(schema, list):
            for one in schema:
                walk(one)

    for facade in FACADES:
        for question in facade.questions:
            walk(question.body.model_json_schema())
    return sorted(found)


texts = st.sampled_from([SECRET, f"{SECRET} {SECRET}", SECRET + "\x00", SECRET + "\u202e", "{" + SECRET + "}", ""])
scalars = st.one_of(
    texts,
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([TASK, "classify", "none", "softmax", "{}", "request", "BYTES"]),
)


def values():
    return st.recursive(
        scalars,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(names()), inner, max_size=4)
        ),
        max_leaves=12,
    )


def bodies():
    """Any JSON, and objects of the fields that façades have, with values that they may not take."""
    return st.one_of(values(), st.dictionaries(st.sampled_from(names()), values(), min_size=1, max_size=6))


async def post(app, path, body):
    headers = {"Authorization": f"Bearer {ROOT_KEY}", "Content-Type": "application/json"}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
        return await web.post(path, content=json.dumps(body), headers=headers)


@pytest.mark.parametrize("path", QUESTIONS)
def test_odd_bodies_are_answered_or_refused_without_a_word_of_their_own(app, path):
    @settings(
        max_examples=150,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(bodies())
    def ask(body):
        answer = asyncio.run(post(app, f"/t/{TASK}{path}".format(model=TASK, version=1).removesuffix("/"), body))
        assert answer.status_code < 500, (body, answer.text)
        if answer.status_code >= 400:
            assert SECRET not in answer.text, body
            assert isinstance(answer.json(), dict | list)

    ask()
