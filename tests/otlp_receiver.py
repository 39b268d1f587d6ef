"""A receiver of OTLP over HTTP, as a collector is one: it decodes what comes by the protocol's own messages."""

import gzip
import threading
from contextlib import contextmanager

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from fake_servers import FakeServer, Handler


class Received:
    """The spans that came.

    Attributes:
        url: what `OTEL_EXPORTER_OTLP_ENDPOINT` is set to.
        keys: every `x-api-key` that spans came with.
    """

    def __init__(self, url):
        self.url = url
        self.spans, self.services, self.keys = [], set(), set()
        self._changed = threading.Condition()

    def take(self, request):
        with self._changed:
            for resource_span in request.resource_spans:
                self.services |= {
                    each.value.string_value for each in resource_span.resource.attributes if each.key == "service.name"
                }
                self.spans += [span for scope in resource_span.scope_spans for span in scope.spans]
            self._changed.notify_all()

    def until(self, reached, seconds=180):
        """Waits for `reached(spans)`, and gives what it gave; the limit only ends a test that fails."""
        with self._changed:
            reached_all = self._changed.wait_for(lambda: reached(self.spans), seconds)
            assert reached_all, sorted(span.name for span in self.spans)
            return reached_all


@contextmanager
def receiving():
    """A receiver on a free port while the block runs."""

    class Collector(Handler):
        def answer(self):
            body = self.body()
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            received.keys.add(self.headers["x-api-key"])
            received.take(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.reply(200, answer, {"Content-Type": "application/x-protobuf"})

        do_POST = answer

    with FakeServer(Collector) as server:
        received = Received(server.url)
        yield received
