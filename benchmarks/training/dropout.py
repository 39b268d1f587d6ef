"""Writes the dropout table of benchmarks/results/accuracy.md: BitFit through `fold`, and in a padded HF model.

    python benchmarks/training/dropout.py --data FOLDER [--seeds 3]

Rows, their order, steps, schedule, head and evaluations are the same. OneBERT drops out activations without their
biases, Hugging Face what its model drops out (decision 3). The table has the best validation metric
of each run.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel

from onebert_bench.pages import markdown_table, write_section
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_encoder.text.tokens import Tokens
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import train
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import CLIP

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "accuracy.md"
# Data set -> (training rows, epochs): small enough for a padded model on two cores, over several seeds.
RUNS = {"sst2": (1500, 2), "snli_small": (1000, 3), "mrpc": (600, 3)}


def main() -> None:
    """Runs both for every data set and seed, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    base = load_base()
    lines = []
    for name, (rows, epochs) in RUNS.items():
        dataset = load_dataset(str(arguments.data / name), DataOptions(train_rows=rows))
        settings = [
            Settings(
                method="bitfit",
                epochs=epochs,
                evals_per_epoch=1,
                patience=0,
                seed=seed,
                head_learning_rate="same",
                averaging=0,
                keep="best",
            )
            for seed in range(arguments.seeds)
        ]
        inputs = TaskInputs(base, dataset, settings[0].max_length)
        runs = [Run(inputs, one, name) for one in settings]
        ours = [dict(train(run).validation)[run.metric] for run in runs]
        theirs = [hugging_face(run) for run in runs]
        lines.append([name, f"{rows:,}", str(epochs), runs[0].metric, spread(ours), spread(theirs)])
        print(lines[-1], flush=True)
    header = ["data", "rows", "epochs", "metric, validation", "OneBERT", "Hugging Face"]
    write_section(PAGE, "dropout", markdown_table(header, lines))


def spread(values: list[float]) -> str:
    """Mean and standard deviation over the seeds."""
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


def hugging_face(run: Run) -> float:
    """Trains the run on a padded model with `requires_grad` flags, and returns its best metric."""
    torch.manual_seed(run.settings.seed)
    model = AutoModel.from_pretrained(find_base(DEFAULT_BASE))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias") and "pooler" not in name)
    head = torch.nn.Linear(run.base.config.hidden_size, len(run.data.labels))
    with torch.no_grad():
        for parameter, leaf in zip((head.weight, head.bias), head_leaves(run.init_values()), strict=True):
            parameter.copy_(leaf)
    trained = [parameter for parameter in [*model.parameters(), *head.parameters()] if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, weight_decay=0.0)
    forward = padded_forward(run.base, model, head)
    best = 0.0
    for step in range(run.steps):
        chosen = run.batch_at(step)
        model.train()
        tokens, targets = run.inputs.splits["train"].tokens, run.targets["train"]
        loss = F.cross_entropy(forward([tokens[i] for i in chosen]), torch.stack([targets[i] for i in chosen]))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        _, optimizer.param_groups[0]["lr"] = run.learning_rates_at(step)
        optimizer.step()
        if (step + 1) % run.schedule.eval_every == 0 or step + 1 == run.steps:
            model.eval()
            best = max(best, validation(run, forward))
    return best


def head_leaves(leaves: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The head's starting values."""
    return leaves["head.weight"].detach(), leaves["head.bias"].detach()


def padded_forward(base: Base, model: torch.nn.Module, head: torch.nn.Module) -> Callable[[list[Tokens]], Tensor]:
    """Mean pooling over a padded batch, the usual way."""

    def forward(tokens: list[Tokens]) -> Tensor:
        longest = max(map(len, tokens))

        def padded(values: Callable[[Tokens], list[int]]) -> Tensor:
            return torch.tensor([values(text) + [0] * (longest - len(text)) for text in tokens])

        mask = padded(lambda text: [1] * len(text))
        hidden = model(
            input_ids=padded(lambda text: text.input_ids),
            token_type_ids=padded(lambda text: text.type_ids),
            attention_mask=mask,
        ).last_hidden_state
        logits: Tensor = head((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        return logits

    return forward


def validation(run: Run, forward: Callable[[list[Tokens]], Tensor]) -> float:
    """The deciding metric on the validation split."""
    tokens = run.inputs.splits["validation"].tokens
    with torch.inference_mode():
        logits = torch.cat([forward(list(tokens[start : start + 64])) for start in range(0, len(tokens), 64)])
    return run.objective.evaluate(run.data.splits["validation"], tokens, list(logits.numpy()))[run.metric]


if __name__ == "__main__":
    main()
