"""Sections on answering: exactness, one text, full batches, mixed tasks."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor

from onebert_bench.gpu.made import BASES, Made, texts
from onebert_bench.report import Cell, Goal, Section
from onebert_bench.timing import device_ms, in_turns, interleaved_ms, launch_ms, row_ms, step_ms
from onebert_bench.workload import BERT_BASE, LORA, MINILM, bank_of, sentence_lengths, task_tensors
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

_KINDS = {"BitFit": "bitfit", "LoRA r=8 q, v": LORA}
_DTYPE = "bfloat16"


def exactness(made: Made) -> Section:
    """Logits on the device against OneBERT's in float32 on the CPU, which the tests compare with Hugging Face."""
    rows: list[list[Cell]] = []
    exact = made.base(BERT_BASE, torch.float32, "cpu")
    inputs = texts(exact, np.random.default_rng(0).integers(1, made.count(128, 20), 8).tolist())
    tasks = [task_tensors(exact, ("bitfit", LORA)[i % 2], i) for i in range(len(inputs))]
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


def invariance(made: Made) -> Section:
    """Whether a text has the same bits alone and among others where the setting asks for that, and its cost."""
    rows: list[list[Cell]] = []
    inputs_lengths = sentence_lengths(made.count(64, 8))
    for dtype in (torch.float32, torch.bfloat16):
        usual, invariant = (made.base(BERT_BASE, dtype, batch_invariant=own) for own in (False, True))
        inputs = texts(usual, inputs_lengths)
        tasks = [task_tensors(usual, ("bitfit", LORA)[i % 2], i) for i in range(len(inputs))]
        equal = []
        for base in (usual, invariant):
            among = _logits(base, inputs, tasks).view(len(inputs), -1)
            alone = [_logits(base, [text], [task]) for text, task in zip(inputs, tasks, strict=True)]
            equal.append(sum(torch.equal(one, other) for one, other in zip(among, alone, strict=True)) / len(inputs))
        full = texts(usual, [made.count(128, 16)] * made.count(256, 4))
        runs = {}
        for name, base in (("usual", usual), ("invariant", invariant)):
            bank, slots = bank_of(base, "bitfit", 1)
            runs[name] = partial(answer_on_host, base, bank.rows, full, slots * len(full))
        with torch.inference_mode():
            one, other = interleaved_ms(runs, made.count(10, 1)).values()
        rows.append([usual.dtype_name, *equal, other / one])
    about = (
        f"{len(inputs_lengths)} sentences of as many tasks, BERT-base: the share whose logits have the same bits alone "
        "and in one batch, as usual and with `ONEBERT_BATCH_INVARIANT=1`; and the time of a full batch with it, of the "
        "usual time."
    )
    return Section("Equal bits", about, ("dtype", "as usual", "invariant", "time"), rows)


def _logits(base: Base, inputs: Sequence[Tokens], tasks: Sequence[dict[str, Tensor]]) -> Tensor:
    moved = [{name: value.to(base.device) for name, value in tensors.items()} for tensors in tasks]
    rows = stack_rows(base, [fold(base, tensors) for tensors in moved])
    with torch.inference_mode():
        return torch.cat(compute_logits(base, rows, pack(base, inputs, range(len(inputs))))).cpu()


def latency(made: Made) -> Section:
    """One text alone, as the engine answers it: with a recording where there can be one, and without for comparison."""
    rows: list[list[Cell]] = []
    goals = []
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
                    if (name, kind, length, how) == (BERT_BASE, "BitFit", 11, "recorded"):
                        goals.append(Goal("one text to its logits, ms", _DTYPE, BERT_BASE, middle, 1.0))
    about = (
        "From token ids to logits on the host, one text after the other. `host` is what launching alone takes; what is "
        "recorded is replayed as one launch."
    )
    header = ("base", "task", "tokens", "how", "median ms", "min", "p99", "host ms")
    return Section("One text", about, header, rows, goals)


def throughput(made: Made) -> Section:
    """Full batches of one task."""
    rows: list[list[Cell]] = []
    goals = []
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
            if (name, len(set(lengths))) == (BERT_BASE, 1):
                on = f"{BERT_BASE}, 256 × 128"
                goals.append(Goal("share of the matrix rate", _DTYPE, on, rate / most, 0.55, at_least=True))
    about = (
        "One BitFit task, bfloat16. `alone` waits for each batch, `overlapped` packs and launches the next while one "
        "runs, as the engine does under load; rates are of the latter and count the matrix products alone, against "
        f"{most:.0f} TFLOP/s: the best that one product of 8,192 × 8,192 × 8,192 reaches here."
    )
    header = ("base", "texts", "alone ms", "host ms", "overlapped ms", "tokens/s", "TFLOP/s", "share of it")
    return Section("Full batches", about, header, rows, goals)


def matrix_rate(made: Made) -> float:
    """TFLOP/s of a large product of random numbers in bfloat16, the most that this device gives."""
    size = made.count(8192, 64)
    x, y = (torch.randn(size, size, device=made.device).bfloat16() for _ in range(2))
    return 2 * size**3 / device_ms(partial(torch.mm, x, y), made.count(20, 2)) / 1e9


def _shape(lengths: Sequence[int]) -> str:
    return f"{len(lengths)} × {lengths[0]}" if len(set(lengths)) == 1 else f"{len(lengths)} sentences"


def mixed(made: Made) -> Section:
    """Many tasks in one batch against one task."""
    rows: list[list[Cell]] = []
    goals = []
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
            waited = _waits(partial(launch, base, bank.rows, inputs, slots, graphs))
            rows.append([name, _shape(lengths), kind, one, many, one / many, waited])
            if len(set(lengths)) == 1:
                what = f"{count} {kind} tasks mixed, rate of one"
                goals.append(Goal(what, _DTYPE, BERT_BASE, one / many, 0.98, at_least=True))
    about = (
        "A task for each text against one task for all, in turns; as the engine does under load, the next step is "
        "packed and launched while one runs. Waits for the device while a step is launched are as PyTorch's debug mode "
        "for synchronizations counts them; none is meant."
    )
    header = ("base", "texts", "method", "one, ms", "mixed, ms", "rate of one", "waits")
    return Section("Mixed tasks", about, header, rows, goals)


def _waits(run: Callable[[], object]) -> int | None:
    if not torch.cuda.is_available():
        return None
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught, torch.inference_mode():
            warnings.simplefilter("always")
            run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in caught)


def _in_turns(
    made: Made, base: Base, rows: Rows, inputs: Sequence[Tokens], graphs: Graphs | None, *slots: list[int]
) -> list[float]:
    """Milliseconds of a batch for each choice of slots."""
    many = made.count(8, 2)
    with torch.inference_mode():
        steps = [overlapping(base, rows, inputs, own, graphs) for own in slots]
        runs = {i: partial(row_ms, step, many) for i, step in enumerate(steps)}
        return list(map(median, in_turns(runs, made.count(10, 1), 2).values()))


def recordings(base: Base) -> Graphs | None:
    """As the engine has them."""
    return Graphs(base, CudaRecorder(base.device)) if base.device.type == "cuda" else None


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
