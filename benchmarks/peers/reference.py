"""The reference for all answers: each sequence alone, unpadded, in float32, through the plain merged model."""

import numpy as np
import torch

from bert import by_task, load_model, merge, read_delta, set_threads
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    set_threads(job.threads)
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
    ids, types = torch.tensor([job.ids[i]]), torch.tensor([job.type_ids[i]])
    if pooling == "pooler":
        return model(input_ids=ids, token_type_ids=types).logits[0]
    return model.classifier(model.bert(input_ids=ids, token_type_ids=types).last_hidden_state.mean(1))[0]


serve(prepare)
