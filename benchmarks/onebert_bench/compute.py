"""Measures OneBERT in process, beside a padded Hugging Face model and the bare matrix products; and 10,000 tasks."""

import time
from collections.abc import Callable
from functools import partial
from itertools import cycle

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_bench.hugging_face import Padded
from onebert_bench.machine import resident_bytes
from onebert_bench.timing import interleaved_ms
from onebert_bench.workload import bank_of, sentences, tokenized
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.batch import BASE_ROW, pack
from onebert_encoder.maths.precision import fast_dtype
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Rows
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens

SEQUENCES = TASKS = 64


def measured_dtypes(device: str) -> list[str]:
    """float32, and bfloat16 where the hardware multiplies it: elsewhere PyTorch refuses to pack a weight in it."""
    return ["float32", *(["bfloat16"] if fast_dtype(device) == torch.bfloat16 else [])]


def measure_compute(name: str | None, dtype: torch.dtype, device: str, repetitions: int) -> dict[str, float]:
    """Median milliseconds for 64 sentences: `hf`, `one`, `swap`, `mixed` and `floor`, each with `_ms`.

    `one` is one task for the whole batch, `swap` is one task for the batch and another one for the next batch, `mixed`
    is 64 tasks, one for each sentence; `floor` is only the matrix products of the linear layers on as many tokens.
    """
    base = load_base(name, dtype=dtype, device=device)
    tokens = tokenized(base, sentences(base, SEQUENCES))
    bank, slots = bank_of(base, "bitfit", TASKS)
    others = cycle(slots)
    padded = Padded(base, name, base.dtype)
    padded.model.eval()
    inputs = padded.inputs(tokens)
    with torch.inference_mode():
        times = interleaved_ms(
            {
                "hf_ms": lambda: padded.logits(inputs).cpu(),
                "one_ms": lambda: _forward(base, bank.rows, tokens, slots[:1] * SEQUENCES),
                "swap_ms": lambda: _forward(base, bank.rows, tokens, [next(others)] * SEQUENCES),
                "mixed_ms": lambda: _forward(base, bank.rows, tokens, slots),
                "floor_ms": matrix_products(base, sum(map(len, tokens))),
            },
            repetitions,
        )
    return {**times, "tokens": float(sum(map(len, tokens)))}


def measure_mixed(name: str | None, dtype: torch.dtype, device: str, repetitions: int) -> dict[str, float]:
    """`one_ms` and `mixed_ms` of `measure_compute`, alone."""
    base = load_base(name, dtype=dtype, device=device)
    tokens = tokenized(base, sentences(base, SEQUENCES))
    bank, slots = bank_of(base, "bitfit", TASKS)
    tasks = {"one_ms": slots[:1] * SEQUENCES, "mixed_ms": slots}
    with torch.inference_mode():
        return interleaved_ms(
            {kind: partial(_forward, base, bank.rows, tokens, slots) for kind, slots in tasks.items()}, repetitions
        )


def measure_resident(
    name: str | None, dtype: torch.dtype, device: str, tasks: int, repetitions: int
) -> dict[str, float]:
    """What many resident BitFit tasks cost, in bytes and in time.

    Bytes in three ways: by arithmetic (7h a layer in the compute dtype, and a head of two labels in float32), as the
    bank counts them, and by the growth of the process (on a GPU the rows are not in the process's memory). Time: of a
    batch whose tasks lie side by side in the bank, and of a batch whose tasks are spread over it.
    """
    base = load_base(name, dtype=dtype, device=device)
    tokens = tokenized(base, sentences(base, SEQUENCES))
    before, started = resident_bytes(files=False), time.perf_counter()
    bank, slots = bank_of(base, "bitfit", tasks)
    installed, grown = time.perf_counter() - started, resident_bytes(files=False) - before
    spread = [slots[(i * (tasks // SEQUENCES)) % tasks] for i in range(SEQUENCES)]
    config = base.config
    row = config.num_layers * (3 * config.hidden_size + config.intermediate_size) * dtype.itemsize
    head = 2 * (config.hidden_size + 1) * 4
    with torch.inference_mode():
        times = interleaved_ms(
            {
                "few_ms": lambda: _forward(base, bank.rows, tokens, slots[:SEQUENCES]),
                "many_ms": lambda: _forward(base, bank.rows, tokens, spread),
            },
            repetitions,
        )
    return {
        "tasks": float(tasks),
        "arithmetic_bytes": float(tasks * (row + head)),
        "held_bytes": float(bank.num_bytes - bank.size_at(BASE_ROW)),
        "process_bytes": float(grown),
        "install_ms": installed / tasks * 1e3,
        **times,
    }


def _forward(base: Base, rows: Rows, tokens: list[Tokens], slots: list[int]) -> None:
    compute_logits(base, rows, pack(base, Sequences.of(tokens), slots)).values.cpu()


def matrix_products(base: Base, tokens: int) -> Callable[[], Tensor]:
    """A function that computes only the four products of every layer on packed tokens, by what PyTorch has fastest."""
    anatomy = base.anatomy
    each = [[anatomy.of_layer[f"W_{part}"] for part in parts] for parts in anatomy.block.products.values()]
    shapes = [(sum(rows for rows, _ in maps), maps[0][1]) for maps in each] * anatomy.num_layers
    read = {size: torch.randn(tokens, size, device=base.device).to(base.dtype) for size in {size for _, size in shapes}}
    products = [
        (packed_product(torch.randn(shape, device=base.device).to(base.dtype), tokens), read[shape[1]])
        for shape in shapes
    ]

    def run() -> Tensor:
        return [product(x) for product, x in products][-1]

    return run


def packed_product(weight: Tensor, tokens: int) -> Callable[[Tensor], Tensor]:
    """On a CPU by oneDNN with a weight packed once, as PyTorch's compiler does it; these operators are private."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return lambda x: F.linear(x, weight)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, tokens)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
