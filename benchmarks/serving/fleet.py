"""How long `onebert diff` takes for all of many tasks: each live version beside its newest one, over rows of its own.

    python benchmarks/serving/fleet.py [--tasks 300] [--rows 200] [--base …]

A task is a random BitFit delta, and its newest version the same with a little noise; its rows are random sentences of
everyday lengths with the live version's answers for labels, in one of ten wrong. Server and command run side by side.
"""

import json
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from onebert_bench.machine import conditions, cpu_seconds
from onebert_bench.script import options, say
from onebert_bench.workload import LABELS, sentences, task_delta
from onebert_encoder.base.base import Base, load_base
from onebert_server.client import Client
from onebert_server.process import serving
from onebert_store.command.process import running
from onebert_store.file.delta import Delta
from onebert_store.registry.registry import Registry

NOISE, WRONG = 0.05, 0.1


def main() -> None:
    """Makes the store, serves it, writes the rows, and runs the command."""
    asked = options(__doc__, tasks=300, rows=200, base=None)
    with tempfile.TemporaryDirectory(prefix="onebert-fleet-") as folder:
        store, data = Path(folder) / "store", Path(folder) / "rows"
        data.mkdir()
        base = load_base(asked.base, dtype=torch.float32)
        fill(store, base, asked.tasks)
        texts = [sentences(base, asked.rows, seed) for seed in range(asked.tasks)]
        del base
        with serving(store, base=asked.base) as server:
            with Client(server.url) as client:
                for number, own in enumerate(texts):
                    write_rows(data / f"{name_of(number)}.jsonl", client, name_of(number), own)
            say("every task has its rows")
            report(server.url, server.pid, data, asked.tasks * asked.rows)


def name_of(number: int) -> str:
    """The name of a task."""
    return f"task-{number:03d}"


def fill(folder: Path, base: Base, tasks: int) -> None:
    """A store with two versions of each task, the first one live."""
    with Registry.open(folder) as registry:
        for number in range(tasks):
            live = task_delta(base, "bitfit", number)
            registry.add(name_of(number), live)
            registry.add(name_of(number), noisy(live, number))


def noisy(delta: Delta, seed: int) -> Delta:
    """The delta with noise of a share of each tensor's size."""
    rng = np.random.default_rng(seed)
    tensors = {
        name: tensor + (NOISE * tensor.std() * rng.normal(size=tensor.shape)).astype(tensor.dtype)
        for name, tensor in delta.tensors.items()
    }
    return replace(delta, tensors=tensors)


def write_rows(file: Path, client: Client, task: str, texts: Sequence[str]) -> None:
    """The texts with the live version's answers for labels, some of them wrong."""
    rng = np.random.default_rng(len(texts))
    answers = [one.label for one in client.classify(task, list(texts))]
    other = dict(zip(LABELS, reversed(LABELS), strict=True))
    labels = [other[str(label)] if rng.random() < WRONG else label for label in answers]
    rows = (json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels, strict=True))
    file.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")


def report(url: str, pid: int, data: Path, rows: int) -> None:
    """Runs the command and prints its seconds, and the processor seconds of server and command."""
    before, began = cpu_seconds(pid), time.monotonic()
    with running("diff", "--all", "--data", str(data), "--json", "--url", url) as command:
        found = json.loads(command.stdout.read() if command.stdout else "")
    seconds, server = time.monotonic() - began, cpu_seconds(pid) - before
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    flips = sum(one["flips"] for one in found["tasks"])
    compared = f"{len(found['tasks'])} tasks, {rows:,} rows, {flips:,} flips; {len(found['left_out'])} left out"
    print(f"{compared}; {conditions()}")
    print(f"{seconds:.0f} s; processor: server {server:.0f} s, command {own.ru_utime + own.ru_stime:.0f} s")


if __name__ == "__main__":
    main()
