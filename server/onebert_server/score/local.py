"""Scores a job on this machine: one thread reads, one tokenizes, one computes, one writes."""

from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import TypeVar

from onebert_encoder.compute.threads import compute_with
from onebert_server.engine.host import Host
from onebert_server.engine.memory import collect_seldom
from onebert_server.hosts import compute_threads, load_only_host, on_a_thread
from onebert_server.score.job import Computation, Job
from onebert_server.score.output import MakeJob, Parts, Scores
from onebert_server.score.reading import read_windows
from onebert_server.score.scorer import Prepared, Scorer
from onebert_server.score.tasks import LoadedTask
from onebert_server.settings import Settings
from onebert_store.command import console

T = TypeVar("T")

# Windows queued between two stages.
_WAITING = 2


@contextmanager
def scorer_here(
    settings: Settings, all_scores: bool, tasks: Sequence[LoadedTask], make_job: MakeJob, host: Host | None = None
) -> Iterator[Scores]:
    """Loads the base, unless there is a `host`, and the tasks, whose golden logits are checked; the block scores."""
    threads = compute_threads(settings)
    scorer = load(settings, tasks, all_scores, threads, host)
    collect_seldom()
    job = make_job(computing=Computation(scorer.base.spec.digest, scorer.base.dtype_name, settings.max_batch_tokens))
    yield job, lambda scored: score_here(job, scored, scorer, threads)


def load(
    settings: Settings, tasks: Sequence[LoadedTask], all_scores: bool, threads: int, host: Host | None = None
) -> Scorer:
    """The base with the tasks; raises InvalidDelta or BankFull, see `Scorer`."""
    with console.busy("loading"):
        return on_a_thread(
            threads, lambda: Scorer(host or load_only_host(settings), tasks, settings.max_batch_tokens, all_scores)
        )


def score_here(job: Job, scored: Container[str], scorer: Scorer, threads: int) -> Parts:
    """Scores every part of a job that is not in `scored`."""
    with ExitStack() as opened:
        windows = opened.enter_context(ahead(read_windows(job, scored), _WAITING, "onebert-reader"))
        prepared = opened.enter_context(ahead(map(scorer.prepare, windows), _WAITING, "onebert-tokenizer"))
        computed = opened.enter_context(ahead(_compute(scorer, prepared, threads), _WAITING, "onebert-engine"))
        for name, of_part in groupby(computed, lambda window: window.window.part):
            yield name, ((window.window, scorer.answers(window)) for window in of_part)


def _compute(scorer: Scorer, prepared: Iterator[Prepared], threads: int) -> Iterator[Prepared]:
    compute_with(threads)
    yield from scorer.compute(prepared)


@contextmanager
def ahead(items: Iterable[T], limit: int, name: str) -> Iterator[Iterator[T]]:
    """Items from a thread that ends with the block, at most `limit` ahead; the consumer gets their exceptions."""
    # In tuples, so that None marks the end.
    making = ((item,) for item in items)
    with ThreadPoolExecutor(1, name) as thread:
        coming = deque(thread.submit(next, making, None) for _ in range(limit))

        def taken() -> Iterator[T]:
            while (item := coming.popleft().result()) is not None:
                coming.append(thread.submit(next, making, None))
                yield item[0]

        try:
            yield taken()
        finally:
            for future in coming:
                future.cancel()
