"""What a task of each method weighs, and how much longer its texts take than those of a `bitfit` task.

    python benchmarks/serving/methods.py [--base …] [--dtype bfloat16] [--threads 1] [--repetitions 30]

Time is that of 64 sentences of 16 tasks in one batch, all of one method, the methods by turns in one process. What a
task trains is drawn at random; its size is that of a trained one. Without options it writes the table of
benchmarks/results/performance.md.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from onebert_bench.pages import markdown_table, write_section
from onebert_bench.timing import interleaved_ms
from onebert_bench.workload import bitfit_delta, sentences, tokenized
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold, to_tensors
from onebert_encoder.maths.predict import compute_logits
from onebert_server.engine.bank import Bank
from onebert_store.file.delta import Delta
from onebert_store.file.format import dumps
from onebert_training.fit.result import to_arrays
from onebert_training.fit.settings import DEFAULT_METHOD
from onebert_training.methods.methods import parse_method
from onebert_training.target_scale import TargetScale

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "performance.md"
METHODS = (
    "frozen",
    "red",
    "lora-xs",
    "layernorm",
    "ia3",
    "bitfit",
    "ia3:k,v,o,m2,inner,m3",
    "lora:r=8",
    "adapter:16",
    "bitfit+lora:targets=all",
    "bitfit+gamma+svd:r=8",
    DEFAULT_METHOD,
)
SEQUENCES, TASKS = 64, 16


def main() -> None:
    """Measures every method and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default=None)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    base = load_base(arguments.base, dtype=getattr(torch, arguments.dtype))
    tokens = tokenized(base, sentences(base, SEQUENCES))
    weights, asked = {}, {}
    for method in METHODS:
        bank = Bank(base)
        slots = [bank.install(fold(base, to_tensors(file(base, method, seed), base))) for seed in range(TASKS)]
        weights[method] = bank.size_at(slots[0])
        batch = pack(base, tokens, [slots[i % TASKS] for i in range(SEQUENCES)])
        asked[method] = lambda rows=bank.rows, batch=batch: compute_logits(base, rows, batch)
    with torch.inference_mode():
        times = interleaved_ms(asked, arguments.repetitions, "cpu")
    lines = [
        (
            f"`{method}`" + ", the default" * (method == DEFAULT_METHOD),
            f"{parse_method(method).plan(base.anatomy, 'mean', parameters(base)).num_parameters:,}",
            size(len(dumps(file(base, method)))),
            size(weights[method]),
            f"{times[method] / times['bitfit']:.2f}",
        )
        for method in METHODS
    ]
    table = markdown_table(["`--method`", "numbers", "file", "in memory", "time of a batch"], lines)
    print(table)
    if arguments == parser.parse_args([]):
        write_section(PAGE, "weights", table)


def drawn(base: Base, method: str, seed: int) -> dict[str, Tensor]:
    """The tensors of a random task, by their names in a delta file."""
    plan = parse_method(method).plan(base.anatomy, "mean", parameters(base))
    generator = torch.Generator().manual_seed(seed)
    values = {
        name: value.detach() + 0.02 * torch.randn(value.shape, generator=generator)
        if value.is_floating_point()
        else value
        for name, value in plan.init(base, 2, seed).items()
    }
    return plan.tensors(values, TargetScale(0.0, 1.0))


def file(base: Base, method: str, seed: int = 0) -> Delta:
    """The same task as a delta file has it."""
    tensors = to_arrays(drawn(base, method, seed))
    return Delta(bitfit_delta(base, 0).manifest.model_copy(update={"method": method}), tensors)


def parameters(base: Base) -> int:
    """How many parameters a base has."""
    return sum(tensor.numel() for tensor in base.params.values())


def size(count: int) -> str:
    """Bytes as a page says them."""
    return f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:.2f} MB"


if __name__ == "__main__":
    main()
