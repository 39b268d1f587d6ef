"""The floor: the matrix products of the linear layers on the packed tokens, and nothing else."""

import torch

from onebert_bench.compute import matrix_products
from onebert_encoder.base.base import load_base
from onebert_server.engine.memory import keep_freed_memory
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    torch.set_num_threads(job.threads)
    base = load_base(job.base, dtype=getattr(torch, job.dtype), device=job.device)
    products = matrix_products(base, sum(map(len, job.ids)))

    @torch.inference_mode()
    def run() -> list[list[float]]:
        return products()[:1, :1].float().cpu().tolist()

    return run


keep_freed_memory()
serve(prepare)
