"""Shared by several peers: merging a delta into the plain model, padding, and the best way to cut a batch."""

import json
from collections.abc import Callable, Sequence

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification
from transformers.utils import logging

from worker import Job, Logits, Run, milliseconds

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Padded input ids, attention mask and segments, int64 [sequences, length]."""

Forward = Callable[[Sequence[int]], np.ndarray]
"""Computes some of the job's sequences as one padded batch: their indices -> logits [sequences, labels]."""

logging.set_verbosity_error()
logging.disable_progress_bar()


def read_delta(file: str) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors of a delta file, and its pooling."""
    with safe_open(file, framework="pt") as found:
        tensors = {name: found.get_tensor(name) for name in found.keys()}  # noqa: SIM118 - not a dict
        metadata = found.metadata()
    return tensors, json.loads(metadata["onebert"])["pooling"]


def read_loras(job: Job) -> tuple[list[dict[str, torch.Tensor]], list[str], int]:
    """The tensors of the job's files, all of them LoRA tasks of one shape; their modules, and the rank."""
    deltas = [read_delta(file)[0] for file in job.tasks]
    modules = [name.removeprefix("lora_A.") for name in deltas[0] if name.startswith("lora_A.")]
    return deltas, modules, deltas[0][f"lora_A.{modules[0]}"].shape[0]


def load_model(job: Job, file: str | None = None) -> BertForSequenceClassification:
    """The base with SDPA in the job's dtype, with a delta merged into its weights."""
    model = AutoModelForSequenceClassification.from_pretrained(
        job.base, num_labels=2, attn_implementation="sdpa", dtype=torch.float32
    )
    if file is not None:
        merge(model, file)
    return model.to(job.device, torch_dtype(job)).eval()


def torch_dtype(job: Job) -> torch.dtype:
    """The job's dtype."""
    return getattr(torch, job.dtype)


@torch.no_grad()
def merge(model: BertForSequenceClassification, file: str, sign: int = 1) -> None:
    """Adds a task's differences to a model in float32, or subtracts them (`sign` -1), and replaces the head."""
    tensors, _ = read_delta(file)
    own = dict(model.bert.named_parameters())
    for name, value in tensors.items():
        kind, _, target = name.partition(".")
        if kind == "delta":
            own[target] += sign * value
        elif kind == "lora_A":
            own[f"{target}.weight"] += sign * (tensors[f"lora_B.{target}"] @ value)
        elif kind == "sparse_index":
            own[f"{target}.weight"].view(-1)[value.long()] += sign * tensors[f"sparse_value.{target}"]
    model.classifier.weight.copy_(tensors["head.weight"])
    model.classifier.bias.copy_(tensors["head.bias"])


def pad(job: Job, chosen: Sequence[int]) -> Arrays:
    """Input ids, attention mask and segments of some of the job's sequences, padded to the longest of them."""
    padded = np.zeros((3, len(chosen), max(len(job.ids[i]) for i in chosen)), dtype=np.int64)
    for row, i in enumerate(chosen):
        length = len(job.ids[i])
        padded[0, row, :length], padded[1, row, :length], padded[2, row, :length] = job.ids[i], 1, job.type_ids[i]
    return padded[0], padded[1], padded[2]


def tensors(job: Job, chosen: Sequence[int]) -> dict[str, torch.Tensor]:
    """Padded sequences as a model's arguments, on the job's device."""
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: torch.from_numpy(array).to(job.device) for name, array in zip(names, pad(job, chosen), strict=True)}


def torch_forward(job: Job, model: torch.nn.Module) -> Forward:
    """A `Forward` that computes a classifier's logits."""

    @torch.inference_mode()
    def forward(chosen: Sequence[int]) -> np.ndarray:
        return model(**tensors(job, chosen)).logits.float().cpu().numpy()

    return forward


def whole(job: Job, forward: Forward) -> Run:
    """Computes the batch in its own order, padded to its longest sequence."""
    everything = range(len(job.ids))
    return lambda: forward(everything)


def in_parts(job: Job, forward: Forward, size: int) -> Run:
    """Sorts the batch by length and computes it in parts of at most `size` sequences, each padded by itself."""

    def run() -> Logits:
        order = sorted(range(len(job.ids)), key=lambda i: len(job.ids[i]))
        rows = np.concatenate([forward(order[start : start + size]) for start in range(0, len(order), size)])
        return rows[np.argsort(order)]

    return run


def fastest(job: Job, forward: Forward) -> Run:
    """Tries the whole batch and sorted parts, and takes the fastest for this peer; the choice is noted."""
    count = len(job.ids)
    choices = {"one padded batch": whole(job, forward)}
    choices |= {f"sorted parts of {size}": in_parts(job, forward, size) for size in (4, 8, 16) if size < count}
    times = {}
    for name, run in choices.items():
        run()
        times[name] = milliseconds(run)
    job.note = min(times, key=times.__getitem__)
    return choices[job.note]


def by_task(job: Job) -> dict[int, list[int]]:
    """The sequences of each task."""
    groups: dict[int, list[int]] = {}
    for i, task in enumerate(job.task_of):
        groups.setdefault(task, []).append(i)
    return groups
