"""The floor: the matrix products of the linear layers on the packed tokens, with the same kernels, and nothing else."""

import torch

from onebert_encoder.base import load_base
from onebert_server.memory import keep_freed_memory
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    torch.set_num_threads(job.threads)
    base = load_base(job.base, dtype=getattr(torch, job.dtype), device=job.device)
    tokens, config = sum(map(len, job.ids)), base.config
    narrow = torch.randn(tokens, config.hidden_size, device=base.device).to(base.dtype)
    wide = torch.randn(tokens, config.intermediate_size, device=base.device).to(base.dtype)

    @torch.inference_mode()
    def run() -> list[list[float]]:
        for layer in base.layers:
            layer.W_qkv(narrow)
            layer.W_m1(narrow)
            layer.W_m2(narrow)
            last = layer.W_m3(wide)
        return last[:1, :1].float().cpu().tolist()

    return run


keep_freed_memory()
serve(prepare)
