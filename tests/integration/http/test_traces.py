"""Traces reach a receiver of OTLP: one of a request with its phases, and one of each batch, linked with each other."""

import re
import secrets

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from otlp_receiver import receiving
from servers import LAYOUTS, Server, Task

TEXT = "a secret that no span may hold"
PHASES = {"parse", "tokenize", "queue", "forward", "answer"}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module", params=LAYOUTS["argvalues"], ids=LAYOUTS["ids"])
def traced(request, tmp_path_factory):
    """A server that exports its spans, what has received them, and a client."""
    with pytest.MonkeyPatch.context() as patched, receiving() as received:
        patched.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        with Server(tmp_path_factory.mktemp("traces"), front_ends=request.param) as server:
            server.push({"first": Task(seed=1), "second": Task(seed=2)})
            with httpx.Client(base_url=server.url, timeout=180) as client:
                yield server, received, client


def asked(client, headers=(), path="/v1/tasks/first/classify", body=None):
    """Asks with a trace of the caller; its ids, and the answer."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    headers = {"traceparent": f"00-{trace_id}-{span_id}-01", "tracestate": "vendor=7", **dict(headers)}
    return trace_id, span_id, client.post(path, json=body or {"inputs": TEXT}, headers=headers)


def of_trace(spans, trace_id):
    return [span for span in spans if span.trace_id.hex() == trace_id]


def attributes(span):
    return {attribute.key: attribute.value for attribute in span.attributes}


def complete(received, trace_id):
    """The span of the request and its phases by name, when all of them have come."""

    def find(spans):
        by_name = {span.name: span for span in of_trace(spans, trace_id)}
        return by_name if by_name.keys() >= PHASES and len(by_name) > len(PHASES) else None

    return received.until(find)


def test_a_request_has_spans_of_its_phases_and_batch(traced):
    _, received, client = traced
    trace_id, span_id, answer = asked(client)
    spans = complete(received, trace_id)
    request = spans.pop("POST /v1/tasks/{task}/classify")
    assert spans.keys() == PHASES
    assert request.parent_span_id.hex() == span_id
    assert request.kind == request.SPAN_KIND_SERVER
    assert request.trace_state == "vendor=7"
    facts = attributes(request)
    assert facts["http.response.status_code"].int_value == answer.status_code == 200
    assert facts["onebert.request_id"].string_value == answer.headers["x-request-id"]
    assert [span.string_value for span in facts["onebert.tasks"].array_value.values] == ["first"]
    for phase in spans.values():
        assert phase.parent_span_id == request.span_id
        assert request.start_time_unix_nano <= phase.start_time_unix_nano <= phase.end_time_unix_nano
        # The two are read from two clocks, which a machine may set anew.
        assert phase.end_time_unix_nano <= request.end_time_unix_nano + 10**9
    [link] = spans["forward"].links
    batch = received.until(lambda all_: next((span for span in all_ if span.span_id == link.span_id), None))
    assert batch.name == "batch"
    assert batch.trace_id == link.trace_id != request.trace_id
    assert (request.trace_id, request.span_id) in {(span.trace_id, span.span_id) for span in batch.links}
    assert attributes(batch)["onebert.sequences"].int_value >= 1
    assert received.services == {"onebert"}


def test_one_batch_is_one_span_linked_with_every_request_in_it(traced):
    """Whatever ran together: each request's batches name it, and no batch names another."""
    _, received, client = traced
    items = [{"task": task, "text": f"{TEXT} {number}"} for number in range(4) for task in ("first", "second")]
    bodies = [{"items": items[: 2 + number], "partial": number == 3} for number in range(4)]
    ids = [asked(client, path="/v1/classify", body=body)[0] for body in bodies]
    requests = {trace_id: complete(received, trace_id) for trace_id in ids}
    named = {
        (link.span_id, request["POST /v1/classify"].span_id)
        for request in requests.values()
        for link in request["forward"].links
    }
    batches = {batch for batch, _ in named}
    received.until(lambda spans: batches <= {span.span_id for span in spans})
    linked = {(span.span_id, link.span_id) for span in received.spans if span.span_id in batches for link in span.links}
    assert linked >= named
    assert {request for batch, request in linked if batch in batches} >= {request for _, request in named}
    assert len(batches) == sum(span.span_id in batches for span in received.spans)


def test_the_answer_names_its_trace_for_browsers(traced):
    _, received, client = traced
    trace_id, _, answer = asked(client)
    match = re.search(r'traceparent;desc="00-([0-9a-f]{32})-([0-9a-f]{16})-01"', answer.headers["server-timing"])
    assert match[1] == trace_id
    assert complete(received, trace_id)["POST /v1/tasks/{task}/classify"].span_id.hex() == match[2]


def test_a_refusal_has_a_span_with_its_code(traced):
    _, received, client = traced
    trace_id, _, answer = asked(client, path="/v1/tasks/nobody/classify")
    [request] = received.until(lambda spans: [span for span in of_trace(spans, trace_id) if span.name[:4] == "POST"])
    assert answer.status_code == attributes(request)["http.response.status_code"].int_value == 404
    assert attributes(request)["error.type"].string_value == "task-not-found"


def test_only_sampled_traces_are_exported_without_texts(traced):
    _, received, client = traced
    trace_id = secrets.token_hex(16)
    unsampled = {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-00"}
    client.post("/v1/tasks/first/classify", json={"inputs": TEXT}, headers=unsampled)
    complete(received, asked(client)[0])
    assert of_trace(received.spans, trace_id) == []
    assert not any(TEXT.encode() in span.SerializeToString() for span in received.spans)


def test_openmetrics_have_exemplars_of_traces(traced):
    _, received, client = traced
    trace_id, _, _ = asked(client, path="/v1/fanout", body={"tasks": ["first"], "text": TEXT})
    complete(received, trace_id)

    def examples():
        text = client.get("/metrics", headers={"Accept": OPENMETRICS}).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return [
            sample.exemplar.labels
            for sample in samples
            if sample.exemplar and sample.labels.get("route") == "/v1/fanout"
        ]

    assert received.until(lambda _: examples()) == [{"trace_id": trace_id}]
    assert client.get("/metrics").headers["content-type"].startswith("text/plain")


def test_of_two_parents_none_is_taken(traced):
    _, _, client = traced
    ids = [secrets.token_hex(16) for _ in "ab"]
    headers = [("traceparent", f"00-{trace}-{secrets.token_hex(8)}-01") for trace in ids]
    answer = client.post("/v1/tasks/first/classify", json={"inputs": TEXT}, headers=headers)
    match = re.search('traceparent;desc="00-([0-9a-f]{32})', answer.headers["server-timing"])
    assert match[1] not in ids


@pytest.mark.parametrize("garbage", ["", "00-0-0-01", "00-" + "g" * 32 + "-" + "1" * 16 + "-01", "x" * 5000, "\u00ff"])
def test_a_traceparent_that_is_none_begins_a_trace_of_its_own(traced, garbage):
    _, _, client = traced
    answer = client.post(
        "/v1/tasks/first/classify", json={"inputs": TEXT}, headers={b"traceparent": garbage.encode("latin-1")}
    )
    assert answer.status_code == 200
    assert "traceparent;desc=" in answer.headers["server-timing"]
