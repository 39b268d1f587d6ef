"""The examples of the OpenAPI document: they fit its schemas, and its server answers those of requests."""

import asyncio
import json

import jsonschema
import pytest

from onebert_server.http.openapi import OWN
from servers import Task, store
from tenants import ROOT_KEY, Asker, tenants_runtime

# What an operation wants in its header.
HEADERS = {"/v1/tasks/{task}/aliases/{alias}": {"If-Match": '"1"'}}


@pytest.fixture(scope="module")
def asker(tmp_path_factory):
    """Of a server that has the task of the examples."""
    folder = tmp_path_factory.mktemp("examples")
    store(folder, tone=Task(seed=1, labels=["question", "complaint"]))
    with tenants_runtime(folder, samples_key="A" * 43 + "=") as runtime:
        yield Asker(runtime)


@pytest.fixture(scope="module")
def document(asker):
    return asyncio.run(asker.ask(ROOT_KEY, "GET", "/openapi.json")).json()


def own(document):
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not set(OWN).isdisjoint(operation["tags"])
    ]


def contents(holders):
    return [content for one in holders for content in one.get("content", {}).values()]


def fits(value, schema, document):
    jsonschema.validate(value, {"components": document["components"], **schema})


def test_every_own_operation_has_examples_that_fit_its_schemas(document):
    for path, method, operation in own(document):
        named = [one for one in operation.get("parameters", []) if one["in"] == "path"]
        for one in named:
            fits(one["example"], one["schema"], document)
        answers = [one for status, one in operation["responses"].items() if status[0] == "2"]
        given = [one for one in contents([operation.get("requestBody", {}), *answers]) if "example" in one]
        for one in given:
            fits(one["example"], one["schema"], document)
        assert named or given, (method, path)
        json_bodies = operation.get("requestBody", {}).get("content", {}).keys() == {"application/json"}
        assert len(given) >= json_bodies + ("application/json" in str(answers)), (method, path)


def test_the_server_answers_the_examples_of_requests(asker, document):
    asked = 0
    for path, method, operation in own(document):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if body is None:
            continue
        names = {one["name"]: one["example"] for one in operation.get("parameters", []) if one["in"] == "path"}
        headers = HEADERS.get(path, {})
        answer = asyncio.run(
            asker.ask(ROOT_KEY, method.upper(), path.format(**names), json=body["example"], headers=headers)
        )
        if path == "/v1/tasks/{task}/examples":
            # A body that breaks a rule is refused before; this server has no trainer.
            assert answer.json()["code"] == "trainer-off", answer.text
            continue
        assert answer.is_success, (path, answer.text)
        for content in contents([operation["responses"][str(answer.status_code)]]):
            fits(answer.json(), content["schema"], document)
        asked += 1
    assert asked >= 6


def test_the_route_for_many_tasks_is_the_servers_own(document):
    """The body of a façade shares its path, and is no more than one more body there."""
    operation = document["paths"]["/v1/classify"]["post"]
    assert (operation["tags"], operation["summary"]) == (["classify"], "Classify Items")
    assert "mix of tasks" in operation["description"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert schema["anyOf"][0] == {"$ref": "#/components/schemas/ClassifyItemsResponse"}
    assert "As clients of health" not in json.dumps(document)
