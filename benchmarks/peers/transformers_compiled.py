"""transformers with torch.compile, one task.

`dynamic=True` because texts differ in length; on CPU with freezing, which PyTorch's Inductor needs to pack weights.
"""

import torch
import torch._inductor.config

from bert import fastest, load_model, set_threads, torch_forward
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    set_threads(job.threads)
    torch._inductor.config.freezing = job.device == "cpu"
    torch.compiler.reset()
    return fastest(job, torch_forward(job, torch.compile(load_model(job, job.tasks[0]), dynamic=True)))


serve(prepare)
