"""Sections on training: one run beside Hugging Face's model, and many runs in one batch."""

from onebert_bench.gpu.made import Made
from onebert_bench.report import Cell, Section
from onebert_bench.training_steps import FLAGS, PEFT, hugging_face, made_up_rows, one_run, rates, together
from onebert_bench.workload import BERT_BASE

_TOGETHER = (2, 4, 16)


def training(made: Made) -> Section:
    """Tokens per second of each method beside the usual way, in turns; and runs that share their batches."""
    inputs, folder = made_up_rows(made.base(BERT_BASE)), str(made.base_folder(BERT_BASE))
    rows: list[list[Cell]] = []
    for method in (*FLAGS, *PEFT):
        ours, theirs = rates([one_run(inputs, method), hugging_face(inputs, method, folder)], made.count(12, 1))
        rows.append([method, ours, theirs, ours / theirs])
    for width in _TOGETHER:
        ratio = width / together(inputs, made.count(12, 1), width)
        rows.append([f"bitfit, {width} runs in one batch", None, None, ratio])
    about = (
        "Steps of BERT-base in bfloat16 on sentences, batches of 16, in turns with Hugging Face's model on padded "
        "batches with `requires_grad` flags, and with `peft` for LoRA. The last rows are the rate of all runs relative "
        "to one alone."
    )
    return Section("Training", about, ("method", "ours, tokens/s", "theirs, tokens/s", "ratio"), rows)
