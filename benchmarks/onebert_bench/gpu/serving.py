"""Sections on answering: exactness, one text, full batches, mixed tasks, many tasks resident."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor

from onebert_bench.gpu.made import BERT_BASE, MINILM, Made, bank_of, bitfit, crowd_of, lora, texts
from onebert_bench.gpu.section import Cell, Goal, Section
from onebert_bench.gpu.timing import launch_ms, row_ms, step_ms
from onebert_bench.timing import interleaved_ms
from onebert_bench.workload import sentence_lengths
from onebert_encoder.base.base import Base
from onebert_encoder.layout.dropout import NO_DROPOUT
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.choose import choose_kernels
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.graphs import CudaRecorder, Graphs
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Rows, stack_rows
from onebert_encoder.text.tokens import Tokens
from onebert_server.engine.host_copy import HostCopy

# Peak rate of dense bfloat16 products on an H100 or H200 by its datasheet, in TFLOP/s.
PEAK = 989.0
_KINDS = {"BitFit": bitfit, "LoRA r=8 q, v": lora}


def exactness(made: Made) -> Section:
    """Logits on the device against OneBERT's in float32 on the CPU, which the tests compare with Hugging Face."""
    rows: list[list[Cell]] = []
    exact = made.base(BERT_BASE, torch.float32, "cpu")
    inputs = texts(exact, np.random.default_rng(0).integers(1, made.scale.count(128, 20), 8).tolist())
    tasks = [(bitfit, lora)[i % 2](exact, i) for i in range(len(inputs))]
    wanted = _logits(exact, inputs, tasks)
    for dtype in (torch.float32, torch.bfloat16):
        base = made.base(BERT_BASE, dtype)
        with torch.inference_mode():
            kernels = choose_kernels(base, NO_DROPOUT).name
        error = float((_logits(base, inputs, tasks) - wanted).norm() / wanted.norm())
        rows.append([base.dtype_name, kernels, error])
    about = (
        "Eight texts of BERT-base's shape, BitFit and LoRA tasks in turn: |logits − float32 on the CPU| / |float32|."
    )
    return Section("Exactness", about, ("dtype", "kernels", "relative error"), rows)


def _logits(base: Base, inputs: Sequence[Tokens], tasks: Sequence[dict[str, Tensor]]) -> Tensor:
    moved = [{name: value.to(base.device) for name, value in tensors.items()} for tensors in tasks]
    rows = stack_rows(base, [fold(base, tensors) for tensors in moved])
    with torch.inference_mode():
        return torch.cat(compute_logits(base, rows, pack(base, inputs, range(len(inputs))))).cpu()


def latency(made: Made) -> Section:
    """One text alone, as the engine answers it: with a recording where there can be one, and without for comparison."""
    rows: list[list[Cell]] = []
    goals = []
    for name in (BERT_BASE, MINILM):
        base = made.base(name)
        for kind, make in _KINDS.items():
            bank, slots = bank_of(base, make, 1)
            for length in (11, 28, 128):
                inputs = texts(base, [length])
                for how, graphs in {"launched": None, "recorded": _graphs(base)}.items():
                    if how == "recorded" and graphs is None:
                        continue
                    with torch.inference_mode():
                        answer = partial(answer_on_host, base, bank.rows, inputs, slots, graphs)
                        taken = step_ms(answer, made.scale.count(300, 3))
                        start = partial(launch, base, bank.rows, inputs, slots, graphs)
                        host = launch_ms(start, made.scale.count(100, 2))
                    low, middle, high = min(taken), median(taken), float(np.quantile(taken, 0.99))
                    rows.append([name, kind, length, how, middle, low, high, host])
                    if (name, kind, length, how) == (BERT_BASE, "BitFit", 11, "recorded"):
                        goals.append(Goal("one text of BERT-base to its logits, ms", middle, 0.6, at_least=False))
    about = (
        "From token ids to logits on the host, one text after the other. `host` is what launching alone takes; what is "
        "recorded is replayed as one launch."
    )
    header = ("base", "task", "tokens", "how", "median ms", "min", "p99", "host ms")
    return Section("One text", about, header, rows, goals)


def _graphs(base: Base) -> Graphs | None:
    return Graphs(base, CudaRecorder(base.device)) if base.device.type == "cuda" else None


def throughput(made: Made) -> Section:
    """Full batches of one task."""
    rows: list[list[Cell]] = []
    goals = []
    full = made.scale.count(256, 4)
    for name, lengths in (
        (BERT_BASE, [128] * full),
        (BERT_BASE, sentence_lengths(4 * full)),
        (MINILM, [128] * full),
        (MINILM, sentence_lengths(4 * full)),
    ):
        base = made.base(name)
        bank, slots = bank_of(base, bitfit, 1)
        inputs = texts(base, lengths)
        with torch.inference_mode():
            step = partial(answer_on_host, base, bank.rows, inputs, slots * len(inputs))
            taken = median(step_ms(step, made.scale.count(15, 2)))
            host = launch_ms(partial(launch, base, bank.rows, inputs, slots * len(inputs)), made.scale.count(5, 1))
            overlapped = row_ms(overlapping(base, bank.rows, inputs, slots * len(inputs)), made.scale.count(20, 2))
        rate = product_flops(base, sum(lengths)) / overlapped / 1e9
        shape = f"{len(lengths)} × {lengths[0]}" if len(set(lengths)) == 1 else f"{len(lengths)} sentences"
        rows.append([name, shape, taken, host, overlapped, sum(lengths) / overlapped * 1e3, rate, rate / PEAK])
        if (name, len(set(lengths))) == (BERT_BASE, 1):
            goals.append(Goal("share of the peak, BERT-base, 256 × 128, bfloat16", rate / PEAK, 0.55, at_least=True))
    about = (
        "One BitFit task, bfloat16. `alone` waits for each batch, `overlapped` packs and launches the next while one "
        "runs, as the engine does under load; rates are of the latter and count the matrix products alone, against "
        f"{PEAK:.0f} TFLOP/s."
    )
    header = ("base", "texts", "alone ms", "host ms", "overlapped ms", "tokens/s", "TFLOP/s", "share of peak")
    return Section("Full batches", about, header, rows, goals)


def mixed(made: Made) -> Section:
    """Many tasks in one batch against one task."""
    rows: list[list[Cell]] = []
    goals = []
    count = made.scale.count(256, 6)
    for name, lengths in (
        (BERT_BASE, [128] * count),
        (BERT_BASE, sentence_lengths(count)),
        (MINILM, sentence_lengths(count)),
    ):
        base = made.base(name)
        inputs = texts(base, lengths)
        for kind, make in _KINDS.items():
            bank, slots = bank_of(base, make, count)
            times = _in_turns(made, base, bank.rows, inputs, {"one": slots[:1] * count, "mixed": slots})
            share = times["one"] / times["mixed"]
            shape = f"{count} × {lengths[0]}" if len(set(lengths)) == 1 else f"{count} sentences"
            rows.append([name, shape, kind, times["one"], times["mixed"], share])
            if len(set(lengths)) == 1:
                wanted = 0.9 if make is lora else 0.98
                goals.append(Goal(f"{count} {kind} tasks mixed, rate of one", share, wanted, at_least=True))
    about = "A task for each text against one task for all, in turns, each step waited for."
    return Section(
        "Mixed tasks", about, ("base", "texts", "method", "one, ms", "mixed, ms", "rate of one"), rows, goals
    )


def resident(made: Made) -> Section:
    """Ten thousand tasks in memory."""
    count, tasks = made.scale.count(256, 6), made.scale.count(10_000, 40)
    base = made.base(BERT_BASE)
    inputs = texts(base, [128] * count)
    bank, slots = crowd_of(base, tasks)
    spread = [slots[(i * (tasks // count)) % tasks] for i in range(count)]
    times = _in_turns(made, base, bank.rows, inputs, {"side by side": slots[:count], "spread": spread})
    share = times["side by side"] / times["spread"]
    rows = [[tasks, bank.num_bytes / 1e9, times["side by side"], times["spread"], share]]
    goals = [Goal(f"{tasks:,} tasks resident, mixed, rate of neighbors", share, 0.98, at_least=True)]
    header = ("BitFit tasks", "GB of the bank", "neighbors, ms", "spread over all, ms", "rate of neighbors")
    return Section("Many tasks resident", f"BERT-base's shape, {count} texts of 128 tokens.", header, rows, goals)


def _in_turns(
    made: Made, base: Base, rows: Rows, inputs: Sequence[Tokens], cases: dict[str, list[int]]
) -> dict[str, float]:
    with torch.inference_mode():
        runs = {name: partial(answer_on_host, base, rows, inputs, slots) for name, slots in cases.items()}
        return interleaved_ms(runs, made.scale.count(15, 2), made.device)


def launch(
    base: Base, rows: Rows, inputs: Sequence[Tokens], slots: Sequence[int], graphs: Graphs | None = None
) -> HostCopy:
    """Launches a step as the engine does."""
    return HostCopy(torch.cat(compute_logits(base, rows, pack(base, inputs, slots), graphs=graphs)))


def answer_on_host(
    base: Base, rows: Rows, inputs: Sequence[Tokens], slots: Sequence[int], graphs: Graphs | None = None
) -> None:
    """Runs a step and waits for its answers."""
    launch(base, rows, inputs, slots, graphs).read()


def overlapping(base: Base, rows: Rows, inputs: Sequence[Tokens], slots: Sequence[int]) -> Callable[[], None]:
    """A function that launches a step and then waits for the answers of the step before."""
    before: list[HostCopy] = []

    def step() -> None:
        before.append(launch(base, rows, inputs, slots))
        if len(before) > 1:
            before.pop(0).read()

    return step


def product_flops(base: Base, tokens: int) -> float:
    """Floating-point operations of the four matrix products of all layers."""
    h, f = base.config.hidden_size, base.config.intermediate_size
    return 2.0 * tokens * base.config.num_layers * (4 * h * h + 2 * h * f)
