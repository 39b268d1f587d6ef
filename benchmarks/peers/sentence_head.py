"""sentence-transformers as SetFit serves it: the frozen encoder's mean vector, then the task's own linear head."""

from collections.abc import Sequence

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

from merged import fastest, read_delta, tensors, torch_dtype
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    model = load_encoder(job)
    heads = [read_delta(file)[0] for file in job.tasks]
    weight = torch.stack([head["head.weight"] for head in heads])[job.task_of].numpy()
    bias = torch.stack([head["head.bias"] for head in heads])[job.task_of].numpy()

    @torch.inference_mode()
    def forward(chosen: Sequence[int]) -> np.ndarray:
        return model(tensors(job, chosen))["sentence_embedding"].float().cpu().numpy()

    vectors = fastest(job, forward)
    return lambda: np.einsum("sh,slh->sl", vectors(), weight) + bias


def load_encoder(job: Job) -> SentenceTransformer:
    """The encoder with mean pooling, without normalization, which a linear head does not need."""
    encoder = Transformer(job.base, model_kwargs={"dtype": torch.float32, "attn_implementation": "sdpa"})
    pooling = Pooling(encoder.get_word_embedding_dimension(), "mean")
    return SentenceTransformer(modules=[encoder, pooling], device=job.device).to(torch_dtype(job)).eval()


serve(prepare)
