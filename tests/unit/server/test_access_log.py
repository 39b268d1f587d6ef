"""Lines of the access log are whole, or not there; they are bounded, and say what became of a request."""

import os

import pytest

from onebert_server.telemetry import access_log
from onebert_server.telemetry.access_log import AccessLog
from servers import wait_until


@pytest.fixture
def pipe():
    """The ends of a pipe: what is read of it, and what is written to."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def numbered(count):
    return [b'{"line": %d, "more": "%s"}' % (number, b"y" * (number % 90)) for number in range(count)]


def whole_of(content, lines):
    """The numbers of the lines that came, before those that end the test: each is whole, and they are in order."""
    assert content.endswith(b"\n")
    number_of = {line: number for number, line in enumerate(lines)}
    numbers = [number_of[line] for line in content.splitlines() if line != b"last"]
    assert numbers == sorted({*numbers})
    return numbers


def test_a_line_that_is_cut_is_finished_before_the_next(pipe, caplog):
    """A pipe that nobody reads takes as much as it holds of many lines, and refuses the rest."""
    reading, writing = pipe
    os.set_blocking(writing, False)
    lines, content = numbered(5000), b""
    log = AccessLog(writing)
    for line in lines:
        log.write([line])
    wait_until(lambda: "are lost" in caplog.text)
    os.set_blocking(reading, False)

    def came():
        nonlocal content
        try:
            content += os.read(reading, 2**20)
        except BlockingIOError:
            log.write([b"last"])
        return b"last\n" in content

    wait_until(came)
    log.close()
    assert 0 < len(whole_of(content, lines)) < len(lines)


def test_lines_that_nobody_reads_are_bounded(pipe, caplog, monkeypatch):
    monkeypatch.setattr(access_log, "MAX_LINES", 10)
    reading, writing = pipe
    log, lines = AccessLog(writing), numbered(30)
    log.write(lines)
    log.close()
    assert "lines of the access log are dropped" in caplog.text
    assert whole_of(os.read(reading, 2**20), lines) == [*range(10)]
