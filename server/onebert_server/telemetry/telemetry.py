"""A process's telemetry: spans, the access log, and the counts of finished requests."""

import asyncio
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from onebert_server.observed import FinishedRequest, Observed, Samples
from onebert_server.settings import Settings
from onebert_server.telemetry.access_log import AccessLog, Lines, line

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing

logger = logging.getLogger("onebert.telemetry")

# Probes and scrapes: nobody looks for their traces.
UNTRACED = frozenset({"/healthz", "/startupz", "/readyz", "/metrics"})
PROTOCOL = "http/protobuf"


class RequestCounts(Protocol):
    """Counts requests at the edge: `Metrics`, or in a front end what sends to it."""

    def request_began(self) -> None: ...

    def requests_ended(self, ended: Sequence[FinishedRequest]) -> None:
        """Counts the requests that one turn of the event loop has finished, whose lines of the log are written."""


class _Finished(NamedTuple):
    ended: FinishedRequest
    request_id: str
    principal: str | None
    observed: Observed


class Telemetry:
    """Starts and ends the observation of requests.

    It collects those that a turn of the event loop finishes, and then hands them over together, to the spans, the
    access log and `counts`, which the edge sets.
    """

    counts: RequestCounts

    def __init__(self, tracing: "Tracing | None" = None, access_log: Lines | None = None) -> None:
        self._finished: list[_Finished] = []
        # Gets the answers that are chosen by their tasks' shares.
        self.samples: Samples | None = None
        self.tracing = tracing
        self.access_log = access_log

    def begin(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Observed:
        """Starts observing a request."""
        self.counts.request_began()
        traced = self.tracing is not None and path not in UNTRACED
        span = self.tracing.request(headers) if self.tracing and traced else None
        return Observed(True, span, samples=self.samples)

    def end(self, ended: FinishedRequest, request_id: str, principal: str | None, observed: Observed) -> None:
        """Collects a finished request until the turn ends. `principal` is None for unauthenticated requests."""
        if not self._finished:
            asyncio.get_running_loop().call_soon(self.flush)
        self._finished.append(_Finished(ended, request_id, principal, observed))

    def flush(self) -> None:
        """Hands over the requests that are finished until now."""
        finished, self._finished = self._finished, []
        if not finished:
            return
        for ended, request_id, _, observed in finished:
            if observed.span is not None:
                observed.span.end(ended, request_id)
        if self.access_log is not None:
            lines = [line(ended, number, name, observed.tokens) for ended, number, name, observed in finished]
            self.access_log.write(lines)
        self.counts.requests_ended([*map(itemgetter(0), finished)])


@contextmanager
def open_telemetry(settings: Settings, lines: Lines | None = None) -> Iterator[Telemetry]:
    """Telemetry by the settings and OpenTelemetry's variables, flushed at the end; `lines` None is standard output."""
    with ExitStack() as opened:
        tracing = _tracing()
        if tracing is not None:
            opened.callback(tracing.close)
        if settings.access_log == "off":
            lines = None
        elif lines is None:
            lines = access_log = AccessLog(sys.stdout.fileno())
            opened.callback(access_log.close)
        telemetry = Telemetry(tracing, lines)
        opened.callback(telemetry.flush)
        yield telemetry


def _tracing() -> "Tracing | None":
    """Tracing if OpenTelemetry's variables request it; a missing package gives a warning, not an error."""
    endpoint = _variable("ENDPOINT")
    exporters = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    if not endpoint or "otlp" not in exporters.split(",") or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if (protocol := _variable("PROTOCOL") or PROTOCOL) != PROTOCOL:
        logger.warning("no traces: OTEL_EXPORTER_OTLP_PROTOCOL is %s, and spans are exported by %s", protocol, PROTOCOL)
        return None
    try:
        from onebert_server.telemetry.tracing import Tracing  # noqa: PLC0415 - only tracing needs OpenTelemetry
    except ImportError:
        logger.warning(
            "no traces: OTEL_EXPORTER_OTLP_ENDPOINT is set, which takes pip install '.[otel]' in the checkout"
        )
        return None
    return Tracing(endpoint)


def _variable(name: str) -> str | None:
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")
