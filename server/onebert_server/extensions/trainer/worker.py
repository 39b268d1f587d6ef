"""The process that trains: started with the server, asked in lines of JSON, started again when it has ended."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from onebert_store.errors import OneBertError, ShuttingDown, TrainerFailed

logger = logging.getLogger("onebert.trainer")

# The process of the training package, which the server does not import; -P keeps the current directory off its path.
COMMAND = (sys.executable, "-P", "-m", "onebert_training.worker")

Done = Mapping[str, Any]


class Worker:
    """The training process; it computes with one thread, one request after another.

    Args:
        base: Hub id or folder of the base; None is the default base.
    """

    def __init__(self, base: str | None) -> None:
        self._command = [*COMMAND, *([base] if base else [])]
        self._lock = threading.Lock()
        self._closed = False
        self._process = self._started()

    def ask(self, request: Mapping[str, Any]) -> Done:
        """Returns the worker's answer, or raises its error; call it from one thread at a time.

        Raises:
            TrainerFailed: the process ended; it is started again.
            ShuttingDown: the server closes it.
        """
        process = self._running()
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")  # type: ignore[union-attr] # it is a pipe
            process.stdin.flush()  # type: ignore[union-attr]
            message = json.loads(process.stdout.readline())  # type: ignore[union-attr]
        except (OSError, ValueError):  # a closed pipe, or no whole line
            _end(process)
            if self._closed:
                raise ShuttingDown("the server is shutting down; the training is lost") from None
            logger.error("the training process ended with status %s", process.returncode)
            raise TrainerFailed("the training process ended; it is started again, and the training is lost") from None
        if "error" in message:
            kind = OneBertError.of_code.get(message["error"]["code"], OneBertError)
            raise kind(message["error"]["detail"])
        done: Done = message["done"]
        return done

    def close(self) -> None:
        """Ends the process; what it was training is lost."""
        with self._lock:
            self._closed = True
            _end(self._process)

    def _running(self) -> "subprocess.Popen[bytes]":
        """The process, started again if it has ended."""
        with self._lock:
            if self._closed:
                raise ShuttingDown("the server is shutting down")
            if self._process.poll() is not None:
                _end(self._process)
                self._process = self._started()
            return self._process

    def _started(self) -> "subprocess.Popen[bytes]":
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
            os.setpriority(os.PRIO_PROCESS, process.pid, 5)
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000", encoding="ascii")
        return process


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    # Leaving the block closes its pipes, which raises OSError if one has something unsent, and waits for its end.
    with suppress(OSError), process:
        pass
