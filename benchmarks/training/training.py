"""Writes the training table of benchmarks/results/accuracy.md: one run beside the same run with Hugging Face's model.

    GOMP_SPINCOUNT=2000 python benchmarks/training/training.py     # the setting of the `onebert` command
        [--data FOLDER] [--steps 12] [--threads N] [--device cpu] [--dtype float32]

Method, rows, order, steps and dtype are the same. One side is the Hugging Face model on padded batches with
`requires_grad` flags, and with `peft` for LoRA; the other is the step of `onebert train`. They take turns step by step
in one process; peak memory is measured in a process of its own for each.
"""

import argparse
import gc
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import peft
import torch
from torch.nn import functional as F

from onebert_bench.hugging_face import Padded
from onebert_bench.machine import process
from onebert_bench.report import markdown_table, write_section
from onebert_bench.script import RESULTS, options
from onebert_bench.timing import in_turns, wait
from onebert_bench.workload import LABELS, sentences
from onebert_encoder.base.base import load_base
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
    """Measures every pair and writes the page."""
    threads = torch.get_num_threads()
    asked = options(__doc__, data=None, steps=12, threads=threads, device="cpu", dtype="float32")
    torch.set_num_threads(asked.threads)
    inputs = inputs_of(asked)
    lines = [compare(inputs, method, asked) for method in (*FLAGS, *PEFT)]
    header = ["method", "ours, tokens/s", "theirs, tokens/s", "ratio", "ours, peak MB", "theirs, peak MB"]
    print(table := markdown_table(header, lines))
    facts = [*cached(inputs, asked.steps), *frozen(inputs)]
    facts += [together(inputs, asked.steps, width) for width in TOGETHER]
    print(more := markdown_table(["what", "measured"], facts))
    about = f"{inputs.data.name}, {asked.dtype}, {asked.device}, {asked.threads} threads, batch 16"
    write_section(RESULTS / "accuracy.md", "training", f"{about}\n\n{table}\n\n{more}")


def inputs_of(asked: argparse.Namespace) -> TaskInputs:
    """The data of the comparison, tokenized."""
    base = load_base(dtype=getattr(torch, asked.dtype), device=asked.device)
    if asked.data:
        return TaskInputs(base, load_dataset(asked.data, DataOptions(train_rows=ROWS)), 128)
    split = Split(tuple(sentences(base, ROWS)), torch.arange(ROWS).remainder(2).numpy())
    made_up = Dataset("sentences", "single_label", LABELS, None, {"train": split, "validation": split})
    return TaskInputs(base, made_up, 128)


def compare(inputs: TaskInputs, method: str, asked: argparse.Namespace) -> list[str]:
    """One line of the table."""
    ours, theirs = rates([one_run(inputs, method), hugging_face(inputs, method)], asked.steps)
    memory = []
    for side in SIDES:
        with process() as own:
            memory.append(own.submit(peak_memory, side, method, asked).result())
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
    found = rates([kept, computed, whole], steps)
    name = f"`{method}` after the first epoch, kept activations"
    return [
        [f"{name} / computed at every step, without dropout", f"{found[0] / found[1]:.2f}"],
        [f"{name} / the whole network in training mode", f"{found[0] / found[2]:.2f}"],
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

    many, one = rates([step, one_run(inputs, "bitfit")], max(4, steps // 3))
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
    twin = Padded(inputs.base, labels=len(inputs.data.labels))
    if method in PEFT:
        twin.model = peft.get_peft_model(twin.model, PEFT[method])
    else:
        for name, parameter in twin.model.named_parameters():
            parameter.requires_grad_(FLAGS[method] in name and "pooler" not in name)
    twin.model.train()
    parameters = [p for p in [*twin.model.parameters(), *twin.head.parameters()] if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=run.learning_rate, weight_decay=0.0)
    tokens, at = inputs.splits["train"].tokens, iter(range(10**9))

    def step() -> int:
        chosen = run.batch_at(next(at)).tolist()
        texts = [tokens[i] for i in chosen]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            logits = twin.logits(twin.inputs(texts))
            loss = F.cross_entropy(logits, torch.stack([run.targets["train"][i] for i in chosen]).to(device))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return sum(map(len, texts))

    return step


SIDES: dict[str, Callable[[TaskInputs, str], Step]] = {"ours": one_run, "theirs": hugging_face}


def rates(sides: list[Step], steps: int) -> list[float]:
    """Tokens per second of each side, the median over the steps, which the sides take in turns."""

    def rate(side: Step) -> float:
        started = time.perf_counter()
        tokens = side()
        wait()
        return tokens / (time.perf_counter() - started)

    found = in_turns({number: partial(rate, side) for number, side in enumerate(sides)}, steps, 2)
    gc.collect()
    return list(map(median, found.values()))


def peak_memory(side: str, method: str, asked: argparse.Namespace) -> float:
    """Peak megabytes of a process that trains one side, of the GPU or of the process, after some steps."""
    torch.set_num_threads(asked.threads)
    step = SIDES[side](inputs_of(asked), method)
    for _ in range(MEMORY_STEPS):
        step()
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e6
    # The kernel's own peak of this program; `ru_maxrss` would be that of its parent, where that is larger.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main()
