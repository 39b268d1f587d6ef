"""Measures the time of each stage of a batch, and writes the table and the picture of docs/performance.md.

    GOMP_SPINCOUNT=2000 python benchmarks/stages.py     # the setting of the `onebert` command

Each stage runs alone on its inputs in a real batch, once for every layer; `whole` is the whole batch, from texts to
logits.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor

from onebert_bench.pages import markdown_table, write_section
from onebert_bench.timing import interleaved_ms
from onebert_bench.workload import bitfit_tensors, sentences, tokenized
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.compute.kernels.plain import PlainKernels
from onebert_encoder.compute.kernels.protocol import Gain, Kernels
from onebert_encoder.layout.dropout import NO_DROPOUT
from onebert_encoder.maths.batch import Batch, pack
from onebert_encoder.maths.choose import answering_kernels
from onebert_encoder.maths.encode import embed, encode
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.heads import classify
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.rows import Rows, stack_rows
from onebert_server.engine.memory import keep_freed_memory
from onebert_training.report.style import STYLE

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
PICTURE = PAGE.with_suffix("") / "stages.png"
REPETITIONS = {1: 60, 64: 15}
DTYPES = (torch.float32, torch.bfloat16)
WHOLE = "whole"


def main() -> None:
    """Measures one text and 64, in both dtypes, with the fast kernels and with the plain ones."""
    keep_freed_memory()
    found: dict[str, dict[str, float]] = {}
    for texts, repetitions in REPETITIONS.items():
        for dtype in DTYPES:
            base = load_base(dtype=dtype)
            fast = answering_kernels(base)
            for kernels in (PlainKernels(base.activation), fast):
                name = f"{texts} text{'s' if texts > 1 else ''}, {base.dtype_name}, {kernels.name}"
                found[name] = stage_ms(base, kernels, texts, repetitions)
    stages = list(next(iter(found.values())))
    rows = [[name, *(f"{ms[stage]:.2f}" for stage in stages)] for name, ms in found.items()]
    write_section(PAGE, "stages", markdown_table(["ms", *stages], rows))
    draw(found, PICTURE)


def stage_ms(base: Base, kernels: Kernels, texts: int, repetitions: int) -> dict[str, float]:
    """Median milliseconds of each stage, for a batch of `texts` texts with a BitFit task each."""
    written = sentences(base, texts)
    rows = stack_rows(base, [fold(base, bitfit_tensors(base, seed)) for seed in range(texts)])
    heads = [head for head in rows.heads if head is not None]
    slots = list(range(texts))
    tokens = tokenized(base, written)
    batch = pack(base, tokens, slots)
    # With gradients enabled `encode` chooses the plain kernels, although nothing here requires a gradient.
    with torch.enable_grad() if kernels.name == "plain" else torch.inference_mode():
        x = encode(base, rows, batch)
        return interleaved_ms(
            {
                "tokenize": lambda: tokenized(base, written),
                "pack": lambda: pack(base, tokens, slots),
                "embeddings": lambda: embed(base, rows, kernels, batch, NO_DROPOUT),
                **_of_layers(base, kernels, rows, batch, x),
                "pool, heads": lambda: classify(heads, batch, x),
                WHOLE: lambda: compute_logits(base, rows, pack(base, tokenized(base, written), slots)),
            },
            repetitions,
        )


def _of_layers(base: Base, kernels: Kernels, rows: Rows, batch: Batch, x: Tensor) -> dict[str, Callable[[], object]]:
    """The stages of a layer. Some overwrite their inputs, which changes the numbers but not the time."""
    (stage,) = batch.stages
    config, layers = base.config, base.layers
    h, f = config.hidden_size, config.intermediate_size
    b_q, b_m1, _, b_m2 = torch.split(rows.shift[:, 0], [h, h, h, f], dim=1)
    gain = Gain(layers[0].g_LN1, rows.gain[:, 0, 0], None)
    qkv, y, z = layers[0].W_qkv(x), layers[0].W_m1(x), layers[0].W_m2(x)

    def each(run: Callable[[], object], times: int = 1) -> Callable[[], object]:
        return lambda: [run() for _ in range(times * len(layers))]

    return {
        "matrix products": lambda: [(layer.W_qkv(x), layer.W_m1(x), layer.W_m2(x), layer.W_m3(z)) for layer in layers],
        "attention": each(lambda: kernels.attend(qkv, b_q, stage, config.num_heads)),
        "sum, bias, LayerNorm": each(lambda: kernels.add_norm(y, x, b_m1, stage, gain, config.eps), 2),
        "bias, GELU": each(lambda: kernels.add_activate(z, b_m2, stage)),
    }


def draw(found: Mapping[str, Mapping[str, float]], file: Path) -> None:
    """Draws a stacked bar for each batch, relative to the plain kernels' time, with both times beside it."""
    with mpl.rc_context(STYLE):
        figure = Figure((8, 0.9 + 0.42 * len(found)), layout="constrained")
        ax = figure.subplots()
        for bar, (name, ms) in enumerate(found.items()):
            plain = sum_of(found[name.rsplit(", ", 1)[0] + ", plain"])
            left = 0.0
            for color, (stage, value) in zip(mpl.colormaps["tab10"].colors, stages_of(ms).items(), strict=False):
                ax.barh(bar, value / plain, left=left, color=color, label=stage if bar == 0 else None)
                left += value / plain
            # The sum of the stages differs from the time of the whole batch, so both are shown.
            text = f" {ms[WHOLE]:.3g} ms; stages alone {sum_of(ms):.3g}"
            ax.text(left, bar, text, va="center", fontsize=8)
        ax.set_yticks(range(len(found)), list(found))
        ax.invert_yaxis()
        ax.set_xlim(0, 1.35)
        ax.set_xlabel("sum of the stages, each alone, as a share of that with plain kernels")
        figure.legend(loc="outside upper center", ncols=4, frameon=False)
        file.parent.mkdir(exist_ok=True)
        figure.savefig(file, dpi=150)


def stages_of(ms: Mapping[str, float]) -> dict[str, float]:
    """The times without the whole batch."""
    return {stage: value for stage, value in ms.items() if stage != WHOLE}


def sum_of(ms: Mapping[str, float]) -> float:
    """Milliseconds of all stages."""
    return sum(stages_of(ms).values())


if __name__ == "__main__":
    main()
