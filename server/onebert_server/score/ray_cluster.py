"""Scores a job on a Ray cluster; this machine reads and writes all files, so nodes need no shared storage."""

import os
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from typing import Any

import pyarrow
import torch

from onebert_server.hosts import load_only_host
from onebert_server.score.job import Computation, Job
from onebert_server.score.local import ahead, load
from onebert_server.score.output import MakeJob, Parts, Scores
from onebert_server.score.reading import Window, read_windows
from onebert_server.score.scorer import Scorer
from onebert_server.score.tasks import LoadedTask
from onebert_server.settings import Settings
from onebert_store.command.cluster import RayError, connected, on_nodes, ray, reason, run
from onebert_store.errors import BaseMismatch, OneBertError, ServerUnreachable

# Retries of a part after its worker or node dies.
RETRIES = 3
# Parts submitted per slot of the cluster, so that no slot idles waiting for this machine.
_WAITING = 2


@dataclass(frozen=True)
class WorkerSetup:
    """Settings of every Ray task; each node loads `base` itself; it must be the base of `computing`."""

    base: str | None
    computing: Computation
    device: str
    tasks: "ray.ObjectRef[list[LoadedTask]]"
    all_scores: bool


@contextmanager
def scorer_on_cluster(
    address: str, settings: Settings, all_scores: bool, tasks: Sequence[LoadedTask], make_job: MakeJob
) -> Iterator[Scores]:
    """Connects to a Ray cluster; the block scores on it."""
    with connected(address, None if settings.device == "auto" else settings.device) as cluster:
        # Checks here that the tasks reproduce their trainer's golden logits, before the nodes start.
        cpu = settings.model_copy(update={"device": "cpu"})
        base = load(cpu, tasks, all_scores, torch.get_num_threads()).base
        fast = "bfloat16" if cluster.device == "cuda" else base.dtype_name
        precision = fast if settings.dtype == "auto" else settings.dtype
        computing = Computation(base.spec.digest, precision, settings.max_batch_tokens)
        setup = WorkerSetup(on_nodes(settings.only_base), computing, cluster.device, ray.put([*tasks]), all_scores)
        job = make_job(computing=computing)
        yield job, lambda scored: score_on_cluster(job, scored, setup, cluster.slots)


def score_on_cluster(job: Job, scored: Container[str], setup: WorkerSetup, slots: int) -> Parts:
    """Scores every part that is not in `scored`, into the same files as one machine of the same kind would write.

    The cluster runs `slots` tasks at once. Raises ServerUnreachable when a part has failed repeatedly.
    """
    task = ray.remote(score_part).options(
        num_cpus=1, num_gpus=int(setup.device == "cuda"), num_returns="streaming", max_retries=RETRIES
    )
    unfinished = groupby(read_windows(job, scored), lambda window: window.part)
    parts = ((name, [*windows]) for name, windows in unfinished)
    for (name, windows), tables in run(
        lambda part: task.remote(part[1], setup), partial(next, parts, None), _WAITING * slots
    ):
        if isinstance(tables, RayError):
            if isinstance(cause := getattr(tables, "cause", None), OneBertError):
                raise cause from None
            raise ServerUnreachable(f"a part was lost: {reason(tables)}; the same command tries it again") from None
        if not isinstance(tables, StopIteration):
            yield name, zip(windows, tables, strict=True)


def score_part(windows: Sequence[Window], setup: WorkerSetup) -> Iterator[list[pyarrow.Table]]:
    """Scores a part on a worker, as its one result; raises BaseMismatch if base or precision differ from the job's."""
    if setup.device == "cpu":
        # One CPU per task; the other CPUs run other tasks.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        torch.set_num_threads(1)
    scorer = _scorer(setup)
    with ahead(map(scorer.prepare, windows), 1, "onebert-tokenizer") as prepared:
        yield [scorer.answers(window) for window in scorer.compute(prepared)]


@lru_cache(maxsize=1)
def _scorer(setup: WorkerSetup) -> Scorer:
    """The base with the tasks, loaded once per worker process."""
    # Defaults except for the job's settings; the node's environment is ignored.
    dtype: Any = setup.computing.precision
    settings = Settings.model_construct(base=(setup.base,) if setup.base else (), dtype=dtype, device=setup.device)
    tasks: list[LoadedTask] = ray.get(setup.tasks)
    scorer = Scorer(load_only_host(settings), tasks, setup.computing.batch_tokens, setup.all_scores)
    if (scorer.base.spec.digest, scorer.base.dtype_name) != (setup.computing.base, setup.computing.precision):
        raise BaseMismatch("a node has another base by that name, or cannot compute in the job's precision")
    return scorer
