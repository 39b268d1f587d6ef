"""Steps of one training run beside the same steps with transformers."""

from onebert_bench.gpu.made import Made
from onebert_bench.report import Section
from onebert_bench.training_steps import hugging_face, made_up_rows, one_run, rates
from onebert_bench.workload import BERT_BASE
from onebert_training.fit.settings import DEFAULT_METHOD

_BEFORE = 10  # steps of each side that load kernels


def training(made: Made) -> Section:
    """Tokens per second of the default method beside the usual way, in turns."""
    inputs, folder = made_up_rows(made.base(BERT_BASE)), str(made.base_folder(BERT_BASE))
    sides = [one_run(inputs), hugging_face(inputs, folder)]
    for side in sides:
        for _ in range(made.count(_BEFORE, 1)):
            side()
    ours, theirs = rates(sides, made.count(25, 1))
    about = (
        "Steps of BERT-base in bfloat16 on sentences, batches of 16, by PyTorch's operations, in turns with "
        "transformers' model on padded batches, all layers trained."
    )
    header = ("method", "ours, tokens/s", "theirs, tokens/s", "ratio")
    return Section("Training", about, header, [[DEFAULT_METHOD, ours, theirs, ours / theirs]])
