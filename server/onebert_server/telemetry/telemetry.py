"""A process's telemetry besides metrics: spans and the access log."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from onebert_server.observed import Ended, Observed, Samples
from onebert_server.settings import Settings
from onebert_server.telemetry.access_log import AccessLog, Lines, line

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing

logger = logging.getLogger("onebert.telemetry")

# Probes and scrapes: nobody looks for their traces.
UNTRACED = frozenset({"/healthz", "/startupz", "/readyz", "/metrics"})
PROTOCOL = "http/protobuf"


class Telemetry:
    """Starts and ends the observation of requests; keeps answers for tracing, access log and metrics."""

    def __init__(self, tracing: "Tracing | None" = None, access_log: Lines | None = None) -> None:
        # Gets the answers that are chosen by their tasks' shares.
        self.samples: Samples | None = None
        self.tracing = tracing
        self.access_log = access_log

    def begin(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Observed:
        """Starts observing a request."""
        traced = self.tracing is not None and path not in UNTRACED
        span = self.tracing.request(headers) if self.tracing and traced else None
        return Observed(True, span, samples=self.samples)

    def end(self, ended: Ended, request_id: str, principal: str | None, observed: Observed) -> None:
        """Ends its span and writes its access log line. `principal` is None for unauthenticated requests."""
        if observed.span is not None:
            observed.span.end(ended, request_id)
        if self.access_log is not None:
            self.access_log.write(line(ended, request_id, principal, observed.tokens))


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
            lines = own = AccessLog(sys.stdout.fileno())
            opened.callback(own.close)
        yield Telemetry(tracing, lines)


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
        logger.warning("no traces: OTEL_EXPORTER_OTLP_ENDPOINT is set, which takes pip install 'onebert[otel]'")
        return None
    return Tracing(endpoint)


def _variable(name: str) -> str | None:
    return os.environ.get(f"OTEL_EXPORTER_OTLP_TRACES_{name}") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}")
