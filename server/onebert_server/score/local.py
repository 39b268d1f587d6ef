"""Scores a job on this machine: one thread reads, one tokenizes, one computes, one writes."""

from collections import deque
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import TypeVar

from onebert_encoder.compute.threads import compute_with
from onebert_server.score.job import Job
from onebert_server.score.output import Parts
from onebert_server.score.reading import read_windows
from onebert_server.score.scorer import Prepared, Scorer

T = TypeVar("T")

# Windows queued between two stages.
_WAITING = 2


def score_here(job: Job, scored: Container[str], scorer: Scorer, threads: int) -> Parts:
    """Scores every part of a job that is not in `scored`."""
    with ExitStack() as opened:
        windows = opened.enter_context(ahead(read_windows(job, scored), _WAITING, "onebert-reader"))
        prepared = opened.enter_context(ahead(map(scorer.prepare, windows), _WAITING, "onebert-tokenizer"))
        computed = opened.enter_context(ahead(_compute(scorer, prepared, threads), _WAITING, "onebert-engine"))
        for name, of_part in groupby(computed, lambda one: one.window.part):
            yield name, ((one.window, scorer.answers(one)) for one in of_part)


def _compute(scorer: Scorer, prepared: Iterator[Prepared], threads: int) -> Iterator[Prepared]:
    compute_with(threads)
    yield from scorer.compute(prepared)


@contextmanager
def ahead(items: Iterable[T], most: int, name: str) -> Iterator[Iterator[T]]:
    """Items from a thread that ends with the block, at most `most` ahead; the consumer gets their exceptions."""
    making = map(_just, items)
    with ThreadPoolExecutor(1, name) as thread:
        coming = deque(thread.submit(next, making, None) for _ in range(most))

        def taken() -> Iterator[T]:
            while (made := coming.popleft().result()) is not None:
                coming.append(thread.submit(next, making, None))
                yield made[0]

        try:
            yield taken()
        finally:
            for one in coming:
                one.cancel()


def _just(item: T) -> tuple[T]:
    """Wraps an item, so that None marks the end."""
    return (item,)
