"""The loop that every peer runs: takes jobs from the connection of its last argument, answers with logits and times.

A peer is a script that ends in `serve(prepare)`. `prepare` gets a `Job` and returns a function without arguments that
goes from token ids to logits; the time of `prepare` itself is not measured. Peers run in environments of their own, so
this file needs nothing but the standard library.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import distributions
from multiprocessing.connection import Connection
from typing import Any

Logits = Sequence[Sequence[float]]
Run = Callable[[], Logits]


@dataclass
class Job:
    """One batch and how to answer it.

    Attributes:
        base: folder of the base as Hugging Face writes it.
        tasks: delta files.
        task_of: for each sequence the index of its task.
        ids: token ids of each sequence, special tokens included.
        type_ids: segments of each sequence's tokens.
        dtype: `float32`, `bfloat16` or `int8`.
        threads: threads for computing.
        work: folder for files that are kept between runs, such as an exported model.
        resident: number of tasks in memory; if it is more than there are files, each file is loaded several times.
        shared: whether sequences with equal ids are one text for several tasks, which may be computed once.
        rotate: whether each run uses one task for all sequences, and the next run another one.
        note: settings that `prepare` has chosen, for the page.
    """

    base: str
    tasks: list[str]
    task_of: list[int]
    ids: list[list[int]]
    type_ids: list[list[int]]
    dtype: str
    threads: int
    work: str
    resident: int = 0
    shared: bool = False
    rotate: bool = False
    note: str = field(default="", init=False)


def serve(prepare: Callable[[Job], Run]) -> None:
    """Answers requests until the connection ends; if a request raises an exception, the answer is its message."""
    parent = Connection(int(sys.argv[-1]))
    runs: dict[str, Run] = {}
    answer: dict[str, Any] = {"versions": {distribution.name: distribution.version for distribution in distributions()}}
    with suppress(EOFError):
        while True:
            parent.send(answer)
            request = parent.recv()
            try:
                answer = _answer(request, prepare, runs)
            except Exception as error:  # whatever somebody else's library raises
                answer = {"error": f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"}


def _answer(request: dict[str, Any], prepare: Callable[[Job], Run], runs: dict[str, Run]) -> dict[str, Any]:
    name = request["name"]
    if request["do"] == "prepare":
        job = Job(**request["job"])
        runs[name] = prepare(job)
        logits = [[float(number) for number in row] for row in runs[name]()]
        return {"logits": logits, "note": job.note}
    if request["do"] == "run":
        for _ in range(request["untimed"]):
            runs[name]()
        return {"ms": [milliseconds(runs[name]) for _ in range(request["timed"])]}
    del runs[name]
    return {}


def milliseconds(run: Run) -> float:
    """Time of one run; it ends when the logits are on the host."""
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e3
