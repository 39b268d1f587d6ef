"""transformers at its best on a mixed batch: SDPA attention, sorted by length and cut where that is fastest."""

from bert import fastest, load_model, set_threads, torch_forward
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    set_threads(job.threads)
    return fastest(job, torch_forward(job, load_model(job, job.tasks[0])))


serve(prepare)
