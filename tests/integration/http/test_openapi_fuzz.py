"""Requests made up from the server's own OpenAPI document: what the document promises is what a real server does.

Schemathesis makes requests that fit the document, and requests that break it. They are the same in every run.
"""

from collections import Counter

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onebert_server.facades.routes import facade_paths
from servers import Task, layouts

OCTETS = "application/octet-stream"
EXAMPLES = 50
FACADES = facade_paths()
# Operations that answer requests about something that exists; the others want the number of the version, too.
SUCCEED = {"GET", "POST", "PUT /v1/tasks/{task}/versions", "DELETE /v1/tasks/{task}"}


def push(server, task):
    answer = httpx.put(f"{server.url}/v1/tasks/{task}/versions", content=Task().file, headers={"Content-Type": OCTETS})
    assert answer.is_success, answer.text


def cases(operation, task):
    """Requests that fit the document and requests that break it; about what does not exist, and about the task."""
    from schemathesis import GenerationMode

    fits = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    known = {"task": task, "model": task, "version": 1, "alias": "live", "key": "0" * 12}
    known = {one.name: known[one.name] for one in operation.path_parameters}
    found = [fits, fits.map(lambda case: about(case, task))]
    if [*operation.path_parameters, *operation.query, *operation.headers, *operation.body]:
        found.append(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
    if known:
        found.append(operation.as_strategy(path_parameters=known).map(lambda case: about(case, task)))
    if operation.label == "PUT /v1/tasks/{task}/versions":
        found.append(operation.as_strategy(path_parameters=known, body=Task().file, media_type=OCTETS))
    return st.one_of(found)


def about(case, task):
    """The same request; where it names tasks in its body, they are the one that there is."""
    body = case.body if isinstance(case.body, dict) else {}
    for item in body.get("items", ()):
        item["task"] = task
    if "tasks" in body:
        body["tasks"] = [task]
    if case.operation.path in FACADES:
        case.headers["detector-id"] = task
    return case


def fuzz(server, operation, checks):
    """Sends made-up requests of one operation and checks every answer; how often which status came."""
    task = "spare" if operation.method == "delete" else "tone"
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
    push(server, "tone")
    document = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    # Whether façades keep to the document is not asked here: their bodies are made up in test_odd_bodies.py.
    native = {"/v1/classify"}
    every = [found.ok() for found in document.get_all_operations()]
    operations = [one for one in every if one.path not in FACADES or one.path in native]
    # A task that is renamed would not be there for the others; test_life_cli.py renames.
    operations = [one for one in operations if not one.path.endswith("/rename")]
    # The first key that is made closes the server to whoever has none.
    for operation in sorted(operations, key=lambda one: one.label == "POST /v1/keys"):
        statuses = fuzz(server, operation, CHECKS.get_by_names(names))
        print(operation.label, dict(statuses))
        if {operation.label, operation.method.upper()} & SUCCEED:
            assert any(status < 300 for status in statuses), (operation.label, statuses)
    assert "Traceback" not in server.log.read_text()
