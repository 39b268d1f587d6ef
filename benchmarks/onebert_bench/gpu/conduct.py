"""Runs each section in a process of its own, so that what one of them breaks is not broken for the others.

After some errors a GPU answers nothing more to the process that made them, and a program may also hang or end its
process.
"""

import multiprocessing
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module

from onebert_bench.gpu.made import Made
from onebert_bench.machine import process
from onebert_bench.report import Section

# By name, where its function is; what matters most comes first.
SECTIONS = {
    **dict.fromkeys(("latency", "throughput", "mixed"), "answering"),
    "training": "training",
    "served": "served",
    "profile": "profile",
}


Report = Callable[[str, Section | str], None]
"""Is told of each section's name, and its result or why there is none."""


Run = Callable[[str, Made], Section]


def run_section(name: str, made: Made) -> Section:
    """What a process does of one section."""
    run: Callable[[Made], Section] = getattr(import_module(f"onebert_bench.gpu.{SECTIONS[name]}"), name)
    return run(made)


def conduct(
    names: Sequence[str], made: Made, most_seconds: float, deadline: float, report: Report, run: Run = run_section
) -> None:
    """Runs sections in order until `deadline` (of `time.monotonic`), at which a running one is ended, too.

    `most_seconds` are for one section, its start included.
    """
    for name in names:
        seconds = min(most_seconds, deadline - time.monotonic())
        report(name, _in_a_process(name, made, seconds, run) if seconds > 0 else "no time was left")


def _in_a_process(name: str, made: Made, seconds: float, run: Run) -> Section | str:
    """A section's result, or why there is none."""
    with process() as executor:
        running = executor.submit(_result, name, made, run)
        [child] = multiprocessing.active_children()
        try:
            return running.result(seconds)
        except TimeoutError:
            return f"not done after {seconds:.0f} s"
        except BrokenProcessPool:
            pass
        finally:
            child.kill()
    # Only the end of the pool has waited for its process.
    return f"its process ended with exit code {child.exitcode}"


def _result(name: str, made: Made, run: Run) -> Section | str:
    """Runs in the process of one section."""
    try:
        return run(name, made)
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
