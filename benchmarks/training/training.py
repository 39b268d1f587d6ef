"""Writes the training table of benchmarks/results/accuracy.md: one run beside the same run with Hugging Face's model.

    GOMP_SPINCOUNT=2000 python benchmarks/training/training.py     # the setting of the `onebert` command
        [--data FOLDER] [--steps 12] [--threads N] [--dtype float32]

Method, rows, order, steps and dtype are the same. One side is the Hugging Face model on padded batches with
`requires_grad` flags, and with `peft` for LoRA; the other is the step of `onebert train`. They take turns step by step
in one process; peak memory is measured in a process of its own for each.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from onebert_bench.machine import process
from onebert_bench.report import markdown_table, write_section
from onebert_bench.script import RESULTS, options
from onebert_bench.training_steps import (
    FLAGS,
    PEFT,
    ROWS,
    Step,
    hugging_face,
    made_up_rows,
    one_run,
    rates,
)
from onebert_encoder.base.base import load_base
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.inputs import TaskInputs

MEMORY_STEPS = 20


def main() -> None:
    """Measures every pair and writes the page."""
    threads = torch.get_num_threads()
    asked = options(__doc__, data=None, steps=12, threads=threads, dtype="float32")
    torch.set_num_threads(asked.threads)
    inputs = inputs_of(asked)
    lines = [compare(inputs, method, asked) for method in (*FLAGS, *PEFT)]
    header = ["method", "ours, tokens/s", "theirs, tokens/s", "ratio", "ours, peak MB", "theirs, peak MB"]
    print(table := markdown_table(header, lines))
    about = f"{inputs.data.name}, {asked.dtype}, cpu, {asked.threads} threads, batch 16"
    write_section(RESULTS / "accuracy.md", "training", f"{about}\n\n{table}")


def inputs_of(asked: argparse.Namespace) -> TaskInputs:
    """The data of the comparison, tokenized."""
    base = load_base(dtype=getattr(torch, asked.dtype))
    if asked.data:
        return TaskInputs(base, load_dataset(asked.data, DataOptions(train_rows=ROWS)), 128)
    return made_up_rows(base)


def compare(inputs: TaskInputs, method: str, asked: argparse.Namespace) -> list[str]:
    """One line of the table."""
    ours, theirs = rates([one_run(inputs, method), hugging_face(inputs, method)], asked.steps)
    memory = []
    for side in SIDES:
        with process() as own:
            memory.append(own.submit(peak_memory, side, method, asked).result())
    return [f"`{method}`", f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}", *(f"{one:,.0f}" for one in memory)]


SIDES: dict[str, Callable[[TaskInputs, str], Step]] = {"ours": one_run, "theirs": hugging_face}


def peak_memory(side: str, method: str, asked: argparse.Namespace) -> float:
    """Peak megabytes of a process that trains one side, after some steps."""
    torch.set_num_threads(asked.threads)
    step = SIDES[side](inputs_of(asked), method)
    for _ in range(MEMORY_STEPS):
        step()
    # The kernel's own peak of this program; `ru_maxrss` would be that of its parent, where that is larger.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main()
