"""Façades beside each other: a path that several share answers each body's own."""

import asyncio

import pytest

from onebert_server.facades.routes import facade_paths
from onebert_server.facades.table import facades
from tenants import Asker, tenants_runtime

TASK = "acme-tone"
TEXT = "please help my order is late"


@pytest.fixture(scope="module")
def asker(tmp_path_factory):
    with tenants_runtime(tmp_path_factory.mktemp("collisions")) as opened:
        yield Asker(opened)


def ask(asker, path, method="POST", **arguments):
    return asyncio.run(asker.ask("key-of-acme", method, path, **arguments))


# Path, body -> what tells whose answer it is, and whose error.
SHARED = [
    ("/classify", {"input": TEXT}, lambda body: body["object"] == "list"),
    ("/classify", {"inputs": TEXT}, lambda body: body[0].keys() == {"label", "score"}),
    ("/v1/classify", {"input": TEXT}, lambda body: body["head"] == "classifier"),
    ("/v1/classify", {"items": [{"text": TEXT, "task": TASK}]}, lambda body: body["results"][0]["version"] == 1),
    ("/classify", {"input": 1}, lambda body: "type" in body["error"]),
    ("/classify", {"inputs": 1}, lambda body: body["error"]["code"] == "invalid_request"),
    ("/v1/classify", {"input": 1}, lambda body: body["error"]["code"] == "invalid_request"),
    ("/v1/classify", {"items": 1}, lambda body: body["code"] == "invalid-input"),
    ("/v1/classify", {}, lambda body: body["code"] == "invalid-input"),
]


@pytest.mark.parametrize(("path", "body", "is_own"), SHARED)
def test_a_shared_path_answers_and_refuses_as_the_bodys_own(asker, path, body, is_own):
    answer = ask(asker, path, json=body, headers={"detector-id": TASK})
    assert answer.status_code in (200, 400, 422)
    assert is_own(answer.json())


# The page is at the one; the other, asked by GET, is the name of a model.
ELSEWHERE = {"/", "/v1/models/{model}:predict"}


@pytest.mark.parametrize(
    "path", sorted({question.path for facade in facades() for question in facade.questions} - ELSEWHERE)
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_a_path_that_is_asked_by_post_says_so(asker, path, method):
    assert path in facade_paths()
    answer = ask(asker, path.format(model=TASK, version=1), method=method)
    assert answer.status_code == 405
    assert "POST" in answer.headers["allow"]
