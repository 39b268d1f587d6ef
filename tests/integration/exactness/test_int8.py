"""Products in int8 through the whole encoder and a whole server, against the plain Hugging Face model."""

import numpy as np
import pytest
import torch

from bases import Reference, far_delta, torch_tensors
from batches import logits_of, packed
from onebert_encoder.base.base import load_base
from onebert_encoder.base.source import DEFAULT_BASE, find_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import stack_rows
from onebert_store.errors import GoldenMismatch
from servers import Server, Task
from stages import needs_kernels

pytestmark = needs_kernels

TEXTS = (
    "The parcel never came and nobody answers my mails.",
    "great!",
    "I was charged twice for the same order last week, please send one of the payments back to my card.",
    "How do I reset my password?",
    "what a lovely, funny, warm-hearted film",
    "It is not bad, but the screen was late and one corner is broken.",
)
# Parts of a delta that would carry the default base far from where anything trained ends, by a tenth.
SHRUNK = ("delta", "lora_A", "sparse_value", "adapter_up")
KINDS = ("bitfit", "lora", "sparse", "adapter", "scale", "output-scale")


def near_delta(spec, kind, seed):
    tensors = far_delta(spec, kind, "mean", labels=3, seed=seed)
    for name, value in tensors.items():
        if name.startswith(SHRUNK):
            tensors[name] = value * np.float32(0.1)
        elif name.startswith(("scale", "output_scale")):
            tensors[name] = 1 + (value - 1) * np.float32(0.1)
    return tensors


def test_every_kind_of_task_in_one_batch_on_the_default_base():
    base = load_base(dtype=torch.int8)
    tokens = base.tokenizer.encode(TEXTS, max_length=64)
    tasks = [near_delta(base.spec, kind, seed) for seed, kind in enumerate(KINDS)]
    rows = stack_rows(base, [fold(base, torch_tensors(tensors), "mean") for tensors in tasks])
    of_sequence = [row for row in range(len(tasks)) for _ in tokens]
    with torch.inference_mode():
        logits = logits_of(base, rows, packed(base, tokens * len(tasks), of_sequence))
    got = torch.stack(logits).view(len(tasks), len(TEXTS), 3)
    for kind, tensors, ours in zip(KINDS, tasks, got, strict=True):
        model = Reference(find_base(DEFAULT_BASE), tensors, "mean")
        want = torch.stack([model.logits(text.input_ids, text.type_ids) for text in tokens])
        # 8 bits for a token's range are off by 1 % of its usual numbers, by several where some are far larger: after 24
        # products 5 to 12 %. With another row, or without the correction for the zero points, it is over 90 %.
        assert float((ours - want).norm() / want.norm()) < 0.2, kind


def test_a_server_in_int8_says_so_proves_uploads_and_answers(tmp_path):
    text, tasks = "the parcel was late and the screen broken", [Task(seed=1), Task("everything", "pooler", seed=2)]
    with Server(tmp_path, dtype="int8") as server, server.client() as client:
        assert ", int8 on cpu, " in server.greeting
        assert client.base()["dtype"] == "int8"
        for i, task in enumerate(tasks):
            client.push(f"task-{i}", task.with_golden().file)
            (result,) = client.classify(f"task-{i}", text)["results"]
            for label, score in task.scores(text).items():
                # Logits of order 1, and a small base whose products add little to what passes beside them.
                assert result["scores"][label] == pytest.approx(score, abs=0.02)
        with pytest.raises(GoldenMismatch):
            client.push("wrong", Task(seed=3).with_golden(shift=5.0).file)
