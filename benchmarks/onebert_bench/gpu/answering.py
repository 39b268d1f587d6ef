"""Sections on answering: one text, full batches, mixed tasks."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np
import torch

from onebert_bench.gpu.made import BASES, Made, texts
from onebert_bench.report import Cell, Section
from onebert_bench.timing import in_turns, launch_ms, row_ms, step_ms
from onebert_bench.workload import BERT_BASE, LORA, MINILM, bank_of, sentence_lengths
from onebert_encoder.base.base import Base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.graphs import CudaRecorder, Graphs
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Rows
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from onebert_server.engine.host import HostCopy

_KINDS = {"BitFit": "bitfit", "LoRA r=8 q, v": LORA}


def latency(made: Made) -> Section:
    """One text alone, as the engine answers it: with a recording where there can be one, and without for comparison."""
    rows: list[list[Cell]] = []
    for name in BASES:
        base = made.base(name)
        recorded = recordings(base)
        for kind, method in _KINDS.items():
            bank, slots = bank_of(base, method, 1)
            for length in (11, 28, 128):
                inputs = texts(base, [length])
                for graphs in (None, recorded)[: 1 if recorded is None else 2]:
                    with torch.inference_mode():
                        answer = partial(answer_on_host, base, bank.rows, inputs, slots, graphs)
                        taken = step_ms(answer, made.count(200, 3))
                        start = partial(launch, base, bank.rows, inputs, slots, graphs)
                        host = launch_ms(start, made.count(50, 2))
                    low, middle, high = min(taken), median(taken), float(np.quantile(taken, 0.99))
                    how = "recorded" if graphs else "launched"
                    rows.append([name, kind, length, how, middle, low, high, host])
    about = (
        "From token ids to logits on the host, one text after the other. `host` is what launching alone takes; what is "
        "recorded is replayed as one launch."
    )
    header = ("base", "task", "tokens", "how", "median ms", "min", "p99", "host ms")
    return Section("One text", about, header, rows)


def throughput(made: Made) -> Section:
    """Full batches of one task."""
    rows: list[list[Cell]] = []
    full = made.count(256, 4)
    most = matrix_rate(made)
    for name in BASES:
        base = made.base(name)
        bank, slots = bank_of(base, "bitfit", 1)
        graphs = recordings(base)
        for lengths in ([128] * full, sentence_lengths(full)):
            batch = (base, bank.rows, texts(base, lengths), slots * len(lengths), graphs)
            with torch.inference_mode():
                taken = median(step_ms(partial(answer_on_host, *batch), made.count(15, 2)))
                host = launch_ms(partial(launch, *batch), made.count(5, 1))
                overlapped = row_ms(overlapping(*batch), made.count(20, 2))
            rate = product_flops(base, sum(lengths)) / overlapped / 1e9
            each = sum(lengths) / overlapped * 1e3
            rows.append([name, _shape(lengths), taken, host, overlapped, each, rate, rate / most])
    about = (
        "One BitFit task, bfloat16. `alone` waits for each batch, `overlapped` packs and launches the next while one "
        "runs, as the engine does under load; rates are of the latter and count the matrix products alone, against "
        f"{most:.0f} TFLOP/s: the best that one product of 8,192 × 8,192 × 8,192 reaches here."
    )
    header = ("base", "texts", "alone ms", "host ms", "overlapped ms", "tokens/s", "TFLOP/s", "share of it")
    return Section("Full batches", about, header, rows)


def matrix_rate(made: Made) -> float:
    """TFLOP/s of a large product of random numbers in bfloat16, the most that this device gives."""
    size = made.count(8192, 64)
    x, y = (torch.randn(size, size, device=made.device).bfloat16() for _ in range(2))
    return 2 * size**3 / row_ms(partial(torch.mm, x, y), made.count(20, 2)) / 1e9


def _shape(lengths: Sequence[int]) -> str:
    return f"{len(lengths)} × {lengths[0]}" if len(set(lengths)) == 1 else f"{len(lengths)} sentences"


def mixed(made: Made) -> Section:
    """Many tasks in one batch against one task."""
    rows: list[list[Cell]] = []
    count = made.count(256, 6)
    for name, lengths in (
        (BERT_BASE, [128] * count),
        (BERT_BASE, sentence_lengths(count)),
        (MINILM, sentence_lengths(count)),
    ):
        base = made.base(name)
        inputs = texts(base, lengths)
        for kind, method in _KINDS.items():
            bank, slots = bank_of(base, method, count)
            graphs = recordings(base)
            one, many = _in_turns(made, base, bank.rows, inputs, graphs, slots[:1] * count, slots)
            rows.append([name, _shape(lengths), kind, one, many, one / many])
    about = (
        "A task for each text against one task for all, in turns; as the engine does under load, the next step is "
        "packed and launched while one runs."
    )
    header = ("base", "texts", "method", "one, ms", "mixed, ms", "rate of one")
    return Section("Mixed tasks", about, header, rows)


def _in_turns(
    made: Made, base: Base, rows: Rows, inputs: Sequence[Tokens], graphs: Graphs | None, *slots: list[int]
) -> list[float]:
    """Milliseconds of a batch for each choice of slots."""
    many = made.count(8, 2)
    with torch.inference_mode():
        steps = [overlapping(base, rows, inputs, step_slots, graphs) for step_slots in slots]
        runs = {i: partial(row_ms, step, many) for i, step in enumerate(steps)}
        return list(map(median, in_turns(runs, made.count(10, 1), 2).values()))


def recordings(base: Base) -> Graphs | None:
    """As the engine has them."""
    return Graphs(base, CudaRecorder(base.device)) if base.device.type == "cuda" else None


def launch(
    base: Base, rows: Rows, inputs: Sequence[Tokens], slots: Sequence[int], graphs: Graphs | None = None
) -> HostCopy:
    """Launches a step as the engine does."""
    return HostCopy(compute_logits(base, rows, pack(base, Sequences.of(inputs), slots), graphs=graphs).values)


def answer_on_host(
    base: Base, rows: Rows, inputs: Sequence[Tokens], slots: Sequence[int], graphs: Graphs | None = None
) -> None:
    """Runs a step and waits for its answers."""
    launch(base, rows, inputs, slots, graphs).read()


def overlapping(
    base: Base, rows: Rows, inputs: Sequence[Tokens], slots: Sequence[int], graphs: Graphs | None
) -> Callable[[], None]:
    """A function that launches a step and then waits for the answers of the step before."""
    before: list[HostCopy] = []

    def step() -> None:
        before.append(launch(base, rows, inputs, slots, graphs))
        if len(before) > 1:
            before.pop(0).read()

    return step


def product_flops(base: Base, tokens: int) -> float:
    """Floating-point operations of the four matrix products of all layers."""
    h, f = base.config.hidden_size, base.config.intermediate_size
    return 2.0 * tokens * base.config.num_layers * (4 * h * h + 2 * h * f)
