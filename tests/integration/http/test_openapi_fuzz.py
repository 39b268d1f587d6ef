"""Requests made up from the server's own OpenAPI document: what the document promises is what a real server does.

Schemathesis makes requests that fit the document, and requests that break it. They are the same in every run.
"""

import functools
from collections import Counter

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onebert_server.facades.routes import facade_paths, form_of
from onebert_server.http.problems import Fault
from servers import Task, layouts

OCTETS = "application/octet-stream"
EXAMPLES = 50
FACADES = facade_paths()
# The body decides whether it is a façade's.
NATIVE = {"/v1/classify"}
# Operations that answer requests about something that exists; the others want the number of the version, too.
SUCCEED = {"GET", "POST", "PUT /v1/tasks/{task}/versions", "DELETE /v1/tasks/{task}"}
# This server has no trainer.
REFUSED = {"/v1/tasks/{task}/examples"}
# Façades' that answer for the kind of task that there is; of the others the document does not say which task they want.
ANSWER = {"/", "/models/{model}", "/predict", "/api/v1/text/contents", "/v1/models/{model}:predict"}


def push(server, task):
    answer = httpx.put(f"{server.url}/v1/tasks/{task}/versions", content=Task().file, headers={"Content-Type": OCTETS})
    assert answer.is_success, answer.text


def cases(operation, task):
    """Requests that fit the document and requests that break it; about what does not exist, and about the task."""
    from schemathesis import GenerationMode

    fits = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    known = {"task": task, "model": task, "version": 1, "alias": "live", "key": "0" * 12, "id": "an-id"}
    known = {path_parameter.name: known[path_parameter.name] for path_parameter in operation.path_parameters}
    strategies = [fits, fits.map(lambda case: about(case, task))]
    if [*operation.path_parameters, *operation.query, *operation.headers, *operation.body]:
        strategies.append(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    if known:
        strategies.append(operation.as_strategy(path_parameters=known).map(lambda case: in_time(about(case, task))))
    if operation.label == "PUT /v1/tasks/{task}/versions":
        strategies.append(operation.as_strategy(path_parameters=known, body=Task().file, media_type=OCTETS))
    if operation.label == "POST /v1/feedback":
        given = {"data": [{"task": task, "text": "my order is late", "label": "label 0", "identifier": "mine"}]}
        strategies.append(operation.as_strategy(body=given, media_type="application/json").map(in_time))
    if operation.label == "POST /v1/keys":
        # No other key may be the first one.
        first = {"name": "first", "scopes": ["admin"], "tasks": ["*"]}
        strategies.append(operation.as_strategy(body=first, media_type="application/json").map(in_time))
    return st.one_of(strategies)


def about(case, task):
    """The same request; where it names tasks in its body or its header, they are the one that there is."""
    body = case.body if isinstance(case.body, dict) else {}
    path = case.operation.path
    if path in FACADES and "{model}" not in path:
        case.headers["detector-id"] = task
    if path in FACADES - NATIVE:
        return case
    for item in body.get("items", ()):
        item["task"] = task
    if "tasks" in body:
        body["tasks"] = [task]
    return case


def in_time(case):
    """The same request, which asks neither for an answer at once nor for a change that may not have come yet."""
    for name in ("X-Request-Timeout", "OneBERT-Min-Seq"):
        case.headers.pop(name, None)
    return case


def in_its_form(path, answer):
    """Whether an error has the fields that the clients of a path read; where the body tells, or a problem's."""
    form = form_of(path)
    if form is None:
        return answer.json().keys() >= {"type", "code", "detail"} or answer.json().keys() == {"error"}
    _, expected = form(Fault(answer.status_code, "some-code", "Title", "a detail", [], "an-id"))
    return answer.json().keys() == expected.keys()


def unless_too_long(check):
    """The same check; a body that is too long is refused for that, whatever else is wrong with it."""

    @functools.wraps(check)
    def checked(context, answer, case):
        return None if answer.status_code == 413 else check(context, answer, case)

    return checked


def fuzz(server, operation, checks):
    """Sends made-up requests of one operation and checks every answer; how often which status came."""
    # What is gone is not there for the others; examples of the document name `tone`.
    task = "spare" if operation.method == "delete" else "kept"
    statuses = Counter()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(cases(operation, task))
    def ask(case):
        if task == "spare":
            push(server, task)
        answer = case.call()
        status = answer.status_code
        statuses[status] += 1
        assert status < 500 or status in (503, 504), answer.text
        if status >= 400:
            # A façade answers as its clients expect it.
            allowed = ["application/problem+json", *(["application/json"] if operation.path in FACADES else [])]
            assert answer.headers["content-type"][0] in allowed
            assert in_its_form(operation.path, answer), answer.text
        # A request whose time was over before its body had come, or that asks for a change which the registry does not
        # have, is refused for that, whatever else is wrong with it.
        before = status == 408 or (status == 412 and answer.json().get("code", "change-unknown") == "change-unknown")
        late = {"negative_data_rejection"} if before else set()
        case.validate_response(answer, checks=[check for check in checks if check.__name__ not in late])

    ask()
    return statuses


@pytest.mark.slow
@layouts
def test_the_server_does_what_its_document_says(server):
    import schemathesis
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    names = (
        *("status_code_conformance", "content_type_conformance", "response_schema_conformance"),
        *("negative_data_rejection", "missing_required_header"),
    )
    push(server, "kept")
    rules = {"aliases": ["next"], "must": [{"text": "my order is late", "label": "label 0"}]}
    assert httpx.put(f"{server.url}/v1/tasks/kept/gate", json={"rules": rules}).is_success
    # The first message makes a process import the SDK, which takes seconds beside other tests.
    assert httpx.post(f"{server.url}/mcp", json={"jsonrpc": "2.0", "method": "ping", "id": 1}, timeout=180).is_success
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [get_all_operation.ok() for get_all_operation in document.get_all_operations()]
    # The first key that is made closes the server to whoever has none.
    for operation in sorted(operations, key=lambda operation: operation.label == "POST /v1/keys"):
        statuses = fuzz(server, operation, [unless_too_long(check) for check in CHECKS.get_by_names(names)])
        print(operation.label, dict(statuses))
        expected = operation.path in ANSWER | NATIVE or operation.path not in FACADES | REFUSED
        if expected and {operation.label, operation.method.upper()} & SUCCEED:
            assert any(status < 300 for status in statuses), (operation.label, statuses)
