"""Runs peers as child processes, of which only the one that is asked runs; all others are stopped meanwhile.

A stopped process (SIGSTOP) takes no processor time, even if its idle threads spin or poll, and continues unchanged
(SIGCONT). So no peer needs a setting that keeps its idle threads quiet and might make it slower.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from pathlib import Path

from onebert_bench.report import Json
from onebert_bench.suite.peers import PeerFailed

TIMEOUT_S = 600.0


class Worker:
    """A peer's script in its own interpreter.

    Args:
        python: the interpreter.
        script: a file that calls `serve` of benchmarks/peers/worker.py, and its arguments.
        threads: threads for computing.
        log: file that takes what it prints.
        settings: more environment variables.
    """

    def __init__(
        self,
        python: Path,
        script: Sequence[Path | str],
        threads: int,
        log: Path,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._log = log
        self._connection, theirs = Pipe()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [python, *script, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env=environment(threads) | dict(settings or {}),
                process_group=0,
            )
        theirs.close()
        try:
            self.versions: dict[str, str] = self._answer()["versions"]
        except PeerFailed:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def ask(self, **request: object) -> Json:
        """Continues the process, sends one request, and stops it again when it has answered.

        Raises:
            PeerFailed: the peer answered with an error, ended, or took longer than ten minutes and was killed.
        """
        if self._process.poll() is not None:
            raise PeerFailed(self._last_words())
        self._signal(signal.SIGCONT)
        try:
            self._connection.send(request)
            answer = self._answer()
        except BrokenPipeError:
            raise PeerFailed(self._last_words()) from None
        finally:
            self._signal(signal.SIGSTOP)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer

    def close(self) -> None:
        """Ends the process."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._connection.close()

    def _answer(self) -> Json:
        if not self._connection.poll(TIMEOUT_S):
            # The worker is closed, since a late answer would be taken for the answer to the next request.
            self.close()
            raise PeerFailed(f"it did not answer within {TIMEOUT_S:.0f} s")
        try:
            answer: Json = self._connection.recv()
        except (EOFError, ConnectionError):
            raise PeerFailed(self._last_words()) from None
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it ended without a word")

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)


def environment(threads: int) -> dict[str, str]:
    """Environment variables of every peer's process: the same number of threads, and no network."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ONEBERT_", "GOMP_"))}
    quiet = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    return inherited | quiet | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
