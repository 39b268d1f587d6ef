"""Lines of the access log are whole, or not there; they are bounded, and say what became of a request."""

import asyncio
import json
import logging
import os
from contextlib import suppress
from types import SimpleNamespace

import pytest

from onebert_server.http.pipeline import Pipeline
from onebert_server.observed import Seen
from onebert_server.telemetry.access_log import MAX_LINES, AccessLog
from onebert_server.telemetry.metrics import Metrics
from onebert_server.telemetry.telemetry import Telemetry
from onebert_server.telemetry.tracing import Tracing
from otlp_receiver import receiving
from servers import wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"
FILLER = b"x" * 1000 + b"\n"


@pytest.fixture
def pipe():
    """The ends of a pipe: what is read of it, and what is written to."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def fill(writing):
    """Fills a pipe to its last byte; how many bytes that took."""
    os.set_blocking(writing, False)
    filled = 0
    # The last page may have room for less than the filler.
    for content in (FILLER, FILLER[:1]):
        with suppress(BlockingIOError):
            while True:
                filled += os.write(writing, content)
    return filled


def numbered(count):
    return [b'{"line": %d, "more": "%s"}' % (number, b"y" * (number % 90)) for number in range(count)]


def whole_of(found, lines):
    """The numbers of the lines that came, before those that end the test: each is whole, and they are in order."""
    assert found.endswith(b"\n")
    number_of = {line: number for number, line in enumerate(lines)}
    numbers = [number_of[line] for line in found.splitlines() if line != b"last"]
    assert numbers == sorted({*numbers})
    return numbers


def test_a_line_that_is_cut_is_finished_before_the_next(pipe, caplog):
    """A pipe that nobody reads takes as much as it holds of many lines, and refuses the rest."""
    reading, writing = pipe
    os.set_blocking(writing, False)
    lines, found = numbered(5000), b""
    log = AccessLog(writing)
    for line in lines:
        log.write([line])
    wait_until(lambda: "are lost" in caplog.text)
    os.set_blocking(reading, False)

    def came():
        nonlocal found
        try:
            found += os.read(reading, 2**20)
        except BlockingIOError:
            log.write([b"last"])
        return b"last\n" in found

    wait_until(came)
    log.close()
    assert 0 < len(whole_of(found, lines)) < len(lines)


def test_lines_that_nobody_reads_are_bounded_and_the_log_says_so(pipe, caplog):
    reading, writing = pipe
    filled = fill(writing)
    os.set_blocking(writing, True)
    log, lines = AccessLog(writing), numbered(3 * MAX_LINES)
    with caplog.at_level(logging.WARNING, "onebert.access_log"):
        for line in lines:
            log.write([line])
    assert "lines of the access log are dropped" in caplog.text
    # As many as wait, and as many as were taken to be written when the pipe was full.
    while filled:
        filled -= len(os.read(reading, min(filled, 2**20)))
    found = b""
    while not found.endswith(b"last\n"):
        log.write([b"last"])
        found += os.read(reading, 2**20)
    log.close()
    assert MAX_LINES <= len(whole_of(found, lines)) <= 2 * MAX_LINES


@pytest.fixture
def tracing(monkeypatch):
    # An exporter that nobody answers would go on trying beside later tests, with waits of random lengths.
    with receiving() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        exported = Tracing(received.url)
        yield exported
        exported.close()


def line_of(tracing, status, flags):
    """The line of a request that was answered with this status when two of its answers were there."""
    lines = []
    telemetry = Telemetry(tracing, SimpleNamespace(write=lines.extend))

    async def app(scope, receive, send):
        observed = scope["state"]["observed"]
        observed.answers += [Seen("tone", ("good",), 0.9), Seen("mood", ("bad",), 0.8)]
        observed.tokens = 12
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def sent(message):
        pass

    telemetry.counts = Metrics()
    edge = SimpleNamespace(telemetry=telemetry, draining=False)
    headers = [(b"traceparent", f"00-{TRACE}-b7ad6b7169203331-{flags}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/classify", "headers": headers}
    asyncio.run(Pipeline(edge, app)(scope, None, sent))
    telemetry.flush()
    [line] = map(json.loads, lines)
    return line


def test_what_was_not_answered_is_not_said_to_be(tracing):
    answered = line_of(tracing, 200, "00")
    assert {name: answered[name] for name in ("tasks", "answers", "tokens")} == {"tasks": 2, "answers": 2, "tokens": 12}
    assert not {"task", "tasks", "answers", "tokens"} & line_of(tracing, 504, "00").keys()


def test_a_trace_is_named_where_it_is_exported(tracing):
    assert line_of(tracing, 200, "01")["trace_id"] == TRACE
    assert "trace_id" not in line_of(tracing, 200, "00")
