"""The process that trains: started with the server, asked in lines of JSON, started again when it ends."""

import itertools
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from onebert_server.logs import log_failure
from onebert_store.errors import OneBertError, ShuttingDown, TrainerFailed

logger = logging.getLogger("onebert.trainer")

# The process of the training package, which the server does not import; -P keeps the current directory off its path.
COMMAND = (sys.executable, "-P", "-m", "onebert_training.worker")
# Seconds until a process that ended is started again; doubled each time that it said nothing, up to the second number.
RESTART_DELAY, RESTART_AT_MOST = 1.0, 60.0

OnProgress = Callable[[Mapping[str, Any]], None]
Done = Mapping[str, Any]


class _Request(NamedTuple):
    answer: "Future[Done]"
    on_progress: OnProgress


class Worker:
    """The training process; it computes with one thread.

    Args:
        base: Hub id or folder of the base; None is the default base.
    """

    def __init__(self, base: str | None) -> None:
        self._command = [*COMMAND, *([base] if base else [])]
        self._numbers = itertools.count()
        self._requests: dict[int, _Request] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._delay = RESTART_DELAY
        self._thread = threading.Thread(target=self._keep, name="onebert-trainer", daemon=True)
        # A pipe that is full must not block who asks.
        self._writer = ThreadPoolExecutor(1, "onebert-trainer-writer")

    def start(self) -> None:
        self._thread.start()

    def ask(self, request: Mapping[str, Any], on_progress: OnProgress) -> "Future[Done]":
        """Sends a request; `on_progress` is called on another thread, and gives the request up by a typed error.

        The future raises this error or the worker's, or TrainerFailed if the process ends. Cancel it to end the work.
        """
        answer: Future[Done] = Future()
        with self._lock:
            if self._process is None or self._process.stdin is None:
                raise TrainerFailed("the training process is being started again")
            number = next(self._numbers)
            self._requests[number] = _Request(answer, on_progress)
            self._writer.submit(_write, self._process, {"number": number, **request})
        answer.add_done_callback(lambda ended: self._forget(number, give_up=ended.cancelled()))
        return answer

    def close(self) -> None:
        """Ends the process; what it was training is lost."""
        self._closing.set()
        while self._thread.is_alive():
            with self._lock:
                if self._process is not None:
                    self._process.kill()
            self._thread.join(RESTART_DELAY)
        self._writer.shutdown()

    def _keep(self) -> None:
        while not self._closing.is_set():
            try:
                self._run()
            # Catch everything: a process that cannot be started or understood is started again.
            except Exception as error:
                log_failure(logger, "the training process", error)
            self._closing.wait(self._delay)
            self._delay = min(2 * self._delay, RESTART_AT_MOST)

    def _run(self) -> None:
        # The keys of the server, of its bucket and of its database are not the trainer's.
        credentials = ("ONEBERT_", "AWS_", "PG")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(credentials)}
        # A group of its own, so that Ctrl-C signals the server alone. Not a session: Linux may divide the processor
        # between sessions first, and only then by priority.
        process = subprocess.Popen(  # noqa: S603 - our own command, no shell
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment | {"OMP_NUM_THREADS": "1"},
            process_group=0,
        )
        # Before it imports anything: Linux gives the processor to others first, and ends this process first.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000", encoding="ascii")
        with self._lock:
            self._process = process
        try:
            # Closing a pipe whose reader has gone raises OSError.
            with suppress(OSError), process:
                try:
                    for line in process.stdout or ():
                        self._handle(json.loads(line))
                        self._delay = RESTART_DELAY
                except BaseException:
                    process.kill()
                    raise
        finally:
            self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Fails the requests of a process that has ended."""
        with self._lock:
            self._process, lost, self._requests = None, self._requests, {}
        error: OneBertError = ShuttingDown("the server is shutting down; the training is lost")
        if not self._closing.is_set():
            logger.error("the training process ended with status %s", process.returncode)
            error = TrainerFailed("the training process ended; it is started again, and the training is lost")
        for request in lost.values():
            _finish(request.answer, error)

    def _handle(self, message: Mapping[str, Any]) -> None:
        if (request := self._requests.get(message["number"])) is None:
            return  # given up
        if "progress" in message:
            try:
                request.on_progress(message["progress"])
            except OneBertError as error:
                self._forget(message["number"], give_up=True)
                _finish(request.answer, error)
        elif "error" in message:
            kind = OneBertError.of_code.get(message["error"]["code"], OneBertError)
            _finish(request.answer, kind(message["error"]["detail"]))
        else:
            _finish(request.answer, message["done"])

    def _forget(self, number: int, give_up: bool) -> None:
        """Forgets a request; with `give_up` the process computes it no further."""
        with self._lock:
            known = self._requests.pop(number, None)
            if known is not None and give_up and self._process is not None:
                self._writer.submit(_write, self._process, {"cancelled": number})


def _finish(answer: "Future[Done]", result: Done | OneBertError) -> None:
    """Ends a future, unless it is cancelled."""
    if not answer.set_running_or_notify_cancel():
        return
    if isinstance(result, OneBertError):
        answer.set_exception(result)
    else:
        answer.set_result(result)


def _write(process: subprocess.Popen[bytes], message: Mapping[str, Any]) -> None:
    # `_keep` finds out that a process has ended, and fails the request.
    with suppress(OSError, ValueError):
        if process.stdin is not None:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
