"""Writes the training table of benchmarks/results/accuracy.md: one run beside the same run with Hugging Face's model.

    GOMP_SPINCOUNT=2000 python benchmarks/training/training.py     # the setting of the `onebert` command
        [--data FOLDER] [--steps 12] [--threads N] [--device cpu] [--dtype float32]

Method, rows, order, steps and dtype are the same. One side is the Hugging Face model on padded batches with
`requires_grad` flags, and with `peft` for LoRA; the other is the step of `onebert train`. They take turns step by step
in one process; peak memory is measured in a process of its own for each.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import peft
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel

from onebert_bench.pages import markdown_table, write_section
from onebert_bench.workload import sentences
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_encoder.text.tokens import Tokens
from onebert_training.data.dataset import Dataset, load_dataset
from onebert_training.data.examples import Split
from onebert_training.data.options import DataOptions
from onebert_training.fit import features
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import take_step
from onebert_training.fit.run import Run
from onebert_training.fit.settings import DEFAULT_METHOD, Settings
from onebert_training.fit.state import CLIP, State
from onebert_training.methods.plan import Plan

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "accuracy.md"
ROWS = 400
MEMORY_STEPS = 20
TOGETHER = (2, 4, 16)

# What is trained on the other side: parameters whose names have this in them, or what peft adds.
FLAGS = {"bitfit": "bias", "layernorm": "LayerNorm", DEFAULT_METHOD: "encoder.layer", "full": ""}
PEFT = {
    "lora:r=8": peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "key", "value"]),
    "bitfit+lora:targets=all": peft.LoraConfig(
        r=8, lora_alpha=16, target_modules=r"encoder.*(query|key|value|dense)", bias="all"
    ),
}

Step = Callable[[], int]
"""Takes one training step and returns how many tokens it trained on."""


def main() -> None:
    """Measures every pair and writes the page, or one side's memory when it is asked for in a child process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="a data set; else sentences of whole words")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--memory-of", nargs=2, metavar=("SIDE", "METHOD"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    if asked.memory_of:
        side, method = asked.memory_of
        print(json.dumps(peak_memory(SIDES[side](inputs_of(asked), method))))
        return
    inputs = inputs_of(asked)
    lines = [compare(inputs, method, asked) for method in (*FLAGS, *PEFT)]
    header = ["method", "ours, tokens/s", "theirs, tokens/s", "ratio", "ours, peak MB", "theirs, peak MB"]
    print(table := markdown_table(header, lines))
    facts = [*cached(inputs, asked.steps), *frozen(inputs)]
    facts += [together(inputs, asked.steps, width) for width in TOGETHER]
    print(more := markdown_table(["what", "measured"], facts))
    about = f"{inputs.data.name}, {asked.dtype}, {asked.device}, {asked.threads} threads, batch 16"
    write_section(PAGE, "training", f"{about}\n\n{table}\n\n{more}")


def inputs_of(asked: argparse.Namespace) -> TaskInputs:
    """The data of the comparison, tokenized."""
    base = load_base(dtype=getattr(torch, asked.dtype), device=asked.device)
    return TaskInputs(
        base, load_dataset(asked.data, DataOptions(train_rows=ROWS)) if asked.data else made_up(base), 128
    )


def made_up(base: Base) -> Dataset:
    """Made-up sentences, whose labels alternate."""
    texts = sentences(base, ROWS)
    gold = torch.arange(ROWS).remainder(2).numpy()
    return Dataset(
        "sentences",
        "single_label",
        ("no", "yes"),
        None,
        dict.fromkeys(("train", "validation"), Split(tuple(texts), gold)),
    )


def compare(inputs: TaskInputs, method: str, asked: argparse.Namespace) -> list[str]:
    """One line of the table."""
    ours, theirs = in_turns([one_run(inputs, method), hugging_face(inputs, method)], asked.steps)
    memory = [memory_of(side, method, asked) for side in SIDES]
    return [f"`{method}`", f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}", *(f"{one:,.0f}" for one in memory)]


class FromBottom(Plan):
    """A plan that enters at the embeddings, so that layers below the lowest trained one are computed at every step."""

    @property
    def lowest_layer(self) -> int:
        """Always the first layer."""
        return 0


def cached(inputs: TaskInputs, steps: int) -> list[list[str]]:
    """Compares, for SPAFIT with the lower half frozen, kept activations with computing them at every step."""
    middle = inputs.base.config.num_layers // 2
    method = f"spafit:{middle - 1}-{middle}-I"
    kept, limit = one_run(inputs, method), features.MAX_KEPT_BYTES
    features.MAX_KEPT_BYTES = 0
    computed = one_run(TaskInputs(inputs.base, inputs.data, 128), method)
    features.MAX_KEPT_BYTES = limit
    whole = one_run(inputs, method, FromBottom)
    for _ in range(-(-ROWS // 16)):
        kept()  # the first epoch, in which activations are computed and kept
    rates = in_turns([kept, computed, whole], steps)
    name = f"`{method}` after the first epoch, kept activations"
    return [
        [f"{name} / computed at every step, without dropout", f"{rates[0] / rates[1]:.2f}"],
        [f"{name} / the whole network in training mode", f"{rates[0] / rates[2]:.2f}"],
    ]


def frozen(inputs: TaskInputs) -> list[list[str]]:
    """Seconds of the first and of the second epoch of a frozen encoder's classifier."""
    step, epochs = one_run(TaskInputs(inputs.base, inputs.data, 128), "frozen"), []
    for _ in range(2):
        started = time.perf_counter()
        for _ in range(-(-ROWS // 16)):
            step()
        epochs.append(time.perf_counter() - started)
    return [
        [f"`frozen`, {name} epoch of {ROWS} rows", f"{took:.2f} s"]
        for name, took in zip(("first", "later"), epochs, strict=True)
    ]


def together(inputs: TaskInputs, steps: int, width: int) -> list[str]:
    """The time of many runs in one batch relative to one run alone."""
    runs = [Run(inputs, Settings(method="bitfit", seed=seed), "x") for seed in range(width)]
    pairs = [(run, State(run.init_values())) for run in runs]

    def step() -> int:
        before = sum(state.tokens for _, state in pairs)
        take_step(pairs)
        return sum(state.tokens for _, state in pairs) - before

    many, one = in_turns([step, one_run(inputs, "bitfit")], max(4, steps // 3))
    return [f"time of {width} runs in one batch / time of one", f"{width * one / many:.2f}"]


def one_run(inputs: TaskInputs, method: str, kind: type[Plan] = Plan) -> Step:
    """OneBERT's training step."""
    run = Run(inputs, Settings(method=method, epochs=1000), "x")
    run.plan = kind(**vars(run.plan))
    state = State(run.init_values())
    run.features("train")

    def step() -> int:
        before = state.tokens
        take_step([(run, state)])
        return state.tokens - before

    return step


def hugging_face(inputs: TaskInputs, method: str) -> Step:
    """The same step with Hugging Face's model on padded batches."""
    run = Run(inputs, Settings(method=method, epochs=1000), "x")
    device, dtype = inputs.base.device, inputs.base.dtype
    model = AutoModel.from_pretrained(find_base(DEFAULT_BASE)).to(device).train()
    if method in PEFT:
        model = peft.get_peft_model(model, PEFT[method])
    else:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(FLAGS[method] in name and "pooler" not in name)
    head = torch.nn.Linear(inputs.base.config.hidden_size, len(inputs.data.labels)).to(device)
    parameters = [p for p in [*model.parameters(), *head.parameters()] if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=run.learning_rate, weight_decay=0.0)
    tokens, at = inputs.splits["train"].tokens, iter(range(10**9))

    def step() -> int:
        chosen = run.batch_at(next(at)).tolist()
        texts = [tokens[i] for i in chosen]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = head(pooled(model, texts, device))
            loss = F.cross_entropy(logits, torch.stack([run.targets["train"][i] for i in chosen]).to(device))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return sum(map(len, texts))

    return step


def pooled(model: torch.nn.Module, texts: list[Tokens], device: torch.device) -> Tensor:
    """[texts, h], the mean over each text of a padded batch."""
    longest = max(map(len, texts))

    def padded(values: Callable[[Tokens], list[int]]) -> Tensor:
        return torch.tensor([values(text) + [0] * (longest - len(text)) for text in texts], device=device)

    mask = padded(lambda text: [1] * len(text))
    ids, types = padded(lambda text: text.input_ids), padded(lambda text: text.type_ids)
    hidden = model(input_ids=ids, token_type_ids=types, attention_mask=mask).last_hidden_state
    mean: Tensor = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return mean


SIDES: dict[str, Callable[[TaskInputs, str], Step]] = {"ours": one_run, "theirs": hugging_face}


def in_turns(sides: list[Step], steps: int) -> list[float]:
    """Tokens per second of each side, the median over the steps, which the sides take in turns."""
    rates: list[list[float]] = [[] for _ in sides]
    for turn in range(steps + 2):
        for side, found in zip(sides, rates, strict=True):
            started = time.perf_counter()
            tokens = side()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn >= 2:
                found.append(tokens / (time.perf_counter() - started))
    gc.collect()
    return [median(found) for found in rates]


def memory_of(side: str, method: str, asked: argparse.Namespace) -> float:
    """Peak megabytes of a process that trains one side."""
    options = ["--data", asked.data] if asked.data else []
    options += ["--threads", str(asked.threads), "--device", asked.device, "--dtype", asked.dtype]
    command = [sys.executable, __file__, *options, "--memory-of", side, method]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def peak_memory(step: Step) -> float:
    """Peak megabytes after some steps, of the GPU or of this process."""
    for _ in range(MEMORY_STEPS):
        step()
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    # The kernel's own peak of this program; `ru_maxrss` would be that of its parent, where that is larger.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main()
