"""Scores a job on a Ray cluster; this machine reads and writes all files, so nodes need no shared storage."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow
import torch

from onebert_server.score.ahead import ahead
from onebert_server.score.job import Job
from onebert_server.score.output import Output
from onebert_server.score.reading import Window, read_windows
from onebert_server.score.scorer import Scorer, open_scorer
from onebert_server.score.tasks import ScoredTask
from onebert_server.settings import Settings
from onebert_store.command.cluster import RayError, connect, device_of, ray, reason, resources
from onebert_store.errors import BaseMismatch, OneBertError, ServerUnreachable

# Retries of a part after its worker or node dies.
RETRIES = 3
# Parts submitted per slot of the cluster, so that no slot idles waiting for this machine.
_WAITING = 2


@dataclass(frozen=True)
class WorkerSetup:
    """Settings of every Ray task; each node loads `base` itself, and `digest` is of the job's base."""

    base: str | None
    digest: str
    dtype: str
    device: str
    tasks: "ray.ObjectRef[list[ScoredTask]]"
    batch_tokens: int
    all_scores: bool


@contextmanager
def connected(address: str, device: str | None) -> Iterator[tuple[str, int]]:
    """Connects to a cluster for the block; yields the tasks' device and how many tasks run at once.

    Raises:
        ServerUnreachable: no cluster answers there.
        InvalidSettings: the address is invalid, or the cluster lacks the device.
    """
    connect(address)
    try:
        cpus, gpus = resources()
        device = device_of(device, cpus, gpus)
        yield device, gpus if device == "cuda" else sum(cpus)
    finally:
        ray.shutdown()


def score_on_cluster(
    job: Job, output: Output, base: str | None, device: str, slots: int, report: Callable[[Window], None]
) -> None:
    """Scores every part that is not finished yet, into the same files as one machine of the same kind would write.

    Nodes load `base`, a Hub id or folder; the cluster runs `slots` tasks at once. Raises ServerUnreachable when a part
    has failed repeatedly; finished parts are kept.
    """
    if base is not None and Path(base).expanduser().is_dir():
        base = str(Path(base).expanduser().resolve())  # workers have another working directory
    tasks = ray.put([*job.tasks])
    setup = WorkerSetup(base, job.base, job.precision, device, tasks, job.batch_tokens, job.all_scores)
    task = ray.remote(score_part).options(num_cpus=1, num_gpus=int(device == "cuda"), max_retries=RETRIES)
    running: dict[ray.ObjectRef[list[pyarrow.Table]], tuple[str, Sequence[Window]]] = {}
    for name, of_part in groupby(read_windows(job, output.scored), lambda window: window.part):
        while len(running) >= _WAITING * slots:
            _take_one(running, output, report)
        windows = [*of_part]
        running[task.remote(windows, setup)] = name, windows
    while running:
        _take_one(running, output, report)


def score_part(windows: Sequence[Window], setup: WorkerSetup) -> list[pyarrow.Table]:
    """Scores a part on a worker; raises BaseMismatch if its base or precision differs from the job's."""
    if setup.device == "cpu":
        # One CPU per task; the other CPUs run other tasks.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        torch.set_num_threads(1)
    scorer = _scorer(setup)
    with ahead(map(scorer.prepare, windows), 1, "onebert-tokenizer") as prepared:
        return [scorer.answers(one) for one in scorer.compute(prepared)]


def _take_one(
    running: "dict[ray.ObjectRef[list[pyarrow.Table]], tuple[str, Sequence[Window]]]",
    output: Output,
    report: Callable[[Window], None],
) -> None:
    [ended], _ = ray.wait([*running], num_returns=1)
    name, windows = running.pop(ended)
    tables = _result(ended)
    with output.part(name) as part:
        for table in tables:
            part.add(table)
    for window in windows:
        report(window)


def _result(ended: "ray.ObjectRef[list[pyarrow.Table]]") -> list[pyarrow.Table]:
    try:
        tables: list[pyarrow.Table] = ray.get(ended)
    except RayError as error:
        if isinstance(cause := getattr(error, "cause", None), OneBertError):
            raise cause from None
        raise ServerUnreachable(f"a part was lost: {reason(error)}; the same command tries it again") from None
    return tables


@lru_cache(maxsize=1)
def _scorer(setup: WorkerSetup) -> Scorer:
    """The base with the tasks, loaded once per worker process."""
    # Defaults except for the job's settings; the node's environment is ignored.
    dtype: Any = setup.dtype
    settings = Settings.model_construct(base=setup.base, dtype=dtype, device=setup.device)
    tasks: list[ScoredTask] = ray.get(setup.tasks)
    scorer = open_scorer(settings, tasks, setup.batch_tokens, setup.all_scores)
    if (scorer.base.spec.digest, scorer.base.dtype_name) != (setup.digest, setup.dtype):
        raise BaseMismatch("a node has another base by that name, or cannot compute in the job's precision")
    return scorer
