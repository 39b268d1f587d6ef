"""Sends groups of runs to a Ray cluster as plain tasks, and collects each run as it finishes."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any

import torch

from onebert_encoder.base.base import Base
from onebert_store.command import console
from onebert_store.command.cluster import connected, on_nodes, ray, reason, run
from onebert_store.errors import BaseMismatch
from onebert_training.data.dataset import Dataset
from onebert_training.device import load_on
from onebert_training.fit.loop import groups, ignore
from onebert_training.options import Machine
from onebert_training.sweep.work import Execute, Job, JobSet, Outcome, make_runs, make_sample_runs, train_job_set

ATTEMPTS = 3  # attempts in a row without a finished run before a group is given up


@dataclass(frozen=True)
class WorkerSetup:
    """The base (each node loads it itself) and the device of every Ray task, with CPUs (and threads) per task."""

    machine: Machine
    digest: str
    cpus: int


@dataclass(eq=False)
class Group:
    """Runs that one Ray task trains in one batch; `unfinished` holds those without a result."""

    dataset: "ray.ObjectRef[Dataset]"
    max_length: int
    unfinished: dict[str, Job]
    failures: int = 0


def on_cluster(address: str, loaded: Base, machine: Machine, width: int) -> Execute:
    """Returns a function that connects to a cluster, trains sets of jobs on it and then disconnects.

    `loaded` is the base on this machine, to find out which runs can step together; nodes load the base of
    `machine`. At most `width` runs form a batch. The function raises as `connected` does.
    """

    def execute(job_sets: Sequence[JobSet]) -> Iterator[Outcome]:
        with connected(address, machine.device) as cluster:
            # One thread per task uses the cores best; tasks get more threads only if there are fewer runs than cores.
            runs, cpus = sum(len(job_set.jobs) for job_set in job_sets), cluster.cpus
            threads = 1 if cluster.device == "cuda" else max(1, min(*cpus, sum(cpus) // runs))
            node_machine = replace(machine, base=on_nodes(machine.base), device=cluster.device)
            setup = WorkerSetup(node_machine, loaded.spec.digest, threads)
            yield from _train(_divide(job_sets, loaded, width, cluster.slots(threads)), setup)

    return execute


def _divide(job_sets: Sequence[JobSet], loaded: Base, width: int, slots: int) -> list[Group]:
    """Groups of runs that can step together, small enough to give every slot work; longest first."""
    width = min(width, ceil(sum(len(job_set.jobs) for job_set in job_sets) / slots))
    divided: list[tuple[int, Group]] = []
    for job_set in job_sets:
        dataset = ray.put(job_set.dataset)
        runs = make_sample_runs(loaded, job_set)
        job_of = {id(run): job for run, job in zip(runs, job_set.jobs, strict=True)}
        for together in groups(runs):
            parts = ceil(len(together) / width)
            for part in (together[i::parts] for i in range(parts)):
                jobs = [job_of[id(run)] for run in part]
                cost = len(job_set.dataset.splits["train"]) * sum(run.schedule.epochs for run in part)
                divided.append((cost, Group(dataset, job_set.max_length, {job.name: job for job in jobs})))
    return [group for _, group in sorted(divided, key=lambda entry: entry[0], reverse=True)]


def _train(groups: Sequence[Group], setup: WorkerSetup) -> Iterator[Outcome]:
    """Trains groups; if a worker dies, its unfinished runs are sent again and resume from their checkpoints."""
    task = ray.remote(train_group).options(
        num_cpus=setup.cpus, num_gpus=int(setup.machine.device == "cuda"), num_returns="streaming", max_retries=0
    )

    def start(group: Group) -> Any:
        return task.remote(group.dataset, group.max_length, tuple(group.unfinished.values()), setup)

    waiting = deque(groups)
    for group, outcome in run(start, lambda: waiting.popleft() if waiting else None, len(groups)):
        if isinstance(outcome, Outcome):
            group.failures = 0
            del group.unfinished[outcome.name]
            yield outcome
        elif group.unfinished:
            group.failures += 1
            if group.failures < ATTEMPTS:
                console.tell(f"note: {reason(outcome)}; {len(group.unfinished)} runs are sent again")
                waiting.append(group)
            else:
                yield from (Outcome(name, error=f"lost: {reason(outcome)}", lost=True) for name in group.unfinished)


def train_group(dataset: Dataset, max_length: int, jobs: tuple[Job, ...], setup: WorkerSetup) -> Iterator[Outcome]:
    """Trains a group on a worker, whose node has its checkpoints; raises BaseMismatch if the node has another base."""
    torch.set_num_threads(setup.cpus)
    base = _load(setup)
    if base.spec.digest != setup.digest:
        raise BaseMismatch("a node has another base by that name")
    checkpoints = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onebert" / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    job_set = JobSet(dataset, max_length, jobs)
    for outcome in train_job_set(job_set, make_runs(base, job_set), len(jobs), checkpoints.joinpath, ignore):
        yield outcome
        (checkpoints / outcome.name).unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _load(setup: WorkerSetup) -> Base:
    """The base, loaded once per worker process."""
    return load_on(setup.machine.base, setup.machine.dtype, setup.machine.device)
