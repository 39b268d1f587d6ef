"""Runs sections in processes of their own, so that what one of them breaks is not broken for the others.

After some errors a GPU answers nothing more to the process that made them, and a program may also hang or end its
process. So a process runs section after section until one fails; the next one begins in a fresh process.
"""

import multiprocessing
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

from onebert_bench.report import Section

# By name, where its function is; what matters most comes first.
SECTIONS = {
    **dict.fromkeys(("exactness", "latency", "throughput", "mixed"), "answering"),
    "training": "processes",
    **dict.fromkeys(("profile", "kernels"), "kernels"),
    "resident": "answering",
    "http": "processes",
}

_SECONDS_TO_END = 10.0


class Task(NamedTuple):
    """The arguments of a process: those of `Made`, and the seconds for one section, its start included."""

    folder: Path
    device: str
    tiny: bool
    most_seconds: float


Report = Callable[[str, Section | str], None]
"""Is told of each section's name, and its result or why there is none."""


def run_section(name: str, task: Task) -> Section:
    """What a process does of one section."""
    from onebert_bench.gpu.made import Made  # noqa: PLC0415 - needs packages that may be missing

    function: Callable[[Made], Section] = getattr(import_module(f"onebert_bench.gpu.{SECTIONS[name]}"), name)
    return function(Made(*task[:3]))


def conduct(
    names: Sequence[str], task: Task, deadline: float, report: Report, run: Callable[[str, Task], Section] = run_section
) -> None:
    """Runs sections in order until `deadline` (of `time.monotonic`), at which a running one is ended, too."""
    left = list(names)
    while left and time.monotonic() < deadline:
        left = left[_in_one_process(left, task, deadline, report, run) :]
    for name in left:
        report(name, "no time was left")


def _in_one_process(
    names: Sequence[str], task: Task, deadline: float, report: Report, run: Callable[[str, Task], Section]
) -> int:
    """Runs sections until one fails; how many are done with, the failed one included."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sending, names, task, run))
    process.start()
    sending.close()
    try:
        for done, name in enumerate(names, 1):
            result = _received(receiving, process, min(deadline, time.monotonic() + task.most_seconds))
            report(name, result)
            if isinstance(result, str):
                return done
        process.join(_SECONDS_TO_END)
        return len(names)
    finally:
        _end(process)


def _received(receiving: Connection, process: SpawnProcess, until: float) -> Section | str:
    started = time.monotonic()
    if not receiving.poll(max(0.0, until - started)):
        return f"not done after {time.monotonic() - started:.0f} s"
    try:
        result: Section | str = receiving.recv()
    except EOFError:
        process.join()
        return f"its process ended with exit code {process.exitcode}"
    return result


def _end(process: SpawnProcess) -> None:
    """Ends a process and what it has started: servers by asking it, since they are in groups of their own."""
    if process.is_alive():
        process.terminate()
        process.join(_SECONDS_TO_END)
    process.kill()
    process.join()


def _work(sending: Connection, names: Sequence[str], task: Task, run: Callable[[str, Task], Section]) -> None:
    """What a process does."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name in names:
        try:
            sending.send(run(name, task))
        except Exception as error:
            traceback.print_exc()
            sending.send(f"{type(error).__name__}: {error}".splitlines()[0][:200])
            return
