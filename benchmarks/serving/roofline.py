"""Writes the roofline of benchmarks/results/performance.md: a batch's time beside what memory and units allow.

    GOMP_SPINCOUNT=2000 python benchmarks/serving/roofline.py [--repetitions 40] [--write]

The machine is measured: all threads read an array by `torch.sum`, once of 1 GiB and once of the size of a pass's
weights, which a cache may hold; and they multiply large matrices by oneDNN and by our own products, of which the faster
counts. The work of a stage is counted: bytes of weights, which are read once for each pass, and operations (Williams et
al. 2009, "Roofline"). No pass can take less than the sum over its stages of the larger of weight bytes / bandwidth and
operations / peak; activations stay in a cache.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from onebert_bench.compute import measured_dtypes, packed_product
from onebert_bench.machine import conditions, machine
from onebert_bench.report import markdown_table, write_section
from onebert_bench.script import RESULTS, options, say
from onebert_bench.timing import step_ms
from onebert_bench.workload import bank_of, sentences, tokenized
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.compute.kernels.products import load_products
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.text.tokens import Tokens
from onebert_server.engine.memory import keep_freed_memory

TEXTS = (1, 64)
LABELS = 2
# Numbers of the array that is past any cache, and of each side of the large products.
FAR, SIDE = 2**28, 2048
# Operations for each number, about: of a LayerNorm with its residual and bias, and of GELU by a polynomial.
NORM, GELU = 10, 20
PASSES = ("pass", "bound, ms", "measured, ms", "bound / measured")
CEILINGS = ("dtype", "1 GiB, GB/s", "weights, MB", "as many bytes, GB/s", "oneDNN, GFLOP/s", "ours, GFLOP/s")


@dataclass(frozen=True)
class Stage:
    """The work of one stage of a pass, over all layers.

    Attributes:
        weights: bytes of the base or of tasks that are read once.
        operations: additions and multiplications.
        is_product: whether the units of the dtype compute it; otherwise those of float32.
    """

    weights: float
    operations: float
    is_product: bool = True


@dataclass(frozen=True)
class Roof:
    """The ceilings of a dtype on this machine: bytes per second of weights, operations per second of its units."""

    bandwidth: float
    products: float
    vectors: float

    def ms(self, stage: Stage) -> float:
        """The least milliseconds of a stage."""
        peak = self.products if stage.is_product else self.vectors
        return max(stage.weights / self.bandwidth, stage.operations / peak) * 1e3


def main() -> None:
    """Measures the machine and the passes, and prints the tables."""
    asked = options(__doc__, repetitions=40, write=False)
    keep_freed_memory()
    names = [*measured_dtypes("cpu"), *(["int8"] if load_products("cpu", torch.int8) else [])]
    far, vectors = bandwidth(4 * FAR), max(peak(torch.float32).values())
    ceilings, passes = [], []
    for name in names:
        say(name)
        base = load_base(dtype=getattr(torch, name))
        weights, peaks = sum(stage.weights for stage in products_of(base, 1)), peak(base.precision)
        roof = Roof(bandwidth(int(weights)), max(peaks.values()), vectors)
        measured = (far / 1e9, weights / 1e6, roof.bandwidth / 1e9, *(one / 1e9 for one in peaks.values()))
        ceilings.append([name, *(f"{number:,.0f}" for number in measured)])
        passes += [pass_line(base, roof, count, asked.repetitions) for count in TEXTS]
    given, at = f"python benchmarks/serving/roofline.py --repetitions {asked.repetitions}", machine("cpu")
    about = f"`GOMP_SPINCOUNT=2000 {given}`, {at['date']}: {at['processor']}, {conditions()}."
    print(text := "\n\n".join((about, markdown_table(CEILINGS, ceilings), markdown_table(PASSES, passes))))
    if asked.write:
        write_section(RESULTS / "performance.md", "roofline", text)


def pass_line(base: Base, roof: Roof, count: int, repetitions: int) -> list[str]:
    """Measures a pass of so many texts, and returns its line of the table."""
    tokens, title = tokenized(base, sentences(base, count)), f"{count} text{'s' * (count > 1)}"
    bound, took = sum(map(roof.ms, stages_of(base, tokens))), pass_ms(base, tokens, repetitions)
    return [f"{title}, {base.dtype_name}", f"{bound:.2f}", f"{took:.2f}", f"{bound / took:.2f}"]


def bandwidth(size: int) -> float:
    """Bytes per second at which all threads read an array of so many bytes, again and again; the best of some runs."""
    array = torch.ones(size // 4)
    return size / min(step_ms(array.sum, max(5, FAR // size))) * 1e3


def peak(precision: torch.dtype) -> dict[str, float]:
    """Operations per second of a large product by oneDNN and by us; 0 if it has none in this precision."""
    x, weight = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    found = {"onednn": 0.0, "ours": 0.0}
    with torch.inference_mode():
        with suppress(RuntimeError):  # PyTorch refuses what the processor does not multiply
            found["onednn"] = rate(onednn(x, weight, precision))
        if (own := load_products("cpu", precision)) is not None:
            packed, given = own.pack(weight), x.to(torch.bfloat16 if precision == torch.int8 else precision)
            found["ours"] = rate(lambda: own.multiply(given, packed))
    return found


def onednn(x: torch.Tensor, weight: torch.Tensor, precision: torch.dtype) -> Callable[[], object]:
    """A product by oneDNN."""
    if precision == torch.int8:
        integers = [(one * 10).to(torch.int8) for one in (x, weight)]
        return lambda: torch._int_mm(*integers)
    product, given = packed_product(weight.to(precision), SIDE), x.to(precision)
    return lambda: product(given)


def rate(run: Callable[[], object]) -> float:
    """Operations per second of a product of the large matrices, the best of some runs."""
    return 2 * SIDE**3 / min(step_ms(run, 5)) * 1e3


def stages_of(base: Base, tokens: Sequence[Tokens]) -> list[Stage]:
    """The work of a pass over texts, each with a BitFit task and a head of its own."""
    config, item, texts, count = base.config, base.dtype.itemsize, len(tokens), sum(map(len, tokens))
    layers, h, f = config.num_layers, config.hidden_size, config.intermediate_size
    squares = sum(len(text) ** 2 for text in tokens)
    biases, heads = texts * layers * (3 * h + f) * item, texts * LABELS * h
    embeddings = Stage(count * h * item, count * h * (2 + NORM), is_product=False)
    attention = Stage(0, layers * 4 * squares * h)
    between_products = Stage(biases, layers * count * (2 * h * NORM + f * GELU), is_product=False)
    pooling_and_heads = Stage(4 * heads, count * h + 2 * heads, is_product=False)
    return [embeddings, *products_of(base, count), attention, between_products, pooling_and_heads]


def products_of(base: Base, count: int) -> list[Stage]:
    """The products of every layer with the base's weights, for so many tokens."""
    anatomy, layers, stages = base.anatomy, base.anatomy.num_layers, []
    for parts in anatomy.block.products.values():
        maps = [anatomy.of_layer[f"W_{part}"] for part in parts]
        size = layers * sum(rows for rows, _ in maps) * maps[0][1]
        stages.append(Stage(size * base.precision.itemsize, 2 * count * size))
    return stages


def pass_ms(base: Base, tokens: list[Tokens], repetitions: int) -> float:
    """The least milliseconds of a pass, from token ids to logits."""
    bank, slots = bank_of(base, "bitfit", len(tokens))
    with torch.inference_mode():
        return min(step_ms(lambda: compute_logits(base, bank.rows, pack(base, tokens, slots)), repetitions))


if __name__ == "__main__":
    main()
