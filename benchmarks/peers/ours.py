"""OneBERT in process, from token ids to logits in the same way as the server's engine; and the floor of its products.

Argument: the name of an entry.
"""

import sys
from functools import cache
from itertools import cycle
from pathlib import Path

import torch

from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.batch import pack
from onebert_encoder.maths.fold import fold_delta
from onebert_encoder.maths.predict import compute_logits
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.memory import give_back_freed_memory, keep_freed_memory
from onebert_store.file.format import load
from worker import Job, Run, serve


def prepare(job: Job) -> Run:
    torch.set_num_threads(job.threads)
    base = base_of(job.base, job.dtype)
    return floor(job, base) if sys.argv[1] == "floor" else ours(job, base)


@cache
def base_of(folder: str, dtype: str) -> Base:
    """The base, loaded once for all jobs, as a server does."""
    base = load_base(folder, dtype=getattr(torch, dtype))
    give_back_freed_memory()
    return base


def floor(job: Job, base: Base) -> Run:
    """The matrix products of the linear layers on the packed tokens, and nothing else."""
    # Brings models of transformers, which OneBERT's own process has not: its memory is looked at.
    from onebert_bench.compute import matrix_products  # noqa: PLC0415

    products = matrix_products(base, sum(map(len, job.ids)))

    @torch.inference_mode()
    def run() -> list[list[float]]:
        return products()[:1, :1].float().cpu().tolist()

    return run


def ours(job: Job, base: Base) -> Run:
    """A bank with the job's tasks, and its batch."""
    bank = Bank(base)
    rows = [fold_delta(base, delta) for delta in map(load, map(Path, job.tasks))]
    resident = max(job.resident, len(rows))
    slots = [bank.install(rows[i % len(rows)]) for i in range(resident)]
    # Each file is installed many times, at every `len(rows)`-th slot. A batch's tasks take copies that are spread over
    # all slots.
    copies = resident // len(rows)
    chosen = [slots[task + len(rows) * (task * copies // len(rows))] for task in job.task_of]
    one_object = cache(lambda ids, types: Tokens(list(ids), list(types)))
    tokens = [
        one_object(tuple(ids), tuple(types)) if job.shared else Tokens(ids, types)
        for ids, types in zip(job.ids, job.type_ids, strict=True)
    ]
    sequences = Sequences.of(tokens)
    turns = cycle(slots)

    @torch.inference_mode()
    def run() -> list[list[float]]:
        taken = [next(turns)] * len(tokens) if job.rotate else chosen
        batch = pack(base, sequences, taken, bank.diverges_at[taken])
        logits: list[list[float]] = torch.stack(compute_logits(base, bank.rows, batch).split()).cpu().tolist()
        return logits

    return run


keep_freed_memory()
serve(prepare)
