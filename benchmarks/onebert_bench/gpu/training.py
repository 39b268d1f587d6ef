"""Steps of one training run beside Hugging Face's model."""

from onebert_bench.gpu.made import Made
from onebert_bench.report import Cell, Section
from onebert_bench.training_steps import FLAGS, PEFT, hugging_face, made_up_rows, one_run, rates
from onebert_bench.workload import BERT_BASE

# A run's steps are recorded by size of batch, of which there are about ten here, at the third batch of each; the other
# side loads its kernels meanwhile.
_OURS_BEFORE, _THEIRS_BEFORE = 50, 10


def training(made: Made) -> Section:
    """Tokens per second of each method beside the usual way, in turns."""
    inputs, folder = made_up_rows(made.base(BERT_BASE)), str(made.base_folder(BERT_BASE))
    rows: list[list[Cell]] = []
    for method in (*FLAGS, *PEFT):
        sides = one_run(inputs, method), hugging_face(inputs, method, folder)
        for side, before in zip(sides, (_OURS_BEFORE, _THEIRS_BEFORE), strict=True):
            for _ in range(made.count(before, 1)):
                side()
        ours, theirs = rates(list(sides), made.count(25, 1))
        rows.append([method, ours, theirs, ours / theirs])
    about = (
        "Steps of BERT-base in bfloat16 on sentences, batches of 16, in turns with Hugging Face's model on padded "
        f"batches with `requires_grad` flags, and with `peft` for LoRA; after {_OURS_BEFORE} and {_THEIRS_BEFORE} "
        "steps, in which recordings are made and kernels loaded."
    )
    return Section("Training", about, ("method", "ours, tokens/s", "theirs, tokens/s", "ratio"), rows)
