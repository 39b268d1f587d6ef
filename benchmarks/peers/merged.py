"""Shared by several peers: merging a delta into the plain model, padding, and the best way to cut a batch."""

import json
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import logging

from worker import Job, Logits, Run, milliseconds

Forward = Callable[[Sequence[int]], np.ndarray]
"""Computes some of the job's sequences as one padded batch: their indices -> logits [sequences, labels]."""

logging.set_verbosity_error()
logging.disable_progress_bar()

# Module of a layer -> the parts whose maps it holds, one below the other.
FUSED = {"Wqkv": ("q", "k", "v"), "Wi": ("input", "gate")}
# transformers' names for the biases that ModernBERT's checkpoints lack; they are zero before a delta is added.
BIASES = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias"), True)


class MeanClassifier(torch.nn.Module):
    """A base's own encoder, and a linear map of the mean of its tokens."""

    def __init__(self, base: str) -> None:
        super().__init__()
        config = AutoConfig.from_pretrained(base, **BIASES)
        self.base_model = AutoModel.from_pretrained(base, config=config, dtype=torch.float32)
        self.classifier = torch.nn.Linear(config.hidden_size, 2)

    @property
    def config(self) -> object:
        """The encoder's."""
        return self.base_model.config

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SequenceClassifierOutput:
        hidden = self.base_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(hidden.dtype)
        return SequenceClassifierOutput(logits=self.classifier((hidden * mask).sum(1) / mask.sum(1)))


def read_delta(file: str) -> tuple[dict[str, torch.Tensor], str]:
    """The tensors of a delta file, and its pooling."""
    with safe_open(file, framework="pt") as content:
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - not a dict
        metadata = content.metadata()
    return tensors, json.loads(metadata["onebert"])["pooling"]


@cache
def is_bert(base: str) -> bool:
    """Whether a base is BERT: its tasks read the pooler, as its own class does; those of all others read the mean."""
    return AutoConfig.from_pretrained(base).model_type == "bert"


def load_model(job: Job, file: str | None = None) -> torch.nn.Module:
    """The base with SDPA, where its class has it, in the job's dtype, with a delta merged into its weights."""
    if is_bert(job.base):
        model = AutoModelForSequenceClassification.from_pretrained(job.base, num_labels=2, dtype=torch.float32)
    else:
        model = MeanClassifier(job.base)
    if file is not None:
        merge(model, file)
    return model.to(torch_dtype(job)).eval()


def torch_dtype(job: Job) -> torch.dtype:
    """The job's dtype."""
    return getattr(torch, job.dtype)


@torch.no_grad()
def merge(model: torch.nn.Module, file: str, sign: int = 1) -> None:
    """Adds a task's differences to a model in float32, or subtracts them (`sign` -1), and replaces the head."""
    tensors, _ = read_delta(file)
    parameters = dict(model.base_model.named_parameters())
    for name, value in tensors.items():
        kind, _, target = name.partition(".")
        if kind == "delta":
            _parameter(parameters, target).add_(value, alpha=sign)
        elif kind == "lora_A":
            _parameter(parameters, f"{target}.weight").add_(tensors[f"lora_B.{target}"] @ value, alpha=sign)
        elif kind == "sparse_index":
            _parameter(parameters, f"{target}.weight").view(-1)[value.long()] += (
                sign * tensors[f"sparse_value.{target}"]
            )
    model.classifier.weight.copy_(tensors["head.weight"])
    model.classifier.bias.copy_(tensors["head.bias"])


def _parameter(parameters: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The parameter with a delta's name for it, which may be a part of a fused one."""
    if name in parameters:
        return parameters[name]
    module, part, kind = name.rsplit(".", 2)
    parts = FUSED[module.rpartition(".")[2]]
    return parameters[f"{module}.{kind}"].chunk(len(parts))[parts.index(part)]


def pad(job: Job, chosen: Sequence[int]) -> dict[str, np.ndarray]:
    """A model's arguments for some of the job's sequences, padded to the longest of them, int64 [sequences, length].

    They are input ids, attention mask and, for BERT, segments.
    """
    padded = np.zeros((3, len(chosen), max(len(job.ids[i]) for i in chosen)), dtype=np.int64)
    for row, i in enumerate(chosen):
        length = len(job.ids[i])
        padded[0, row, :length], padded[1, row, :length], padded[2, row, :length] = job.ids[i], 1, job.type_ids[i]
    names = ("input_ids", "attention_mask", "token_type_ids")
    return dict(zip(names[: 3 if is_bert(job.base) else 2], padded, strict=False))


def tensors(job: Job, chosen: Sequence[int]) -> dict[str, torch.Tensor]:
    """Padded sequences as a model's arguments."""
    return {name: torch.from_numpy(array) for name, array in pad(job, chosen).items()}


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


def in_turns(job: Job, models: Sequence[Forward]) -> Run:
    """The texts of a task are one padded batch, and the models take turns; each stands for several of more tasks."""
    groups = by_task(job)
    job.note = f"{len(models)} models held"

    def run() -> np.ndarray:
        logits = np.zeros((len(job.ids), 2))
        for task, members in groups.items():
            logits[members] = models[task % len(models)](members)
        return logits

    return run
