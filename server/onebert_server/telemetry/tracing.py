"""OpenTelemetry spans: one per request and phase, and one per batch, linked with the batch's requests.

Imported only if tracing is on; this is the only file that needs the extra `otel`.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import requests
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from onebert_server.loopback import direct_mounts
from onebert_server.observed import Carried, FinishedRequest

NAME = "onebert"
# Tasks named in a span; a request may ask a thousand.
MAX_TASKS = 16
# Seconds that `close` waits for the export.
CLOSE_TIMEOUT = 2.0
_PARENT, _STATE = "traceparent", "tracestate"
_FIELDS = (_PARENT.encode(), _STATE.encode())
_w3c = TraceContextTextMapPropagator()


class RequestSpan:
    """The span of a request, in the process that received it or in the one that computes it."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span
        # Phases are measured on the monotonic clock; spans need wall-clock time.
        self._offset = time.time_ns() - time.monotonic_ns()
        self.context = span.get_span_context()
        self.trace_id = trace.format_trace_id(self.context.trace_id)
        self.sampled = self.context.trace_flags.sampled

    @property
    def carried(self) -> Carried:
        fields: dict[str, str] = {}
        _w3c.inject(fields, trace.set_span_in_context(self._span))
        return fields[_PARENT], fields.get(_STATE, "")

    def phase(self, name: str, start: float, end: float, batches: Sequence[trace.SpanContext] = ()) -> None:
        if self.sampled:
            links = [trace.Link(batch) for batch in batches]
            parent = trace.set_span_in_context(self._span)
            child = self._tracer.start_span(name, parent, links=links, start_time=self._time(start))
            child.end(self._time(end))

    def end(self, ended: FinishedRequest, request_id: str) -> None:
        if not self.sampled:
            return
        self._span.update_name(f"{ended.method} {ended.route}")
        self._span.set_attributes(
            {
                "http.request.method": ended.method,
                "http.route": ended.route,
                "http.response.status_code": ended.status,
                "onebert.request_id": request_id,
                "onebert.tasks": sorted({seen.task for seen in ended.answers})[:MAX_TASKS],
            }
        )
        if ended.problem is not None:
            self._span.set_attribute("error.type", ended.problem)
        if ended.status >= 500:
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end()

    def _time(self, monotonic: float) -> int:
        return int(monotonic * 1e9) + self._offset


class TracedRequest(Protocol):
    """A request as the engine holds it; `batches` are the spans of its batches."""

    span: RequestSpan | None
    batches: list[trace.SpanContext]


class Tracing:
    """Makes spans and exports them by OTLP, as OpenTelemetry's variables configure it, which name the `endpoint`."""

    def __init__(self, endpoint: str) -> None:
        # It would log every malformed header with its content, at clients' rate.
        logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
        named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({} if named else {SERVICE_NAME: NAME})
        self._processor = BatchSpanProcessor(_exporter(endpoint))
        self._requests = TracerProvider(resource=resource, shutdown_on_exit=False)
        # A batch has a span only if one of its requests is sampled, so its provider samples always.
        batches = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        for provider in (self._requests, batches):
            provider.add_span_processor(self._processor)
        self._tracer, self._batches = self._requests.get_tracer(NAME), batches.get_tracer(NAME)

    def request(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpan:
        """The span of a new request, with the caller's span from the headers as its parent."""
        given: dict[str, list[str]] = {_PARENT: [], _STATE: []}
        for name, value in headers:
            if name in _FIELDS:
                given[name.decode()].append(value.decode("latin-1"))
        # Several tracestate fields join in order; several traceparents are ambiguous, so none counts.
        caller = _w3c.extract(given) if len(given[_PARENT]) == 1 else Context()
        return RequestSpan(self._tracer, self._tracer.start_span("request", caller, trace.SpanKind.SERVER))

    def taken_up(self, carried: Carried) -> RequestSpan:
        """The span of a request that another process received and this one computes."""
        fields = dict(zip((_PARENT, _STATE), carried, strict=True))
        return RequestSpan(self._tracer, trace.get_current_span(_w3c.extract(fields)))

    def carried(self, batch: trace.SpanContext) -> Carried:
        """A batch's span, serialized for another process; see `taken_up`."""
        return RequestSpan(self._tracer, trace.NonRecordingSpan(batch)).carried

    def batch(self, requests: Iterable[TracedRequest], started: float) -> trace.Span | None:
        """Starts a computed batch's span, links it with its requests, and adds it to their `batches`.

        The caller ends it. None if no request is sampled; `started` is on the monotonic clock.
        """
        sampled = {request: request.span for request in requests if request.span is not None and request.span.sampled}
        if not sampled:
            return None
        links = [trace.Link(span.context) for span in sampled.values()]
        begun = time.time_ns() - int((time.monotonic() - started) * 1e9)
        batch = self._batches.start_span("batch", links=links, start_time=begun)
        for request in sampled:
            request.batches.append(batch.get_span_context())
        return batch

    def close(self) -> None:
        """Exports the remaining spans, for up to `CLOSE_TIMEOUT` seconds."""
        # shutdown() alone may wait half a minute, and delay the server's exit.
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT)


def _exporter(endpoint: str) -> OTLPSpanExporter:
    """Makes the exporter; a collector on loopback gets its spans without a proxy."""
    session = requests.Session()
    session.trust_env = not direct_mounts(endpoint)
    return OTLPSpanExporter(session=session)
