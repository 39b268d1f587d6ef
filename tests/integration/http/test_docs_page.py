"""The page at /docs comes whole from the server, and the OpenAPI document that it shows is true."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import urljoin, urlsplit

import httpx
import pytest

from onebert_server.access.keys import KeyRing
from onebert_server.facades.routes import facade_paths
from onebert_server.http.auth import DOCS_PATHS
from onebert_server.run.app import create_app
from onebert_server.settings import ServerSettings
from servers import Server, layouts

KEY = "first-key-0123456789"
SETTINGS = {"api_keys": KEY}
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}


@layouts
def test_the_page_is_whole_without_a_network_and_without_a_key(web):
    page = web.get("/docs")
    assert page.status_code == 200
    parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    parts += re.findall(r'url: "([^"]+)"', web.get("/docs/start.js").text)
    wanted = {urlsplit(urljoin("http://server/docs", part)).path for part in parts if not part.startswith("data:")}
    assert wanted == DOCS_PATHS - {"/docs"}
    for path in wanted:
        part = web.get(path)
        assert part.status_code == 200
        assert not re.search(r"url\(\s*['\"]?(?:https?:)?//", part.text) or path.endswith(".js")
    assert "SwaggerUIBundle" in web.get("/docs/swagger-ui-bundle.js").text


def test_the_page_may_load_nothing_from_elsewhere(web):
    for path in DOCS_PATHS - {"/openapi.json"}:
        policy = dict(rule.split(maxsplit=1) for rule in web.get(path).headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        sources = {source for name, value in policy.items() if name != "style-src" for source in value.split()}
        assert sources == {"'self'", "'none'", "data:"}


@pytest.fixture(scope="module")
def document(web):
    return web.get("/openapi.json").json()


def operations(document):
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_problems_are_documented_as_they_are_sent(document, web):
    for path, _, operation in operations(document):
        if path in facade_paths():
            continue  # the errors of façades have the forms of their clients
        assert {operation["responses"][status]["content"] == PROBLEM for status in ("4XX", "5XX", "422")} == {True}
    assert web.get("/v1/tasks").headers["content-type"] in PROBLEM


def test_no_body_replaces_an_answer_of_the_same_name():
    control = create_app(SimpleNamespace(keys=KeyRing({}), settings=ServerSettings())).control
    schemas = json.loads(control.document())["components"]["schemas"]
    for name, schema in control.openapi()["components"]["schemas"].items():
        assert schemas[name].get("properties", {}).keys() == schema.get("properties", {}).keys(), name


def test_keys_are_documented_where_they_are_needed(document, web):
    for path, method, operation in operations(document):
        if "security" in operation:
            assert web.request(method, path).status_code == 401
        else:
            assert web.request(method, path).status_code == 200


@pytest.mark.parametrize("name", ["tone", "a", "0.5-x_y", "x" * 63])
def test_names_are_documented_by_the_rule_that_the_server_has(document, web, name):
    headers = {"Authorization": f"Bearer {KEY}"}
    parameters = document["paths"]["/v1/tasks/{task}"]["get"]["parameters"]
    [parameter] = [parameter for parameter in parameters if parameter["name"] == "task"]
    rule = re.compile(parameter["schema"]["pattern"])
    assert rule.search(name)
    assert web.get(f"/v1/tasks/{name}", headers=headers).status_code == 404
    for bad in (f"-{name}", f"{name}~", f"{name}A"):
        assert not rule.search(bad)
        assert web.get(f"/v1/tasks/{bad}", headers=headers).status_code == 422


def test_the_document_asks_for_keys_where_there_are_keys(tmp_path):
    with Server(tmp_path) as server, ThreadPoolExecutor(4) as pool:
        address = f"{server.url}/openapi.json"
        first, *others = pool.map(httpx.get, [address] * 4)
        assert {other.content for other in others} == {first.content}
        assert httpx.head(address).headers["content-length"] == first.headers["content-length"]
        assert all("security" not in operation for _, _, operation in operations(first.json()))
        assert httpx.post(f"{server.url}/v1/keys", json={"name": "ci", "scopes": ["admin"], "tasks": ["*"]}).is_success
        assert any("security" in operation for _, _, operation in operations(httpx.get(address).json()))
