"""peft with `set_adapter`: the texts of each task are one padded batch, for which the task's adapter is activated."""

import numpy as np

from bert import by_task, set_threads, torch_forward
from peft_models import adapter, load_adapters
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    set_threads(job.threads)
    model = load_adapters(job)
    forward, groups = torch_forward(job, model), by_task(job)

    def run() -> np.ndarray:
        logits = np.zeros((len(job.ids), 2))
        for task, members in groups.items():
            model.set_adapter(adapter(task), inference_mode=True)
            logits[members] = forward(members)
        return logits

    return run


serve(prepare)
