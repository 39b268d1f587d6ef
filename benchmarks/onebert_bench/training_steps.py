"""Training steps of OneBERT, and the same steps with Hugging Face's model, as users take them."""

import gc
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch.nn import functional as F

from onebert_bench.hugging_face import Padded
from onebert_bench.timing import in_turns, wait
from onebert_bench.workload import LABELS, sentences
from onebert_encoder.base.base import Base
from onebert_training.data.dataset import Dataset
from onebert_training.data.examples import Split
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import take_step
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import CLIP, State

ROWS = 400

Step = Callable[[], int]
"""Takes one training step and returns how many tokens it trained on."""


def made_up_rows(base: Base) -> TaskInputs:
    """Sentences of words that mean nothing, with a label each, tokenized."""
    split = Split(tuple(sentences(base, ROWS)), torch.arange(ROWS).remainder(2).numpy())
    rows = {"train": split, "validation": split}
    return TaskInputs(base, Dataset("sentences", "single_label", LABELS, None, rows, digest=""), 128)


def one_run(inputs: TaskInputs) -> Step:
    """OneBERT's training step, by the default method."""
    run = Run(inputs, Settings(epochs=1000), "x")
    state = State(run.init_values())
    run.features("train")

    def step() -> int:
        before = state.tokens
        take_step([(run, state)])
        return state.tokens - before

    return step


def hugging_face(inputs: TaskInputs, base: str) -> Step:
    """The same step with Hugging Face's model of a folder, all layers trained, on padded batches."""
    run = Run(inputs, Settings(epochs=1000), "x")
    device, dtype = inputs.base.device, inputs.base.dtype
    twin = Padded(inputs.base, base, labels=len(inputs.data.labels))
    for name, parameter in twin.model.named_parameters():
        parameter.requires_grad_("encoder.layer" in name)
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


def rates(sides: list[Step], steps: int) -> list[float]:
    """Tokens per second of each side, the median over the steps, which the sides take in turns."""

    def rate(side: Step) -> float:
        started = time.perf_counter()
        tokens = side()
        wait()
        return tokens / (time.perf_counter() - started)

    rates = in_turns({number: partial(rate, side) for number, side in enumerate(sides)}, steps, 2)
    gc.collect()
    return list(map(median, rates.values()))
