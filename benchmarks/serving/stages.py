"""Measures the time of each stage of a batch, and writes the table and the picture of docs/performance.md.

    GOMP_SPINCOUNT=2000 python benchmarks/serving/stages.py     # the setting of the `onebert` command

The forward pass is one call; of what happens in it, products and attention also run alone, once for every layer, so all
of this is by one thread, who meets nobody. `whole` is the whole batch, from texts to logits, by one thread and by all.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor

from onebert_bench.pages import markdown_table, write_section
from onebert_bench.style import STYLE
from onebert_bench.timing import interleaved_ms
from onebert_bench.workload import bitfit_tensors, sentences, tokenized
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.blocks.running import LayerWeights
from onebert_encoder.layout.dropout import NO_DROPOUT
from onebert_encoder.maths.batch import Batch, pack
from onebert_encoder.maths.choose import answering_kernels, choose_forward
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Rows, stack_rows
from onebert_server.engine.memory import keep_freed_memory

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"
PICTURE = PAGE.with_suffix("") / "stages.png"
REPETITIONS = {1: 200, 64: 20}
DTYPES = (torch.float32, torch.bfloat16, torch.int8)
_PART = 384
STAGES = ("tokenize", "pack", "matrix products", "attention", "rest of the call", "rest")
CALL, WHOLE, TOGETHER = "call", "whole", "whole, all threads"


def main() -> None:
    """Measures one text and 64, in every dtype."""
    keep_freed_memory()
    found: dict[str, dict[str, float]] = {}
    for texts, repetitions in REPETITIONS.items():
        for dtype in DTYPES:
            base = load_base(dtype=dtype)
            found[f"{texts} text{'s' if texts > 1 else ''}, {base.dtype_name}"] = stage_ms(base, texts, repetitions)
    rows = [[name, *(f"{ms[stage]:.2f}" for stage in (*STAGES, WHOLE, TOGETHER))] for name, ms in found.items()]
    write_section(PAGE, "stages", markdown_table(["ms", *STAGES, WHOLE, TOGETHER], rows))
    draw(found, PICTURE)


def stage_ms(base: Base, texts: int, repetitions: int) -> dict[str, float]:
    """Median milliseconds of each stage, for a batch of `texts` texts with a BitFit task each.

    Raises:
        RuntimeError: this machine has no compiled kernels.
    """
    written = sentences(base, texts)
    rows = stack_rows(base, [fold(base, bitfit_tensors(base, seed)) for seed in range(texts)])
    heads = [head for head in rows.heads if head is not None]
    slots = list(range(texts))
    tokens = tokenized(base, written)
    batch = pack(base, tokens, slots)

    def whole() -> object:
        return compute_logits(base, rows, pack(base, tokenized(base, written), slots))

    with torch.inference_mode():
        forward = choose_forward(base, NO_DROPOUT)
        if forward is None:
            raise RuntimeError("there is no forward pass in one call on this machine")
        together = interleaved_ms({TOGETHER: whole}, repetitions)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        ms = interleaved_ms(
            {
                "tokenize": lambda: tokenized(base, written),
                "pack": lambda: pack(base, tokens, slots),
                **_of_layers(base, rows, batch),
                CALL: lambda: forward.classify(rows, batch, heads),
                WHOLE: whole,
            },
            repetitions,
        )
        torch.set_num_threads(threads)
    rest = ms[WHOLE] - ms["tokenize"] - ms["pack"] - ms[CALL]
    return {**ms, **together, "rest of the call": ms[CALL] - ms["matrix products"] - ms["attention"], "rest": rest}


def _of_layers(base: Base, rows: Rows, batch: Batch) -> dict[str, Callable[[], object]]:
    """What a layer's stages take by themselves, on random numbers."""
    (stage,) = batch.stages
    h, f = base.config.hidden_size, base.config.intermediate_size
    x, z, qkv = (torch.randn(len(batch.word), size).to(base.dtype) for size in (h, f, 3 * h))
    # As many tokens at a time as a thread takes in the call: more would leave its cache.
    parts = list(zip(x.split(_PART), z.split(_PART), strict=True))
    b_q, kernels = rows.shift[:, 0, :h], answering_kernels(base)
    return {
        "matrix products": lambda: [_products(one, a, b) for one in base.layers for a, b in parts],
        "attention": lambda: [kernels.attend(qkv, b_q, stage, base.config.num_heads) for _ in base.layers],
    }


def _products(layer: LayerWeights, x: Tensor, z: Tensor) -> None:
    for site, own in {"qkv": x, "m1": x, "m2": x, "m3": z}.items():
        layer.W[site](own)


def draw(found: Mapping[str, Mapping[str, float]], file: Path) -> None:
    """Draws a stacked bar for each batch, relative to the time of the whole batch, which stands beside it."""
    with mpl.rc_context(STYLE):
        figure = Figure((8, 0.9 + 0.42 * len(found)), layout="constrained")
        ax = figure.subplots()
        for bar, ms in enumerate(found.values()):
            left = 0.0
            for color, stage in enumerate(STAGES):
                part = max(0.0, ms[stage]) / ms[WHOLE]
                ax.barh(bar, part, left=left, color=mpl.colormaps["tab10"](color), label=stage if bar == 0 else None)
                left += part
            ax.text(left, bar, f" {ms[WHOLE]:.3g} ms", va="center", fontsize=8)
        ax.set_yticks(range(len(found)), list(found))
        ax.invert_yaxis()
        ax.set_xlim(0, 1.35)
        ax.set_xlabel("share of the time of the whole batch, by one thread")
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
        file.parent.mkdir(exist_ok=True)
        figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
