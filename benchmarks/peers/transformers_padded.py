"""transformers as usual: SDPA attention, the batch padded to its longest text, one merged task."""

from bert import load_model, set_threads, torch_forward, whole
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    set_threads(job.threads)
    return whole(job, torch_forward(job, load_model(job, job.tasks[0])))


serve(prepare)
