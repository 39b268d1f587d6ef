"""The access log: one JSON line per request, written on a thread, without texts and without keys."""

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

from onebert_server.logs import Seldom
from onebert_server.observed import FinishedRequest

# Lines queued for a slow reader of standard output; further lines are dropped, and a warning counts them.
MAX_LINES = 10_000
# Seconds that `close` waits for queued lines.
CLOSE_TIMEOUT = 2.0

logger = logging.getLogger("onebert.access_log")


class Lines(Protocol):
    """Receives lines: an `AccessLog`, or a front end's forwarder to it."""

    def write(self, lines: Sequence[bytes]) -> None:
        """Accepts lines without their newlines; never blocks."""


class AccessLog:
    """Writes lines to an open descriptor on a thread of its own: a pipe without a reader delays no request."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._seldom = Seldom(logger)
        self._waiting: deque[bytes] = deque()
        # The rest of a line that was written partially.
        self._begun = b""
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="onebert-access-log", daemon=True)
        self._thread.start()

    def write(self, lines: Sequence[bytes]) -> None:
        with self._changed:
            room = MAX_LINES - len(self._waiting)
            self._waiting.extend(lines[:room])
            self._changed.notify()
        if len(lines) > room:
            self._seldom.warning("lines of the access log are dropped: nobody reads standard output fast enough")

    def close(self) -> None:
        """Writes the queued lines, for up to `CLOSE_TIMEOUT` seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiting or self._closing):
                    self._changed.wait()
                lines = [*self._waiting]
                self._waiting.clear()
            self._write(b"".join([self._begun, *(line + b"\n" for line in lines)]))
            if not lines:
                return

    def _write(self, lines: bytes) -> None:
        """Writes whole lines; after a failure, the lines that were not begun are lost."""
        written, left = 0, memoryview(lines)
        try:
            while written < len(lines):
                written += os.write(self._descriptor, left[written:])
            self._begun = b""
        except OSError as error:  # the reader is gone, or its disk is full
            if written:
                # Finish the interrupted line before the next one.
                cut = lines[written - 1 : written] != b"\n"
                self._begun = lines[written : lines.index(b"\n", written) + 1] if cut else b""
            self._seldom.warning("lines of the access log are lost: %s", error.strerror)


def line(ended: FinishedRequest, request_id: str, principal: str | None, tokens: int) -> bytes:
    """One request as a JSON line; unknown fields are omitted. `tokens` counts the answered inputs."""
    tasks: set[str | None] = {seen.task for seen in ended.answers} or {ended.task}
    fields = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "id": request_id,
        "principal": principal,
        "method": ended.method,
        "route": ended.route,
        "status": ended.status,
        "problem": ended.problem,
        "ms": round(1000 * ended.seconds, 3),
        # A single task by name, several by their count.
        "task": next(iter(tasks)) if len(tasks) == 1 else None,
        "tasks": len(tasks) if len(tasks) > 1 else None,
        "answers": len(ended.answers) or None,
        "tokens": tokens if tokens and ended.answers else None,
        "trace_id": ended.trace_id,
    }
    known = {name: value for name, value in fields.items() if value is not None}
    return json.dumps(known, ensure_ascii=False, separators=(",", ":")).encode()
