"""Spans by OpenTelemetry: of each request and its phases, and of each batch, linked with the requests in it.

Nobody imports this file where tracing is off: it is the one that needs `onebert[otel]`.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from onebert_server.telemetry.observed import Carried, Ended

NAME = "onebert"
# Tasks that a span names, of the thousand that a request may ask.
MAX_TASKS = 16
# Seconds that what is left has at the end.
CLOSE_TIMEOUT = 2.0
_PARENT, _STATE = "traceparent", "tracestate"
_FIELDS = (_PARENT.encode(), _STATE.encode())
_w3c = TraceContextTextMapPropagator()


class RequestSpan:
    """The span of one request, in the process that has it or in the one that computes for it.

    Attributes:
        trace_id: 32 hexadecimal digits.
        sampled: whether its spans are exported.
    """

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span
        # What is measured, is measured on the monotonic clock; spans have the time of the day.
        self._offset = time.time_ns() - time.monotonic_ns()
        self.context = span.get_span_context()
        self.trace_id = trace.format_trace_id(self.context.trace_id)
        self.sampled = self.context.trace_flags.sampled

    @property
    def carried(self) -> Carried:
        """The span as `traceparent` and `tracestate`, for another process."""
        fields: dict[str, str] = {}
        _w3c.inject(fields, trace.set_span_in_context(self._span))
        return fields[_PARENT], fields.get(_STATE, "")

    def phase(self, name: str, start: float, end: float, batches: Sequence[trace.SpanContext] = ()) -> None:
        """Makes a span inside of this one; see `Observed.phase`."""
        if self.sampled:
            links = [trace.Link(batch) for batch in batches]
            parent = trace.set_span_in_context(self._span)
            child = self._tracer.start_span(name, parent, links=links, start_time=self._time(start))
            child.end(self._time(end))

    def end(self, ended: Ended, request_id: str) -> None:
        """The request has been answered."""
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


class Computed(Protocol):
    """A request as the engine has it.

    Attributes:
        span: of the request; None where it has none.
        batches: the spans of the batches that something of it was in.
    """

    span: RequestSpan | None
    batches: list[trace.SpanContext]


class Tracing:
    """Makes spans, and exports them by OTLP as OpenTelemetry's own environment variables say."""

    def __init__(self) -> None:
        # It would log each header that cannot be read, as often as clients send one, and what they have written there.
        logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
        named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        resource = Resource.create({} if named else {SERVICE_NAME: NAME})
        self._processor = BatchSpanProcessor(OTLPSpanExporter())
        self._requests = TracerProvider(resource=resource, shutdown_on_exit=False)
        # Whether a batch is exported its requests have decided: it has a span where one of them is sampled.
        batches = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        for provider in (self._requests, batches):
            provider.add_span_processor(self._processor)
        self._tracer, self._batches = self._requests.get_tracer(NAME), batches.get_tracer(NAME)

    def request(self, headers: Iterable[tuple[bytes, bytes]]) -> RequestSpan:
        """The span of a request that has just come; its caller's is its parent, where the headers name one."""
        given: dict[str, list[str]] = {_PARENT: [], _STATE: []}
        for name, value in headers:
            if name in _FIELDS:
                given[name.decode()].append(value.decode("latin-1"))
        # Several fields with the state are one, in their order; of several parents nobody knows which one it is.
        caller = _w3c.extract(given) if len(given[_PARENT]) == 1 else Context()
        return RequestSpan(self._tracer, self._tracer.start_span("request", caller, trace.SpanKind.SERVER))

    def taken_up(self, carried: Carried) -> RequestSpan:
        """The span of a request that another process answers."""
        fields = dict(zip((_PARENT, _STATE), carried, strict=True))
        return RequestSpan(self._tracer, trace.get_current_span(_w3c.extract(fields)))

    def batch(self, requests: Iterable[Computed], started: float) -> trace.Span | None:
        """The span of a batch that has been computed, linked with its requests, which learn of it.

        Args:
            requests: of which it has something.
            started: when it began, on the monotonic clock.

        Returns:
            The span, to be ended; None where no request in it is sampled.
        """
        sampled = {one: one.span for one in requests if one.span is not None and one.span.sampled}
        if not sampled:
            return None
        links = [trace.Link(span.context) for span in sampled.values()]
        begun = time.time_ns() - int((time.monotonic() - started) * 1e9)
        batch = self._batches.start_span("batch", links=links, start_time=begun)
        for request in sampled:
            request.batches.append(batch.get_span_context())
        return batch

    def close(self) -> None:
        """Exports what is left, where somebody takes it in time."""
        # It would wait for half a minute, and the server's process for it.
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT)
