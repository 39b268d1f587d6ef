"""Runs each section in a process of its own, so that what one of them breaks is not broken for the others.

After some errors a GPU answers nothing more to the process that made them, and a program may also hang or end its
process.
"""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from onebert_bench.report import Section

# By name, where its function is; what matters most comes first.
SECTIONS = {
    **dict.fromkeys(("exactness", "latency", "throughput", "mixed"), "answering"),
    **dict.fromkeys(("profile", "kernels"), "kernels"),
}


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
    for name in names:
        seconds = min(task.most_seconds, deadline - time.monotonic())
        report(name, _in_a_process(name, task, seconds, run) if seconds > 0 else "no time was left")


def _in_a_process(name: str, task: Task, seconds: float, run: Callable[[str, Task], Section]) -> Section | str:
    """A section's result, or why there is none."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sending, name, task, run))
    process.start()
    sending.close()
    try:
        result: Section | str = receiving.recv() if receiving.poll(seconds) else f"not done after {seconds:.0f} s"
    except EOFError:
        process.join()
        result = f"its process ended with exit code {process.exitcode}"
    process.kill()
    process.join()
    return result


def _work(sending: Connection, name: str, task: Task, run: Callable[[str, Task], Section]) -> None:
    """Runs in the process of one section."""
    try:
        sending.send(run(name, task))
    except Exception as error:
        traceback.print_exc()
        sending.send(f"{type(error).__name__}: {error}".splitlines()[0][:200])
