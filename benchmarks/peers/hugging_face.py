"""transformers with merged tasks: as usual, at its best, compiled, with a model a task; and the reference.

Argument: the name of an entry.
"""

import sys

import numpy as np
import torch
import torch._inductor.config

from merged import by_task, fastest, in_turns, load_model, merge, read_delta, tensors, torch_forward, whole
from worker import Job, Run, serve

HELD = 8


def padded(job: Job) -> Run:
    """As usual: SDPA attention, the batch padded to its longest text."""
    return whole(job, torch_forward(job, load_model(job, job.tasks[0])))


def sorted_by_length(job: Job) -> Run:
    """At its best on a mixed batch: sorted by length and cut where that is fastest."""
    return fastest(job, torch_forward(job, load_model(job, job.tasks[0])))


def compiled(job: Job) -> Run:
    """`dynamic=True` because texts differ in length; on CPU with freezing, which Inductor needs to pack weights."""
    torch._inductor.config.freezing = True
    torch.compiler.reset()
    return fastest(job, torch_forward(job, torch.compile(load_model(job, job.tasks[0]), dynamic=True)))


def swapped(job: Job) -> Run:
    """One whole model for each task: the texts of a task are one padded batch, and the models take turns.

    It holds at most eight models, which stand for all tasks: more would fill the memory, and eight already exceed every
    cache, so that a batch takes as long as with all models. Answers are right only for the first eight tasks.
    """
    return in_turns(job, [torch_forward(job, load_model(job, file)) for file in job.tasks[:HELD]])


def reference(job: Job) -> Run:
    """The reference for all answers: each sequence alone, unpadded, in float32, through the plain merged model."""
    model = load_model(job)

    @torch.inference_mode()
    def run() -> np.ndarray:
        logits = np.zeros((len(job.ids), 2))
        for task, members in by_task(job).items():
            file = job.tasks[task]
            merge(model, file)
            for i in members:
                logits[i] = answer(model, job, i, read_delta(file)[1]).numpy()
            merge(model, file, sign=-1)
        return logits

    return run


def answer(model: torch.nn.Module, job: Job, i: int, pooling: str) -> torch.Tensor:
    """The logits of one sequence."""
    if pooling == "pooler":
        return model(**tensors(job, [i])).logits[0]
    return model.classifier(model.base_model(**tensors(job, [i])).last_hidden_state.mean(1))[0]


PREPARE = {
    "transformers_padded": padded,
    "transformers_sorted": sorted_by_length,
    "transformers_compiled": compiled,
    "transformers_swapped": swapped,
    "reference": reference,
}


def prepare(job: Job) -> Run:
    return PREPARE[sys.argv[1]](job)


serve(prepare)
