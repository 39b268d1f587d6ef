"""What a task of each method weighs, and how much longer its texts take than those of a `bitfit` task.

    python benchmarks/serving/methods.py [--base …] [--dtype bfloat16] [--threads 1] [--repetitions 30]

Time is that of 64 sentences of 16 tasks in one batch, all of one method, the methods by turns in one process. What a
task trains is drawn at random; its size is that of a trained one. Without options it writes the table of
docs/guide/training.md.
"""

import sys

import torch

from onebert_bench.report import markdown_table, write_section
from onebert_bench.script import RESULTS, options
from onebert_bench.timing import interleaved_ms
from onebert_bench.workload import sentences, task_delta, tokenized
from onebert_encoder.base.base import load_base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold, to_tensors
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.sequences import Sequences
from onebert_server.engine.banks.bank import Bank
from onebert_store.file.format import dumps
from onebert_training.fit.settings import DEFAULT_METHOD
from onebert_training.methods.methods import parse_method

METHODS = (
    *("frozen", "red", "lora-xs", "layernorm", "ia3", "bitfit", "ia3:k,v,o,m2,inner,m3", "lora:r=8", "adapter:16"),
    *("bitfit+lora:targets=all", "bitfit+gamma+svd:r=8", DEFAULT_METHOD),
)
SEQUENCES, TASKS = 64, 16


def main() -> None:
    """Measures every method and writes the table."""
    asked = options(__doc__, base=None, dtype="float32", threads=1, repetitions=30)
    torch.set_num_threads(asked.threads)
    base = load_base(asked.base, dtype=getattr(torch, asked.dtype))
    tokens = tokenized(base, sentences(base, SEQUENCES))
    weights, runs = {}, {}
    for method in METHODS:
        bank = Bank(base)
        deltas = (task_delta(base, method, seed) for seed in range(TASKS))
        slots = [bank.install(fold(base, to_tensors(delta, base))) for delta in deltas]
        weights[method] = bank.size_at(slots[0])
        batch = pack(base, Sequences.of(tokens), [slots[i % TASKS] for i in range(SEQUENCES)])
        runs[method] = lambda rows=bank.rows, batch=batch: compute_logits(base, rows, batch)
    with torch.inference_mode():
        times = interleaved_ms(runs, asked.repetitions)
    lines = [
        (
            f"`{method}`" + ", the default" * (method == DEFAULT_METHOD),
            f"{parse_method(method).plan(base.anatomy, 'mean', base.spec.num_parameters).num_parameters:,}",
            size(len(dumps(task_delta(base, method, 0)))),
            size(weights[method]),
            f"{times[method] / times['bitfit']:.2f}",
        )
        for method in METHODS
    ]
    table = markdown_table(["`--method`", "numbers", "file", "in memory", "time of a batch"], lines)
    print(table)
    if len(sys.argv) == 1:
        write_section(RESULTS / "performance.md", "weights", table)


def size(count: int) -> str:
    """Bytes as a page says them."""
    return f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:.2f} MB"


if __name__ == "__main__":
    main()
