"""peft with a mixed batch: `adapter_names` names the adapter of each text."""

from collections.abc import Sequence

import numpy as np
import torch

from bert import fastest, set_threads, tensors
from peft_models import adapter, load_adapters
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    set_threads(job.threads)
    model = load_adapters(job)

    @torch.inference_mode()
    def forward(chosen: Sequence[int]) -> np.ndarray:
        names = [adapter(job.task_of[i]) for i in chosen]
        return model(**tensors(job, chosen), adapter_names=names).logits.float().cpu().numpy()

    return fastest(job, forward)


serve(prepare)
